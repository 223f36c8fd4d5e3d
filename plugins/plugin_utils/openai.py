# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""HTTP to an OpenAI endpoint: one keep-alive connection per lane, streams timed as bytes arrive.

Own code on asyncio instead of a client library: the collection then asks for nothing beyond ansible-core here, no proxy
variable of the environment comes between the clock and the server, and the key goes into one header and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.motley.inference.plugins.module_utils.serving.requests import Answer, Endpoint, EventReader, error_text
from ansible_collections.motley.inference.plugins.module_utils.serving.statistics import Outcome

_LIMIT = 1 << 20


@dataclass(frozen=True)
class Reply:
    """A whole answer; status 0 means that none came, and text says why."""

    status: int
    text: str

    def json(self) -> Any:
        """The document, or None."""
        try:
            return json.loads(self.text)
        except ValueError:
            return None

    @property
    def problem(self) -> str:
        """One line for a person."""
        if not self.status:
            return self.text
        said = error_text(self.json())
        return f"HTTP {self.status}" + (f": {said}" if said else "")


class _Closed(Exception):
    """The server had closed a kept connection before it answered."""


class Connection:
    """One HTTP/1.1 connection that is opened when needed and kept."""

    def __init__(self, endpoint: Endpoint, *, key: str | None = None) -> None:
        self._endpoint, self._key = endpoint, key
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def request(self, method: str, path: str, document: Any = None) -> tuple[int, AsyncIterator[bytes]]:
        """Send, and read up to the headers: (status, pieces of the body). The pieces must be read to their end."""
        reused = self._writer is not None
        try:
            return await self._once(method, path, document)
        except (_Closed, ConnectionResetError, BrokenPipeError):
            self.close()
            if not reused:
                raise ConnectionError("it closed the connection without an answer") from None
        return await self._once(method, path, document)

    async def _once(self, method: str, path: str, document: Any) -> tuple[int, AsyncIterator[bytes]]:
        reader, writer = await self._open()
        writer.write(self._head(method, path, document))
        await writer.drain()
        line = await reader.readline()
        if not line:
            raise _Closed
        try:
            status = int(line.split()[1])
        except (IndexError, ValueError):
            raise ConnectionError(f"no HTTP answer: {line[:60]!r}") from None
        headers: dict[str, str] = {}
        while (line := (await reader.readline()).strip()):
            name, _colon, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        return status, self._body(reader, status, headers)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._reader is None or self._writer is None:
            tls = ssl.create_default_context() if self._endpoint.tls else None
            self._reader, self._writer = await asyncio.open_connection(self._endpoint.host, self._endpoint.port, ssl=tls, limit=_LIMIT)
        return self._reader, self._writer

    def _head(self, method: str, path: str, document: Any) -> bytes:
        content = b"" if document is None else json.dumps(document).encode()
        host = self._endpoint.text.split("://", 1)[1].removesuffix(self._endpoint.base)
        lines = [f"{method} {self._endpoint.base}{path} HTTP/1.1", f"Host: {host}", "User-Agent: motley", "Accept: */*"]
        if self._key:
            lines.append(f"Authorization: Bearer {self._key}")
        if document is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + content

    async def _body(self, reader: asyncio.StreamReader, status: int, headers: dict[str, str]) -> AsyncIterator[bytes]:
        keep = headers.get("connection", "").lower() != "close"
        if "chunked" in headers.get("transfer-encoding", "").lower():
            while size := int((await reader.readline()).split(b";")[0] or b"0", 16):
                yield await reader.readexactly(size)
                await reader.readexactly(2)
            while (await reader.readline()).strip():
                pass
        elif "content-length" in headers:
            yield await reader.readexactly(int(headers["content-length"]))
        elif status not in (204, 304):
            keep = False
            while piece := await reader.read(65536):
                yield piece
        if not keep:
            self.close()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


def _reason(error: BaseException, endpoint: Endpoint) -> str:
    match error:
        case TimeoutError():
            return f"no answer from {endpoint.text} in time"
        case ssl.SSLError():
            return f"TLS to {endpoint.text} failed: {error.reason or error}"
        case asyncio.IncompleteReadError():
            return "the connection ended in the middle of the answer"
        case ConnectionRefusedError():
            return f"cannot reach {endpoint.text}: nothing listens there"
        case OSError():
            return f"cannot reach {endpoint.text}: {error.strerror or error}"
    return f"{endpoint.text}: {error}"


_FAILURES = (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError)


def fetch(endpoint: Endpoint, path: str, *, method: str = "GET", document: Any = None, key: str | None = None, timeout: float = 10.0) -> Reply:
    """One request and its whole answer; never raises for what a network does."""

    async def go() -> Reply:
        connection = Connection(endpoint, key=key)
        try:
            async with asyncio.timeout(timeout):
                status, pieces = await connection.request(method, path, document)
                return Reply(status, b"".join([piece async for piece in pieces]).decode("utf-8", "replace"))
        except _FAILURES as error:
            return Reply(0, _reason(error, endpoint))
        finally:
            connection.close()

    return asyncio.run(go())


async def ask(connection: Connection, endpoint: Endpoint, path: str, document: Any, *, since: float, timeout: float) -> tuple[Outcome, str]:
    """One streamed request: (outcome with times since `since`, text)."""
    answer, reader, sent = Answer(), EventReader(), time.perf_counter() - since
    try:
        async with asyncio.timeout(timeout):
            status, pieces = await connection.request("POST", path, document)
            whole = b""
            async for piece in pieces:
                if status == 200:
                    at = time.perf_counter() - since
                    for data in reader.feed(piece):
                        answer.take(data, at)
                else:
                    whole += piece
            if status != 200:
                answer.error = Reply(status, whole.decode("utf-8", "replace")).problem
    except _FAILURES as error:
        connection.close()
        answer.error = _reason(error, endpoint)
    counted = answer.output_tokens is not None
    outcome = Outcome(sent=sent, chunks=tuple(answer.chunks), prompt_tokens=answer.prompt_tokens or 0,
                      output_tokens=answer.output_tokens if answer.output_tokens is not None else len(answer.chunks),
                      counted=counted, error=answer.error)
    return outcome, answer.text


def load(endpoint: Endpoint, path: str, documents: Sequence[Any], *, concurrency: int, key: str | None = None, timeout: float = 300.0,
         progress: Callable[[int, int, float], None] | None = None, every: float = 10.0) -> tuple[list[Outcome], float]:
    """Send all documents, at most `concurrency` at a time: (outcomes in the order of the documents, seconds).

    progress(done, output tokens, seconds) is called every `every` seconds while it lasts.
    """

    async def go() -> tuple[list[Outcome], float]:
        since = time.perf_counter()
        done: dict[int, Outcome] = {}
        queue = iter(range(len(documents)))

        async def lane() -> None:
            connection = Connection(endpoint, key=key)
            try:
                for index in queue:
                    done[index], _text = await ask(connection, endpoint, path, documents[index], since=since, timeout=timeout)
            finally:
                connection.close()

        async def tell() -> None:
            while progress:
                await asyncio.sleep(every)
                progress(len(done), sum(o.output_tokens for o in done.values()), time.perf_counter() - since)

        teller = asyncio.create_task(tell())
        try:
            lanes: list[Awaitable[None]] = [lane() for _lane in range(max(1, min(concurrency, len(documents))))]
            await asyncio.gather(*lanes)
        finally:
            teller.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await teller
        return [done[i] for i in range(len(documents))], time.perf_counter() - since

    return asyncio.run(go())
