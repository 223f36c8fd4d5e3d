"""A small OpenAI server for tests: streams on a fixed schedule, counts tokens as one per word, can be told to misbehave."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.key: str | None = "sk-test"
        self.first_s, self.gap_s = 0.02, 0.005
        self.usage = True
        self.owned_by = "vllm"
        self.fail_every = 0
        self.keep = True
        self.seen: list[dict[str, Any]] = []
        self.active = self.most_active = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True      # as real servers do: else the kernel glues chunks together
    server: FakeServer

    def log_message(self, format: str, *args: Any) -> None: ...

    def _reply(self, status: int, document: Any) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _allowed(self) -> bool:
        if self.server.key and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            self._reply(401, {"error": "Unauthorized"})
            return False
        return True

    def do_GET(self) -> None:
        if self.path == "/health":
            self._reply(200, {})
        elif self.path == "/metrics":
            self._reply(200, "")
        elif self._allowed():
            self._reply(200, {"data": [{"id": "tiny", "owned_by": self.server.owned_by}]})

    def do_POST(self) -> None:
        document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._allowed():
            return
        with self.server.lock:
            self.server.seen.append(document)
            number = len(self.server.seen)
            self.server.active += 1
            self.server.most_active = max(self.server.most_active, self.server.active)
        try:
            if self.server.fail_every and number % self.server.fail_every == 0:
                self._reply(500, {"error": {"message": "out of luck"}})
            elif document.get("stream"):
                self._stream(document)
            else:
                usage = {"prompt_tokens": 1, "completion_tokens": document["max_tokens"]}
                self._reply(200, {"choices": [{"text": " yes" * document["max_tokens"]}], "usage": usage})
        finally:
            self.close_connection = self.close_connection or not self.server.keep
            with self.server.lock:
                self.server.active -= 1

    def _stream(self, document: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        chat = "messages" in document
        text = document["messages"][0]["content"] if chat else document["prompt"]
        if chat:
            self._event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for number in range(document["max_tokens"]):
            time.sleep(self.server.gap_s if number else self.server.first_s)
            self._event({"choices": [{"delta": {"content": " w"}} if chat else {"text": " w"}]})
        if self.server.usage and document.get("stream_options"):
            self._event({"choices": [], "usage": {"prompt_tokens": len(text.split()), "completion_tokens": document["max_tokens"]}})
        self._piece(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, document: Any) -> None:
        self._piece(b"data: " + json.dumps(document).encode() + b"\n\n")

    def _piece(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


@contextmanager
def running() -> Iterator[FakeServer]:
    server = FakeServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
