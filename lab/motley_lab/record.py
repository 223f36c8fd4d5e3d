# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's request record: one JSON line for every request that any stand-in answers.

Tests read it to prove what was written. Every server, in whatever process, appends to the same file; a line goes out
in one `write` on a descriptor opened with O_APPEND, so lines of different processes never mix.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FILE = "requests.jsonl"
FIELDS = ("time", "server", "node", "method", "path", "dry_run", "agent", "status")
READS = frozenset({"GET", "HEAD", "OPTIONS"})


def record(
    lab_dir: str | os.PathLike[str], *, server: str, method: str, path: str, status: int,
    node: str | None = None, dry_run: bool = False, agent: str = "", **more: Any,
) -> None:  # fmt: skip
    """Append one request. A lab that is being taken down has no directory any more: that is not an error."""
    values = (round(time.time(), 3), server, node, method, path, dry_run, agent, status)
    line = {**dict(zip(FIELDS, values, strict=True)), **more}
    data = (json.dumps(line, separators=(",", ":"), default=str) + "\n").encode()
    try:
        descriptor = os.open(Path(lab_dir) / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except FileNotFoundError:
        return
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def read(lab_dir: str | os.PathLike[str], *, since: float = 0.0) -> Iterator[dict[str, Any]]:
    """The recorded requests, oldest first; a line that is still being written is left out."""
    path = Path(lab_dir) / FILE
    if not path.exists():
        return
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if not line.endswith("\n"):
                return
            entry = json.loads(line)
            if entry["time"] >= since:
                yield entry


def writes(lab_dir: str | os.PathLike[str], *, since: float = 0.0) -> list[dict[str, Any]]:
    """Requests that may have changed something: neither reads nor dry runs."""
    return [entry for entry in read(lab_dir, since=since) if entry["method"] not in READS and not entry["dry_run"]]
