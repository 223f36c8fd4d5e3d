# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model hub for `HF_ENDPOINT`: the calls that `huggingface_hub` makes to look at a model and to download it."""

from __future__ import annotations

import asyncio
import functools
import hashlib
from pathlib import Path
from typing import Any

from aiohttp import web

from motley_lab import faults

MODEL = "motley/lab-llama-28l"
_CHUNK = 1 << 20
_BIG = ".safetensors"  # kept by content hash on the real hub


@functools.lru_cache(maxsize=256)
def _hash(path: str, size: int, changed: int) -> str:
    """The entity tag of a file: sha256 of a big one, git's blob hash of a small one."""
    file = Path(path)
    if file.suffix == _BIG:
        with file.open("rb") as data:
            return hashlib.file_digest(data, "sha256").hexdigest()
    content = file.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def entity_tag(file: Path) -> str:
    facts = file.stat()
    return _hash(str(file), facts.st_size, facts.st_mtime_ns)


class Hub:
    """Models by name: the lab's own, and any folder ORGANISATION/NAME below `services/hub/` of the lab."""

    def __init__(self, lab_dir: Path, model_dir: Path) -> None:
        self._lab = lab_dir
        self._own = model_dir

    def _folder(self, request: web.Request) -> Path:
        name = f"{request.match_info['organisation']}/{request.match_info['name']}"
        folder = self._own if name == MODEL else self._lab / "services" / "hub" / name
        if not folder.is_dir() or ".." in name:
            raise _refusal(404, "RepoNotFound", f"Repository {name} not found")
        self._refuse_gated(request, name)
        return folder

    def _refuse_gated(self, request: web.Request, name: str) -> None:
        gate = faults.active(self._lab, "hub-gated")
        if gate is None:
            return
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme != "Bearer" or not token:
            text = f"Access to model {name} is restricted. You must have access to it and be authenticated to access it."
            raise _refusal(401, "GatedRepo", text)
        if gate.get("token", token) != token:
            raise _refusal(403, "GatedRepo", f"Access to model {name} is restricted and you are not in the authorized list.")

    @staticmethod
    def _files(folder: Path) -> list[Path]:
        return sorted(file for file in folder.rglob("*") if file.is_file())

    async def _commit(self, folder: Path) -> str:
        """A revision follows from the content, as in git."""

        def compute() -> str:
            lines = [f"{file.relative_to(folder)} {entity_tag(file)}" for file in self._files(folder)]
            return hashlib.sha1("\n".join(lines).encode(), usedforsecurity=False).hexdigest()

        return await asyncio.to_thread(compute)

    async def _revision(self, request: web.Request, folder: Path) -> str:
        commit = await self._commit(folder)
        if request.match_info.get("revision", "main") not in ("main", commit):
            raise _refusal(404, "RevisionNotFound", f"Invalid rev id: {request.match_info['revision']}")
        return commit

    async def info(self, request: web.Request) -> web.Response:
        folder = self._folder(request)
        commit = await self._revision(request, folder)
        name = f"{request.match_info['organisation']}/{request.match_info['name']}"
        siblings = [{"rfilename": str(file.relative_to(folder))} for file in self._files(folder)]
        gated = "auto" if faults.active(self._lab, "hub-gated") else False
        body = {"_id": commit[:24], "id": name, "modelId": name, "sha": commit, "private": False, "gated": gated,
                "disabled": False, "tags": ["safetensors", "llama"], "siblings": siblings}  # fmt: skip
        return web.json_response(body)

    async def tree(self, request: web.Request) -> web.Response:
        folder = self._folder(request)
        await self._revision(request, folder)
        return web.json_response([await asyncio.to_thread(_entry, folder, file) for file in self._files(folder)])

    async def resolve(self, request: web.Request) -> web.StreamResponse:
        folder = self._folder(request)
        commit = await self._revision(request, folder)
        file = (folder / request.match_info["path"]).resolve()
        if not file.is_relative_to(folder.resolve()) or not file.is_file():
            raise _refusal(404, "EntryNotFound", "Entry not found")
        tag = await asyncio.to_thread(entity_tag, file)
        size = file.stat().st_size
        headers = {"ETag": f'"{tag}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if file.suffix == _BIG:
            headers |= {"X-Linked-ETag": f'"{tag}"', "X-Linked-Size": str(size)}
        return await _send(request, file, size, headers)


def _refusal(status: int, code: str, text: str) -> web.HTTPException:
    class Refusal(web.HTTPException):
        status_code = status

    return Refusal(text=text, headers={"X-Error-Code": code, "X-Error-Message": text})


def _entry(folder: Path, file: Path) -> dict[str, Any]:
    size, tag = file.stat().st_size, entity_tag(file)
    entry: dict[str, Any] = {"type": "file", "path": str(file.relative_to(folder)), "size": size, "oid": tag[:40]}
    return {**entry, "lfs": {"oid": tag, "size": size, "pointerSize": 134}} if file.suffix == _BIG else entry


async def _send(request: web.Request, file: Path, size: int, headers: dict[str, str]) -> web.StreamResponse:
    """The file or the asked range of it; for HEAD the headers alone."""
    try:
        span = request.http_range
        start, stop, step = span.indices(size) if span != slice(None, None, 1) else (0, size, 1)
    except ValueError:
        start, stop = size, size
    partial = "Range" in request.headers
    if partial and start >= size:
        return web.Response(status=416, headers={**headers, "Content-Range": f"bytes */{size}"})
    if partial:
        headers = {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{size}"}
    response = web.StreamResponse(status=206 if partial else 200, headers=headers)
    response.content_type = "application/json" if file.suffix == ".json" else "application/octet-stream"
    response.content_length = stop - start
    await response.prepare(request)
    if request.method != "HEAD":
        with file.open("rb") as data:
            data.seek(start)
            while start < stop and (chunk := data.read(min(_CHUNK, stop - start))):
                await response.write(chunk)
                start += len(chunk)
    await response.write_eof()
    return response
