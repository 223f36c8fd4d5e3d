# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests to an OpenAI endpoint and what comes back: bodies, seeded prompts, server-sent events. No network here."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit

Api = Literal["completions", "chat"]
PATHS: Mapping[str, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
# Short, frequent words: about one token each in every common tokenizer, and prompts that no two requests share.
_WORDS = (  # noqa: SIM905 - a list of two hundred literals reads worse
    "the of and to in is that it for was on are as with they be at one have this from by hot but some what there we can out other were all "
    "your when up use word how said an each she which do their time if will way about many then them would write like so these her long make "
    "thing see him two has look more day could go come did my sound no most number who over know water than call first people may down side "
    "been now find any new work part take get place made live where after back little only round man year came show every good me give our "
    "under name very through just form much great think say help low line before turn cause same mean differ move right boy old too does tell "
    "sentence set three want air well also play small end put home read hand port large spell add even land here must big high such follow"
).split()


@dataclass(frozen=True)
class Endpoint:
    """Where to send: scheme, host, port, path before /v1."""

    scheme: str
    host: str
    port: int
    base: str = ""

    @property
    def tls(self) -> bool:
        return self.scheme == "https"

    @property
    def text(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.base}"


def endpoint(url: str) -> Endpoint:
    """Read a URL such as http://10.0.0.20:8000 or https://api.example.com/openai/v1; ValueError says what is wrong with it."""
    parts: SplitResult = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is no http or https address")
    if parts.username or parts.password:
        raise ValueError("an address must not hold a password; give the key by file")
    base = parts.path.rstrip("/")
    base = base.removesuffix("/v1")
    return Endpoint(parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80), base)


def prompt(seed: int, words: int) -> str:
    """A prompt of so many words; the same seed gives the same words, different seeds differ from the first word on."""
    choose = random.Random(seed)  # noqa: S311 - repeatable on purpose
    return " ".join(choose.choice(_WORDS) for _word in range(max(1, words)))


def words_for(wanted_tokens: int, *, words: int, tokens: int) -> int:
    """Words that give about wanted_tokens, after a prompt of `words` words was counted as `tokens` by the server.

    A chat template adds tokens of its own; that offset cannot be told from one measurement, so it is taken as length.
    """
    return max(1, round(wanted_tokens * words / tokens)) if tokens > 0 else wanted_tokens


def body(api: Api, model: str, text: str, *, output_tokens: int, stream: bool = True, ignore_eos: bool = False) -> dict[str, Any]:
    """The JSON of one request: greedy, with usage in the stream; ignore_eos only where the server is vLLM."""
    document: dict[str, Any] = {"model": model, "max_tokens": output_tokens, "temperature": 0, "stream": stream}
    if api == "chat":
        document["messages"] = [{"role": "user", "content": text}]
    else:
        document["prompt"] = text
    if stream:
        document["stream_options"] = {"include_usage": True}
    if ignore_eos:
        document["ignore_eos"] = True
    return document


@dataclass
class Answer:
    """A streamed answer as it grows."""

    text: str = ""
    chunks: list[float] = field(default_factory=list)
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    error: str | None = None
    done: bool = False

    def take(self, data: str, at: float) -> None:
        """One `data:` event that arrived at time `at`."""
        if data == "[DONE]":
            self.done = True
            return
        try:
            document = json.loads(data)
        except ValueError:
            self.error = "the server sent an event that is no JSON"
            return
        if not isinstance(document, dict):
            self.error = "the server sent an event that is no object"
            return
        if document.get("error"):
            self.error = error_text(document) or "the server sent an error in the stream"
            return
        usage = document.get("usage") or {}
        self.prompt_tokens = usage.get("prompt_tokens", self.prompt_tokens)
        self.output_tokens = usage.get("completion_tokens", self.output_tokens)
        for choice in document.get("choices") or []:
            piece = content(choice)
            # vLLM sends chunks without text when a token is half a character: a token is one chunk all the same.
            if piece or (piece == "" and "text" in choice) or (piece == "" and _is_token(choice)):
                self.text += piece or ""
                self.chunks.append(at)


def content(choice: Mapping[str, Any]) -> str | None:
    """Text of a choice, of either API, streamed or not; reasoning counts as content."""
    if "text" in choice:
        return str(choice["text"] or "")
    part = choice.get("delta") or choice.get("message") or {}
    texts = [part.get("reasoning_content") or part.get("reasoning"), part.get("content")]
    return "".join(t for t in texts if t) if any(t is not None for t in texts) else None


def _is_token(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    return "role" not in delta and not choice.get("finish_reason")


class EventReader:
    """Bytes of a text/event-stream in, `data` of whole events out."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Events that end in this piece."""
        *lines, self._rest = (self._rest + data).replace(b"\r\n", b"\n").split(b"\n")
        return [line[5:].strip().decode("utf-8", "replace") for line in lines if line.startswith(b"data:")]


def error_text(document: Any) -> str | None:
    """What an OpenAI error body says."""
    if not isinstance(document, dict):
        return None
    error = document.get("error", document)
    if isinstance(error, dict):
        text = error.get("message") or error.get("detail")
        return str(text)[:300] if text else None
    return str(error)[:300]


def served_model(document: Any) -> tuple[str | None, bool]:
    """(first model of /v1/models, whether the server is vLLM)."""
    models = document.get("data") if isinstance(document, dict) else None
    if not isinstance(models, list) or not models:
        return None, False
    first = models[0]
    return first.get("id"), first.get("owned_by") == "vllm"
