# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a process bound to a lab device uses of it, left in a file for `nvidia-smi`: memory, and busy CPU time.

Standard library only: it runs in the lab's Python, in the engine's (a copy beside the platform plugin) and in the stub.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import pathlib
import threading
import time
import typing

FACTS = "/run/motley-lab/gpu.json"  # the devices this container may use, written by the kubelet
FOLDER = "/run/motley-lab/gpu"  # one file per process and device, shared by all containers of a node
PERIOD, WINDOW, STALE = 0.2, 1.0, 1.5


def devices(path: str = FACTS) -> list[dict[str, typing.Any]]:
    """The devices of this container, in the order of their indices."""
    try:
        found: list[dict[str, typing.Any]] = json.loads(pathlib.Path(path).read_text())["devices"]
    except (OSError, ValueError, KeyError):
        return []
    return found


def processes(uuid: str, *, folder: str = FOLDER, now: float | None = None) -> list[dict[str, typing.Any]]:
    """The living processes on a device; a file that is no longer renewed is of a dead one."""
    now = time.time() if now is None else now
    found = []
    for path in sorted(pathlib.Path(folder).glob(f"{uuid}.*.json")):
        with contextlib.suppress(OSError, ValueError):
            entry = json.loads(path.read_text())
            if now - entry["time"] <= STALE:
                found.append(entry)
    return found


class Meter:
    """Counts the CPU time that a process spends inside `busy()` and publishes its share of the last second."""

    def __init__(self, uuid: str, name: str, *, folder: str = FOLDER) -> None:
        self.memory = 0
        self._name, self._spent, self._since = name, 0.0, -1.0
        self._path = pathlib.Path(folder) / f"{uuid}.{os.getpid()}-{os.urandom(3).hex()}.json"
        self._samples: collections.deque[tuple[float, float]] = collections.deque()
        for left in self._path.parent.glob(f"{uuid}.*"):  # of processes that were killed
            with contextlib.suppress(OSError):
                if time.time() - left.stat().st_mtime > 10 * STALE:
                    left.unlink()
        threading.Thread(target=self._run, daemon=True, name="motley-lab-meter").start()

    @contextlib.contextmanager
    def busy(self) -> typing.Iterator[None]:
        self._since = time.process_time()
        try:
            yield
        finally:
            self._spent, self._since = self._spent + time.process_time() - self._since, -1.0

    def utilisation(self, now: float) -> int:
        """Percent of the last second spent busy; a step still running counts with what it has used so far."""
        since = self._since
        spent = self._spent + (time.process_time() - since if since >= 0 else 0.0)
        self._samples.append((now, spent))
        while len(self._samples) > 2 and now - self._samples[1][0] >= WINDOW:
            self._samples.popleft()
        start, before = self._samples[0]
        share = (spent - before) / max(now - start, PERIOD)
        return min(100, round(100 * share)) if share > 0 else 0

    def _run(self) -> None:
        while True:
            now = time.monotonic()
            entry = {"pid": os.getpid(), "name": self._name, "memory": self.memory, "time": time.time(),
                     "utilisation": self.utilisation(now)}
            with contextlib.suppress(OSError):  # no such folder: a process outside the lab's containers
                scratch = self._path.with_suffix(".tmp")
                scratch.write_text(json.dumps(entry))
                scratch.replace(self._path)
            time.sleep(PERIOD)
