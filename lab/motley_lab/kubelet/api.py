# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The few verbs of the Kubernetes API that a kubelet needs, over aiohttp and a kubeconfig."""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import pathlib
import ssl
import tempfile
import typing

import aiohttp
import yaml

MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
JSON = dict[str, typing.Any]


class ApiError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _named(entries: list[JSON], name: str, kind: str) -> JSON:
    found: JSON = next(entry[kind] for entry in entries if entry["name"] == name)
    return found


class Api:
    """One connection to the API server that the kubeconfig's current context names."""

    def __init__(self, kubeconfig: pathlib.Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        context = _named(config["contexts"], config["current-context"], "context")
        cluster, user = _named(config["clusters"], context["cluster"], "cluster"), _named(config["users"], context["user"], "user")
        self.server = cluster["server"].rstrip("/")
        self._headers = {"User-Agent": "kubelet/motley-lab"}
        if "token" in user:
            self._headers["Authorization"] = f"Bearer {user['token']}"
        self._ssl = self._context(cluster, user) if self.server.startswith("https") else None
        self._session: aiohttp.ClientSession | None = None

    @staticmethod
    def _context(cluster: JSON, user: JSON) -> ssl.SSLContext:
        authority = cluster.get("certificate-authority-data")
        context = ssl.create_default_context(
            cafile=cluster.get("certificate-authority"), cadata=base64.b64decode(authority).decode() if authority else None
        )
        if cluster.get("insecure-skip-tls-verify"):
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if "client-certificate-data" in user:
            with tempfile.NamedTemporaryFile() as file:
                file.write(base64.b64decode(user["client-certificate-data"]) + b"\n" + base64.b64decode(user["client-key-data"]))
                file.flush()
                context.load_cert_chain(file.name)
        elif "client-certificate" in user:
            context.load_cert_chain(user["client-certificate"], user["client-key"])
        return context

    async def open(self) -> None:
        connector = aiohttp.TCPConnector(ssl=self._ssl if self._ssl is not None else True)
        self._session = aiohttp.ClientSession(connector=connector, headers=self._headers)

    async def close(self) -> None:
        if self._session:
            await self._session.close()

    async def request(self, method: str, path: str, *, body: JSON | None = None, kind: str = "application/json",
                      params: dict[str, str] | None = None) -> JSON:
        assert self._session is not None
        data = None if body is None else json.dumps(body)
        async with self._session.request(method, self.server + path, data=data, params=params, headers={"Content-Type": kind},
                                         timeout=aiohttp.ClientTimeout(total=15)) as answer:
            text = await answer.text()
            if answer.status >= 400:
                with contextlib.suppress(ValueError, TypeError):
                    text = json.loads(text)["message"]
                raise ApiError(answer.status, text)
            found: JSON = json.loads(text) if text else {}
            return found

    async def get(self, path: str, **params: str) -> JSON:
        return await self.request("GET", path, params=params)

    async def watch(self, path: str, **params: str) -> typing.AsyncIterator[tuple[str, JSON]]:
        """Events until the server ends the stream; an ERROR event (too old a version) raises."""
        assert self._session is not None
        timeout = aiohttp.ClientTimeout(total=None, sock_read=330)
        async with self._session.get(self.server + path, params={**params, "watch": "true", "timeoutSeconds": "300"}, timeout=timeout) as answer:
            if answer.status >= 400:
                raise ApiError(answer.status, await answer.text())
            pending = b""
            async for chunk in answer.content.iter_any():
                *lines, pending = (pending + chunk).split(b"\n")
                for line in filter(None, lines):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise ApiError(int(event["object"].get("code", 410)), str(event["object"].get("message")))
                    yield event["type"], event["object"]


class Events:
    """Events about Pods as the kubelet writes them: the same one again only raises the count."""

    def __init__(self, api: Api, node: str) -> None:
        self._api, self._node = api, node
        self._seen: dict[tuple[str, str, str], tuple[str, int]] = {}

    async def add(self, pod: JSON, reason: str, message: str, *, warning: bool = False, container: str = "", kind: str = "containers") -> None:
        meta, when = pod["metadata"], now()
        folder = f"/api/v1/namespaces/{meta['namespace']}/events"
        key = (meta["uid"] + container, reason, message)
        about = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]}
        if container:
            about["fieldPath"] = f"spec.{kind}{{{container}}}"
        with contextlib.suppress(ApiError, aiohttp.ClientError, TimeoutError):  # an event is never worth a failure
            if key in self._seen:
                name, count = self._seen[key]
                self._seen[key] = (name, count + 1)
                await self._api.request("PATCH", f"{folder}/{name}", body={"count": count + 1, "lastTimestamp": when}, kind=MERGE)
                return
            name = f"{meta['name']}.{hash(key) & 0xFFFFFFFFFFFFFFFF:016x}"
            self._seen[key] = (name, 1)
            await self._api.request("POST", folder, body={
                "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": meta["namespace"]}, "involvedObject": about,
                "reason": reason, "message": message, "type": "Warning" if warning else "Normal", "count": 1, "firstTimestamp": when,
                "lastTimestamp": when, "source": {"component": "kubelet", "host": self._node},
                "reportingComponent": "kubelet", "reportingInstance": self._node,
            })
