# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kubelet's HTTP: logs and exec, in the form that `motley_lab.kube.kubelet_proxy` describes."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import fcntl
import json
import os
import pathlib
import struct
import termios
import typing

from aiohttp import WSMsgType, web

from .pods import Container, PodRunner

JSON = dict[str, typing.Any]
Handler = typing.Callable[[web.Request], typing.Awaitable[web.StreamResponse]]
STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255


def parse(line: bytes) -> tuple[str, bytes]:
    """Time and text of a line of a container's log; a part without end has no line break."""
    when, _, tag, text = (*line.split(b" ", 3), b"", b"", b"")[:4]
    return when.decode(), text + (b"\n" if tag == b"F" else b"")


class Server:
    def __init__(self, token: str, find: typing.Callable[[str, str], PodRunner | None]) -> None:
        self._token, self._find = token, find
        self.app = web.Application(middlewares=[self._authorise])
        self.app.router.add_get("/healthz", self._health)
        self.app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        self.app.router.add_get("/exec/{namespace}/{pod}/{container}", self._exec)

    @web.middleware
    async def _authorise(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {self._token}":
            return web.Response(status=401, text="Unauthorized")
        return await handler(request)

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    def _container(self, request: web.Request) -> tuple[PodRunner, Container]:
        pod, name = request.match_info["pod"], request.match_info["container"]
        runner = self._find(request.match_info["namespace"], pod)
        for container in (*runner.inits, *runner.mains) if runner else ():
            if runner and container.name == name:
                return runner, container
        raise web.HTTPNotFound(text=f'container "{name}" in pod "{pod}" not found')

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        runner, container = self._container(request)
        query, name, pod = request.query, container.name, request.match_info["pod"]
        previous = query.get("previous") == "true"
        path = runner.log(container, container.restarts - 1 if previous else container.restarts)
        if not previous and not path.exists():
            path = runner.log(container, container.restarts - 1)  # between two runs: the one that has ended
        if not path.exists():
            if previous:
                raise web.HTTPBadRequest(text=f'previous terminated container "{name}" in pod "{pod}" not found')
            reason = container.state.get("waiting", {}).get("reason", "ContainerCreating")
            raise web.HTTPBadRequest(text=f'container "{name}" in pod "{pod}" is waiting to start: {reason}')
        answer = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await answer.prepare(request)
        with contextlib.suppress(ConnectionError):
            await self._send(answer, query, path, container)
            await answer.write_eof()
        return answer

    async def _send(self, answer: web.StreamResponse, query: typing.Mapping[str, str], path: pathlib.Path, container: Container) -> None:
        left = int(query["limitBytes"]) if "limitBytes" in query else None
        running, position = container.running, 0
        since = ""
        if "sinceSeconds" in query:
            since = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=int(query["sinceSeconds"]))).strftime("%Y-%m-%dT%H:%M:%S")
        first = True
        while True:
            ended = running is None or running.ended or query.get("follow") != "true" or query.get("previous") == "true"
            with path.open("rb") as file:
                file.seek(position)
                data = file.read()
            data = data[: data.rfind(b"\n") + 1]
            position += len(data)
            entries = [(when, text) for when, text in map(parse, data.splitlines()) if when >= since]
            if first and "tailLines" in query:
                count = int(query["tailLines"])
                entries = entries[-count:] if count else []
            first = False
            out = b"".join((when.encode() + b" " if query.get("timestamps") == "true" else b"") + text for when, text in entries)
            out = out if left is None else out[:left]
            left = None if left is None else left - len(out)
            if out:
                await answer.write(out)
            if ended or left == 0:
                return
            await asyncio.sleep(0.2)

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        _, container = self._container(request)
        if container.running is None or container.running.ended:
            raise web.HTTPBadRequest(text=f"container not found (\"{container.name}\")")
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io", "v4.channel.k8s.io"), max_msg_size=0)
        await socket.prepare(request)
        session = Session(socket, flags={name for name in ("stdin", "stdout", "stderr", "tty") if request.query.get(name) in ("true", "1")})
        status = await session.run(container, request.query.getall("command"))
        with contextlib.suppress(ConnectionError):
            await socket.send_bytes(bytes([ERROR]) + json.dumps(status).encode())
            await socket.close(code=1000)
        return socket


class Session:
    """One exec: the streams between a WebSocket and a command."""

    def __init__(self, socket: web.WebSocketResponse, *, flags: set[str]) -> None:
        self._socket, self._flags = socket, flags
        self._master: int | None = None

    async def run(self, container: Container, command: list[str]) -> JSON:
        assert container.running is not None
        streams, slave = self._streams()
        try:
            process = await container.running.enter(command, tty="tty" in self._flags, **streams)
        except OSError as error:
            return {"metadata": {}, "status": "Failure", "reason": "InternalError", "message": str(error)}
        finally:
            if slave is not None:
                os.close(slave)
        feed = asyncio.create_task(self._feed(process))
        try:
            if self._master is not None:
                await self._from_terminal()
            else:
                outputs = ((STDOUT, process.stdout), (STDERR, process.stderr))
                await asyncio.gather(*(self._copy(channel, stream) for channel, stream in outputs if stream))
            code = await process.wait()
        finally:
            feed.cancel()
            if self._master is not None:
                os.close(self._master)
        if code == 0:
            return {"metadata": {}, "status": "Success"}
        code = 128 - code if code < 0 else code
        message = f"command terminated with non-zero exit code: exit status {code}"
        return {"metadata": {}, "status": "Failure", "message": message, "reason": "NonZeroExitCode",
                "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]}}  # fmt: skip

    def _streams(self) -> tuple[dict[str, typing.Any], int | None]:
        if "tty" in self._flags:
            self._master, slave = os.openpty()

            def own() -> None:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)

            return {"stdin": slave, "stdout": slave, "stderr": slave, "preexec_fn": own}, slave
        pipe, none = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        return {"stdin": pipe if "stdin" in self._flags else none, "stdout": pipe if "stdout" in self._flags else none,
                "stderr": pipe if "stderr" in self._flags else none}, None

    async def _copy(self, channel: int, stream: asyncio.StreamReader) -> None:
        while data := await stream.read(32768):
            with contextlib.suppress(ConnectionError):
                await self._socket.send_bytes(bytes([channel]) + data)

    async def _from_terminal(self) -> None:
        assert self._master is not None
        while True:
            try:
                data = await asyncio.to_thread(os.read, self._master, 32768)
            except OSError:
                return  # the other side of the terminal is closed
            if not data:
                return
            with contextlib.suppress(ConnectionError):
                await self._socket.send_bytes(bytes([STDOUT]) + data)

    async def _feed(self, process: asyncio.subprocess.Process) -> None:
        """Input and window sizes from the client; a client that goes away ends the command."""
        async for message in self._socket:
            if message.type != WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel == RESIZE and self._master is not None:
                size = json.loads(data)
                fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", size["Height"], size["Width"], 0, 0))
            elif channel == STDIN and self._master is not None:
                os.write(self._master, data)
            elif channel == STDIN and process.stdin:
                with contextlib.suppress(ConnectionError):
                    process.stdin.write(data)
                    await process.stdin.drain()
            elif channel == CLOSE and data[:1] == bytes([STDIN]) and process.stdin:
                process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
