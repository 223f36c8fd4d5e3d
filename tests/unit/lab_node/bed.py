# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node of the lab in this process: the lab's API server, a registry that knows every image, and a kubelet without its HTTP."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import pathlib
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("kubernetes")
trustme = pytest.importorskip("trustme")
from aiohttp import web  # noqa: E402
from aiohttp.test_utils import TestServer  # noqa: E402
from motley_lab.kube.server import Config, User, start  # noqa: E402
from motley_lab.kube.store import Store  # noqa: E402
from motley_lab.kubelet.__main__ import Kubelet  # noqa: E402
from motley_lab.kubelet.api import Api, ApiError  # noqa: E402
from motley_lab.kubelet.node import Node  # noqa: E402


def _missing() -> str:
    for tool in ("bwrap", "nsenter"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    if os.geteuid() != 0:
        return "nsenter into a container needs root"
    done = subprocess.run(["bwrap", "--unshare-pid", "--ro-bind", "/", "/", "true"], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"bwrap may not make namespaces here: {done.stderr.strip()}"


needs_bwrap = pytest.mark.skipif(bool(_missing()), reason=_missing())
IMAGE = "registry.example/tool:1"
GPU = {"driver": "580.178.04", "modules": True, "toolkit": True, "cuda": True}
CARD = {"accelerator": "rtx4090", "name": "NVIDIA GeForce RTX 4090", "memory_bytes": 57982058, "reserve_bytes": 10737418, "compute_capability": "8.9",
        "unified": False}  # fmt: skip


async def _registry() -> TestServer:
    async def manifest(request: web.Request) -> web.Response:
        return web.json_response({"config": {"digest": "sha256:c"}}, headers={"Docker-Content-Digest": "sha256:" + "d" * 64})

    async def blob(request: web.Request) -> web.Response:
        return web.json_response({"os": "linux", "architecture": "amd64", "config": {"Env": ["LAB_IMAGE_TAG=v0.20.0", "FROM_IMAGE=yes"]}})

    app = web.Application()
    app.router.add_get("/v2/{name:.+}/manifests/{reference}", manifest)
    app.router.add_get("/v2/{name:.+}/blobs/{digest}", blob)
    server = TestServer(app)
    await server.start_server()
    return server


class Bed:
    def __init__(self, node: Node, kubelet: Kubelet) -> None:
        self.node, self.kubelet, self.api = node, kubelet, node.api

    async def create(self, name: str, spec: dict[str, Any], **metadata: Any) -> None:
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": {"nodeName": self.node.name, "enableServiceLinks": False, "automountServiceAccountToken": False, **spec}}
        await self.api.request("POST", "/api/v1/namespaces/t/pods", body=body)

    async def status(self, name: str) -> dict[str, Any]:
        return (await self.api.get(f"/api/v1/namespaces/t/pods/{name}")).get("status") or {}

    async def until(self, name: str, test: Callable[[dict[str, Any]], Any], *, seconds: float = 15) -> dict[str, Any]:
        status: dict[str, Any] = {}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    status = await self.status(name)
                    if test(status):
                        return status
                    await asyncio.sleep(0.05)
        raise AssertionError(f"{name} did not get there: {json.dumps(status)}")

    async def phase(self, name: str, phase: str) -> dict[str, Any]:
        return await self.until(name, lambda status: status.get("phase") == phase)

    async def gone(self, name: str) -> None:
        for _ in range(200):
            with contextlib.suppress(ApiError):
                await self.status(name)
                await asyncio.sleep(0.05)
                continue
            return
        raise AssertionError(f"{name} is still there")

    async def events(self, name: str) -> list[tuple[str, str]]:
        found = await self.api.get("/api/v1/namespaces/t/events", fieldSelector=f"involvedObject.name={name}")
        return [(event["reason"], event["message"]) for event in found["items"]]

    def log(self, name: str, container: str = "m", *, restart: int = 0) -> str:
        (path,) = (self.node.var / "log/pods").glob(f"t_{name}_*/{container}/{restart}.log")
        return "".join(line.split(" ", 3)[3] for line in path.read_text().splitlines(keepends=True))


@contextlib.asynccontextmanager
async def bed(lab: pathlib.Path, *, gpu: dict[str, Any] | None = None, devices: int = 2) -> AsyncIterator[Bed]:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    config = Config({"t": User("admin", ("system:masters", "system:authenticated"))}, lab=lab, address="127.0.0.1")
    server, registry = await start(host="127.0.0.1", port=0, context=context, config=config, store=Store(), controllers=False), await _registry()
    hardware = {"arch": "amd64", "cpus": 4, "memory_bytes": 8 * 2**30, "devices": [CARD] * devices}
    facts = {"engine": "stub", "engine_venv": "/nonexistent", "python": sys.executable, "nodes": {"n1": {"address": "127.0.0.1", "hardware": hardware}},
             "services": {"address": "127.0.0.1", "port": registry.port}}  # fmt: skip
    home = lab / "nodes/n1"
    home.mkdir(parents=True)
    (home / "node.json").write_text(json.dumps({"name": "node-1", "address": "127.0.0.1", "arch": "amd64", "labels": {"l": "v"}, "taints": [],
                                                "talos_version": "v1.14.1", "kubernetes_version": "v1.36.1", "gpu": {**GPU, **(gpu or {})}}))  # fmt: skip
    authority_data = base64.b64encode(authority.cert_pem.bytes()).decode()
    kubeconfig = {"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {"token": "t"}}],
                  "clusters": [{"name": "c", "cluster": {"server": f"https://127.0.0.1:{server.port}", "certificate-authority-data": authority_data}}]}  # fmt: skip
    (lab / "kubeconfig").write_text(json.dumps(kubeconfig))
    node = Node(lab, "n1", facts, Api(lab / "kubeconfig"))
    await node.api.open()
    labels = {f"pod-security.kubernetes.io/{mode}": "privileged" for mode in ("enforce", "warn", "audit")}
    await node.api.request("POST", "/api/v1/namespaces", body={"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "t", "labels": labels}})
    await node.api.request("POST", "/api/v1/namespaces/t/serviceaccounts", body={
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}})  # fmt: skip
    await node.register()
    kubelet = Kubelet(node)
    tasks = [asyncio.create_task(kubelet.sync()), asyncio.create_task(node.heartbeat())]
    try:
        yield Bed(node, kubelet)
    finally:
        for task in tasks:
            task.cancel()
        await kubelet.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        await node.api.close()
        await registry.close()
        await server.stop()


def run(lab: pathlib.Path, body: Callable[[Bed], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with bed(lab, **options) as here:
            await body(here)

    asyncio.run(main())
