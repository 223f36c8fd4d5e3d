# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A small asynchronous Kubernetes client, and caches fed by watches, for scheduler and controllers."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import json
import pathlib
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import yaml

Json = dict[str, Any]
_RETRY_S = 0.5
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
"""For conditions: others write theirs into the same list."""


class ClientError(Exception):
    def __init__(self, status: int, document: Any) -> None:
        self.status = status
        self.message = document.get("message", "") if isinstance(document, dict) else str(document)
        super().__init__(f"{status}: {self.message}")


class Client:
    def __init__(self, server: str, *, context: ssl.SSLContext, token: str = "", agent: str) -> None:
        self.server = server
        headers = {"User-Agent": agent, **({"Authorization": f"Bearer {token}"} if token else {})}
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, limit=0), headers=headers,
                                              timeout=aiohttp.ClientTimeout(total=None, sock_connect=5))

    async def call(self, method: str, path: str, body: Json | None = None, *, kind: str = "application/json") -> Json:
        data = None if body is None else json.dumps(body).encode()
        async with self._session.request(method, self.server + path, data=data, headers={"Content-Type": kind},
                                         timeout=aiohttp.ClientTimeout(total=10)) as answer:
            document = await answer.json(content_type=None) if "json" in answer.content_type else await answer.text()
            if answer.status >= 400:
                raise ClientError(answer.status, document)
            return document if isinstance(document, dict) else {}

    async def watch(self, path: str, revision: str) -> AsyncIterator[Json]:
        async with self._session.get(f"{self.server}{path}?watch=true&allowWatchBookmarks=true&resourceVersion={revision}") as answer:
            if answer.status >= 400:
                raise ClientError(answer.status, await answer.text())
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield json.loads(line)

    async def event(self, about: Json, kind: str, reason: str, message: str, *, action: str, component: str) -> None:
        """An event about an object; that it cannot be written is no reason to stop."""
        meta = about["metadata"]
        namespace = meta.get("namespace", "default")
        moment = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        regarding = {"kind": about["kind"], "namespace": meta.get("namespace", ""), "name": meta["name"], "uid": meta.get("uid", ""),
                     "apiVersion": about["apiVersion"], "resourceVersion": meta.get("resourceVersion", "")}
        body = {"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": f"{meta['name']}.{time.time_ns():x}", "namespace": namespace},
                "eventTime": moment, "type": kind, "reason": reason, "note": message, "action": action, "regarding": regarding,
                "reportingController": component, "reportingInstance": f"{component}-lab"}
        with contextlib.suppress(ClientError):
            await self.call("POST", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events", body)

    async def close(self) -> None:
        await self._session.close()


class Cache:
    """All objects of one resource, kept current by a watch; `changed` is set whenever one changes."""

    def __init__(self, client: Client, path: str, api_version: str, kind: str) -> None:
        self.path, self.ready, self.changed = path, asyncio.Event(), asyncio.Event()
        self._client, self._type = client, {"apiVersion": api_version, "kind": kind}
        self._items: dict[tuple[str, str], Json] = {}

    def __iter__(self) -> Iterator[Json]:
        return iter([entry for _, entry in sorted(self._items.items())])

    def get(self, namespace: str, name: str) -> Json | None:
        return self._items.get((namespace, name))

    def url(self, document: Json, sub: str = "") -> str:
        meta = document["metadata"]
        root, _, plural = self.path.rpartition("/")
        where = f"{root}/namespaces/{meta['namespace']}/{plural}" if meta.get("namespace") else self.path
        return f"{where}/{meta['name']}{sub}"

    def assume(self, document: Json) -> None:
        """Take a write's own answer for true before the watch brings it: else the same thing would be done twice."""
        meta = document["metadata"]
        waits = meta.get("finalizers") or meta.get("deletionGracePeriodSeconds") or self._type["kind"] == "Namespace"
        if "deletionTimestamp" in meta and not waits:
            self.forget(document)
        else:
            self._take(document, force=True)

    def forget(self, document: Json) -> None:
        self._items.pop((document["metadata"].get("namespace", ""), document["metadata"]["name"]), None)
        self.changed.set()

    def _take(self, document: Json, *, force: bool = False) -> None:
        meta = document["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        old = self._items.get(key)
        if force or old is None or int(meta["resourceVersion"]) >= int(old["metadata"]["resourceVersion"]):
            self._items[key] = {**self._type, **document}
            self.changed.set()

    async def run(self) -> None:
        while True:
            try:
                listed = await self._client.call("GET", self.path)
                self._items = {}
                for entry in listed["items"]:
                    self._take(entry, force=True)
                self.ready.set()
                self.changed.set()
                await self._follow(listed["metadata"]["resourceVersion"])
            except (ClientError, aiohttp.ClientError, OSError, TimeoutError, ValueError):
                await asyncio.sleep(_RETRY_S)

    async def _follow(self, revision: str) -> None:
        while True:
            async for event in self._client.watch(self.path, revision):
                revision = event["object"].get("metadata", {}).get("resourceVersion", revision)
                match event["type"]:
                    case "ADDED" | "MODIFIED":
                        self._take(event["object"])
                    case "DELETED":
                        self.forget(event["object"])
                    case "ERROR":
                        return


def from_kubeconfig(path: pathlib.Path, agent: str) -> Client:
    """A client for the current context of a kubeconfig."""
    config = yaml.safe_load(path.read_text())

    def named(kind: str, name: str) -> Json:
        return next(entry[kind] for entry in config[f"{kind}s"] if entry["name"] == name)

    current = named("context", config["current-context"])
    cluster, user = named("cluster", current["cluster"]), named("user", current["user"])

    def text(source: Json, key: str) -> str:
        data = source.get(f"{key}-data")
        return base64.b64decode(data).decode() if data else (path.parent / source[key]).read_text() if source.get(key) else ""

    context = ssl.create_default_context(cadata=text(cluster, "certificate-authority") or None)
    if text(user, "client-certificate"):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(text(user, "client-certificate") + "\n" + text(user, "client-key"))
            file.flush()
            context.load_cert_chain(file.name)
    return Client(cluster["server"], context=context, token=user.get("token", ""), agent=agent)
