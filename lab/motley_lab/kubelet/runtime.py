# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The container runtime: one bubblewrap per container, its output in the kubelet's log form, its signals and its exit."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import os
import pathlib
import shutil
import signal
import typing

JSON = dict[str, typing.Any]
_READ = 65536
# Of /etc what programs need; the folder itself stays writable, so that a Pod can mount below it.
_ETC = ("passwd", "group", "nsswitch.conf", "protocols", "services", "localtime", "ssl", "ca-certificates", "ld.so.cache", "ld.so.conf",
        "ld.so.conf.d", "alternatives", "mime.types", "os-release", "terminfo")


def root_view(*, hostname: str, hosts: pathlib.Path, share_ipc: bool = False) -> list[str]:
    """bubblewrap's arguments for what every container has: own root, PID, UTS and IPC namespace, `/proc`, `/dev`, `/tmp`."""
    return [
        "bwrap", "--unshare-pid", "--unshare-uts", *([] if share_ipc else ["--unshare-ipc"]), "--hostname", hostname, "--die-with-parent",
        "--ro-bind", "/usr", "/usr", *(word for name in ("bin", "sbin", "lib", "lib64") for word in _system(name)),
        *(word for name in _ETC if (path := f"/etc/{name}") and os.path.exists(path) for word in ("--ro-bind", path, path)),
        "--ro-bind", str(hosts), "/etc/hosts", "--proc", "/proc", "--dev", "/dev", "--ro-bind", "/sys", "/sys",
        "--dir", "/var/log", "--dir", "/opt", "--tmpfs", "/root", "--tmpfs", "/tmp", "--tmpfs", "/run",
    ]  # fmt: skip


def _system(name: str) -> list[str]:
    """/bin and its like are links into /usr, or folders of their own on older systems."""
    path = pathlib.Path("/", name)
    if path.is_symlink() or not path.exists():
        return ["--symlink", f"usr/{name}", f"/{name}"]
    return ["--ro-bind", str(path), str(path)]


class Running:
    """A started container."""

    def __init__(self, process: asyncio.subprocess.Process, init: int, *, environment: dict[str, str], folder: str, log: pathlib.Path) -> None:
        self.init, self.environment, self.folder, self.log = init, environment, folder, log
        self._process, self._tail = process, b""
        self._file = log.open("ab")
        self._pumps = [asyncio.create_task(self._pump(name, stream)) for name, stream in (("stdout", process.stdout), ("stderr", process.stderr))]
        self._end = asyncio.create_task(self._wait())

    @classmethod
    async def start(cls, view: list[str], command: list[str], *, environment: dict[str, str], folder: str, log: pathlib.Path) -> Running:
        """The environment goes to bubblewrap itself and so to the command, never onto a command line."""
        log.parent.mkdir(parents=True, exist_ok=True)
        read, write = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *view, "--chdir", folder, "--info-fd", str(write), "--", *command, env=environment, pass_fds=(write,), start_new_session=True,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )
        finally:
            os.close(write)
        with open(read, "rb") as pipe:
            text = await asyncio.to_thread(pipe.read)
        init = json.loads(text)["child-pid"] if text else 0
        return cls(process, init, environment=environment, folder=folder, log=log)

    async def _pump(self, name: str, stream: asyncio.StreamReader | None) -> None:
        """Write whole lines with their time, as `/var/log/pods` has them; a very long line in parts."""
        assert stream is not None
        pending = b""
        while chunk := await stream.read(_READ):
            self._tail = (self._tail + chunk)[-2048:]
            *lines, pending = (pending + chunk).split(b"\n")
            self._write(name, [(line, "F") for line in lines])
            if len(pending) > 16384:
                self._write(name, [(pending, "P")])
                pending = b""
        if pending:
            self._write(name, [(pending, "F")])

    def _write(self, name: str, lines: list[tuple[bytes, str]]) -> None:
        when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
        for line, tag in lines:
            self._file.write(f"{when} {name} {tag} ".encode() + line + b"\n")
        self._file.flush()

    async def _wait(self) -> int:
        code = await self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            if self.init:
                os.kill(self.init, signal.SIGKILL)  # what the command left behind goes with its namespace
        await asyncio.wait(self._pumps, timeout=5)
        for pump in self._pumps:
            pump.cancel()
        self._file.close()
        return 128 - code if code < 0 else code

    async def wait(self) -> int:
        return await asyncio.shield(self._end)

    @property
    def ended(self) -> bool:
        return self._end.done()

    @property
    def not_started(self) -> str:
        """Why the command could not be started, in the runtime's words; empty if it was."""
        line = self._tail.strip().rpartition(b"\n")[2].decode(errors="replace")
        if not line.startswith("bwrap: "):
            return ""
        if line.startswith("bwrap: execvp "):
            name, _, cause = line.removeprefix("bwrap: execvp ").partition(": ")
            missing = "No such file" in cause and "/" not in name
            line = f'exec: "{name}": ' + ("executable file not found in $PATH" if missing else f"stat {name}: {cause.lower()}")
        return ("failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start "
                f"container process: error during container init: {line.removeprefix('bwrap: ')}: unknown")

    def signal(self, number: int) -> None:
        """To the command itself: bubblewrap, PID 1 of the container, would drop it."""
        with contextlib.suppress(OSError, ValueError):
            for child in pathlib.Path(f"/proc/{self.init}/task/{self.init}/children").read_text().split()[:1]:
                os.kill(int(child), number)

    async def stop(self, grace: float) -> int:
        self.signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(self.wait(), timeout=max(grace, 0.05))
        return await self.kill()

    async def kill(self) -> int:
        for pid in (self.init, self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                if pid:
                    os.kill(pid, signal.SIGKILL)
        return await self.wait()

    async def enter(self, command: list[str], **streams: typing.Any) -> asyncio.subprocess.Process:
        """Run a command inside, with the container's environment and working directory."""
        inside = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', self.folder, *command] if self.folder != "/" else command
        environment = self.environment | ({"TERM": "xterm"} if streams.pop("tty", False) else {})
        nsenter = [shutil.which("nsenter") or "nsenter", "-t", str(self.init), "-m", "-u", "-i", "-n", "-p", "--"]
        return await asyncio.create_subprocess_exec(*nsenter, *inside, env=environment, start_new_session=True, **streams)
