# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one place that starts other programs."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Done:
    """How a command ended. rc is 124 when it was stopped at its time limit, 127 when it does not exist."""

    argv: tuple[str, ...]
    rc: int
    stdout: bytes
    stderr: bytes
    seconds: float

    @property
    def out(self) -> str:
        return self.stdout.decode(errors="replace")

    @property
    def err(self) -> str:
        return self.stderr.decode(errors="replace")


class Runner(Protocol):
    """What clients need of a process runner; tests give a fake."""

    def __call__(self, argv: Sequence[str], *, timeout: float = 60.0, env: Mapping[str, str] | None = None,
                 stdin: bytes | None = None, cwd: str | None = None) -> Done: ...


def die_with_parent(number: int = signal.SIGTERM) -> None:
    """Ask Linux to signal this process when its parent dies; nothing to ask elsewhere.

    Ansible's forked worker otherwise survives a SIGKILL or SIGHUP of ansible-playbook and goes on working.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def run(argv: Sequence[str], *, timeout: float = 60.0, env: Mapping[str, str] | None = None,
        stdin: bytes | None = None, cwd: str | None = None) -> Done:
    """Run a command given as a list and wait for it, at most timeout seconds; env is added to our own environment."""
    started = time.monotonic()
    parent = os.getpid()

    def tie() -> None:
        die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:      # it died between fork and prctl
            os._exit(125)

    try:
        done = subprocess.run(list(argv), input=stdin if stdin is not None else b"", capture_output=True, timeout=timeout,
                              env={**os.environ, **(env or {})}, cwd=cwd, check=False,
                              preexec_fn=tie if sys.platform == "linux" else None)
        rc, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        rc, out, err = 124, error.stdout or b"", (error.stderr or b"") + f"\nno end after {timeout:g} s".encode()
    except FileNotFoundError:
        rc, out, err = 127, b"", f"{argv[0]}: command not found".encode()
    return Done(tuple(argv), rc, out, err, time.monotonic() - started)
