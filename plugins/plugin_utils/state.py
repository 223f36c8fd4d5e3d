# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state directory: the only thing that carries data from one role to the next."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError

# Fact in nodes.json: a run has made this machine restart and has not seen it come back.
RESTARTING = "restarting"
CHECK = "check"


class StateDirectory:
    """Files of one cluster: directory 0700, files 0600, each written under a temporary name, synced and renamed.

    In check mode every write goes below `check/`, and reads look there first. Writing nothing new is no write.
    """

    def __init__(self, path: str | Path, *, check_mode: bool = False) -> None:
        if not str(path):
            raise MotleyError("motley_state_dir is empty", hint="set motley_state_dir to a directory that stays, beside the inventory")
        self.root = Path(os.path.normpath(Path(path).expanduser().absolute()))      # not resolved: a link stays a link
        self.check_mode = check_mode

    # -- reading ---------------------------------------------------------------------------------------------------
    def path(self, name: str) -> Path:
        """Where name is (or would be) for real; in check mode a file that this run rendered is preferred."""
        rendered = self.root / CHECK / name
        return rendered if self.check_mode and rendered.exists() else self.root / name

    def exists(self, name: str) -> bool:
        return self.path(name).exists()

    def read_text(self, name: str) -> str | None:
        try:
            return self.path(name).read_text()
        except FileNotFoundError:
            return None

    def read_json(self, name: str) -> Any:
        """The document, or None when there is no such file."""
        text = self.read_text(name)
        if text is None:
            return None
        try:
            return json.loads(text)
        except ValueError as error:
            raise MotleyError(f"{self.path(name)} is no JSON: {error}", hint="move it away and run --tags plan again") from error

    # -- writing ---------------------------------------------------------------------------------------------------
    def write_text(self, name: str, text: str) -> bool:
        """Write it if it differs from what a reader sees now; returns whether it did. In check mode it is rendered in any case."""
        target = self.root / CHECK / name if self.check_mode else self.root / name
        with self._guard():
            seen = self.path(name)
            same = seen.exists() and seen.read_bytes() == text.encode()
            if same and seen == target:
                os.chmod(target, 0o600)
                return False
            self._directory(target.parent)
            handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
            try:
                with os.fdopen(handle, "w") as stream:
                    stream.write(text)
                    stream.flush()
                    os.fsync(stream.fileno())
                os.replace(temporary, target)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
                raise
        return not same

    def write_json(self, name: str, document: Any) -> bool:
        return self.write_text(name, json.dumps(document, indent=2, sort_keys=True) + "\n")

    def remove(self, name: str) -> bool:
        """Remove a file of this run's view; returns whether it was there."""
        target = self.root / CHECK / name if self.check_mode else self.root / name
        with self._guard():
            if not target.exists():
                return False
            target.unlink()
        return True

    def update_json(self, name: str, change: Any) -> bool:
        """Read, let change(document or {}) return the new one, write; under the lock, so two hosts do not lose updates."""
        with self._guard():
            return self.write_json(name, change(self.read_json(name) or {}))

    # -- what was found out per node -------------------------------------------------------------------------------
    def node_facts(self, node: str) -> dict[str, Any]:
        """{fact: value} of a node from nodes.json."""
        return {name: fact["value"] for name, fact in (self.read_json("nodes.json") or {}).get(node, {}).items()}

    def record_facts(self, node: str, facts: Mapping[str, Any], *, source: str) -> bool:
        """Put facts into nodes.json with source and time; a fact whose value is the same keeps its old time."""
        def change(document: dict[str, Any]) -> dict[str, Any]:
            known = document.setdefault(node, {})
            for name, value in facts.items():
                if name not in known or known[name]["value"] != value:
                    known[name] = {"value": value, "source": source, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
            return document
        return self.update_json("nodes.json", change)

    # -- check mode ------------------------------------------------------------------------------------------------
    def empty_check(self) -> None:
        """Start of a check run: nothing of the last one is left."""
        shutil.rmtree(self.root / CHECK, ignore_errors=True)

    # -- locks -----------------------------------------------------------------------------------------------------
    def claim(self, owner: int) -> None:
        """Take the run lock for the process `owner` (ansible-playbook); another living owner is refused by name.

        It is not given back: a dead owner holds nothing.
        """
        with self._guard():
            held = self._holder()
            if held and held["pid"] != owner and _alive(held):
                raise MotleyError(f"another run works on {self.root}: process {held['pid']} on {held['host']} since {held['since']}",
                                  hint="wait for it to end, or stop it; a run that died holds nothing")
            if not held or held["pid"] != owner or held["host"] != socket.gethostname():
                mine = {"pid": owner, "host": socket.gethostname(), "started": _started(owner),
                        "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
                (self.root / ".lock").write_text(json.dumps(mine) + "\n")

    def _holder(self) -> dict[str, Any] | None:
        try:
            held = json.loads((self.root / ".lock").read_text())
            return held if isinstance(held, dict) and "pid" in held else None
        except (FileNotFoundError, ValueError):
            return None

    def _directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        for directory in (self.root, path):
            os.chmod(directory, 0o700)

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        """Short exclusive section around a write; re-entrant within one object."""
        if getattr(self, "_depth", 0):
            yield
            return
        self._directory(self.root)
        handle = os.open(self.root / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            self._depth = 1
            yield
        finally:
            self._depth = 0
            os.close(handle)


def _started(pid: int) -> str | None:
    """Start time of a process as Linux tells it (so that a reused pid is not taken for the same process)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        return None


def _alive(held: Mapping[str, Any]) -> bool:
    if held.get("host") != socket.gethostname():
        return True      # cannot see it from here: believe it
    try:
        os.kill(int(held["pid"]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return held.get("started") is None or held["started"] == _started(int(held["pid"]))
