# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The objects, their history for watches, and the snapshot that survives a restart."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import json
import pathlib
from collections.abc import Iterator

from motley_lab.kube.errors import Json

Key = tuple[str, str]
"""(namespace, name); the namespace of a cluster-scoped object is empty."""

_HISTORY = 2000
_SAVE_AFTER_S = 0.05
_REVISIONS_PER_START = 1000


@dataclasses.dataclass(frozen=True)
class Change:
    revision: int
    resource: str
    """group/plural"""
    document: Json
    old: Json | None
    deleted: bool = False


class Store:
    """Objects are never changed in place: every write replaces one, so readers may keep what they got."""

    def __init__(self, path: pathlib.Path | None = None) -> None:
        self.revision = 100
        self.objects: dict[str, dict[Key, Json]] = {}
        self._history: collections.deque[Change] = collections.deque(maxlen=_HISTORY)
        self._watchers: set[asyncio.Queue[Change]] = set()
        self._path = path
        self._save: asyncio.TimerHandle | None = None
        if path is not None and path.exists():
            saved = json.loads(path.read_text())
            # A snapshot may be one write older than what clients saw: never give out a revision twice.
            self.revision = saved["revision"] + _REVISIONS_PER_START
            for resource, documents in saved["objects"].items():
                self.objects[resource] = {self._key(document): document for document in documents}
        self._oldest = self.revision

    @staticmethod
    def _key(document: Json) -> Key:
        return document["metadata"].get("namespace", ""), document["metadata"]["name"]

    def get(self, resource: str, namespace: str, name: str) -> Json | None:
        return self.objects.get(resource, {}).get((namespace, name))

    def all(self, resource: str, namespace: str = "") -> list[Json]:
        found = self.objects.get(resource, {})
        return [document for key, document in sorted(found.items()) if not namespace or key[0] == namespace]

    def put(self, resource: str, document: Json) -> Json:
        """Store a new or changed object; returns it with its revision."""
        self.revision += 1
        document = {**document, "metadata": {**document["metadata"], "resourceVersion": str(self.revision)}}
        kept = self.objects.setdefault(resource, {})
        old = kept.get(self._key(document))
        kept[self._key(document)] = document
        self._publish(Change(self.revision, resource, document, old))
        return document

    def delete(self, resource: str, document: Json) -> Json:
        self.revision += 1
        old = self.objects[resource].pop(self._key(document))
        last = {**document, "metadata": {**document["metadata"], "resourceVersion": str(self.revision)}}
        self._publish(Change(self.revision, resource, last, old, deleted=True))
        return last

    def _publish(self, change: Change) -> None:
        if len(self._history) == _HISTORY:
            self._oldest = self._history[0].revision
        self._history.append(change)
        for queue in self._watchers:
            queue.put_nowait(change)
        if self._path is not None and self._save is None:
            self._save = asyncio.get_running_loop().call_later(_SAVE_AFTER_S, self.save)

    def since(self, revision: int) -> list[Change] | None:
        """Changes after a revision; None where they are forgotten."""
        if revision < self._oldest:
            return None
        return [change for change in self._history if change.revision > revision]

    def subscribe(self) -> asyncio.Queue[Change]:
        queue: asyncio.Queue[Change] = asyncio.Queue()
        self._watchers.add(queue)
        return queue

    def unsubscribe(self, queue: asyncio.Queue[Change]) -> None:
        self._watchers.discard(queue)

    def everything(self) -> Iterator[tuple[str, Json]]:
        for resource, documents in list(self.objects.items()):
            for document in list(documents.values()):
                yield resource, document

    def save(self) -> None:
        """Write the snapshot: complete under another name first, so that a kill leaves the old or the new one."""
        self._save = None
        if self._path is None:
            return
        kept = {resource: list(documents.values()) for resource, documents in self.objects.items() if documents}
        temporary = self._path.with_suffix(".new")
        temporary.touch(mode=0o600)
        temporary.write_text(json.dumps({"revision": self.revision, "objects": kept}, separators=(",", ":")))
        temporary.replace(self._path)
