# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An API server of the lab in this process, and a plain client for it."""

from __future__ import annotations

import asyncio
import json
import pathlib
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("kubernetes")
trustme = pytest.importorskip("trustme")

from aiohttp import web  # noqa: E402
from motley_lab.kube.kubelet_proxy import kubelet_token  # noqa: E402
from motley_lab.kube.server import Config, Running, User, start  # noqa: E402
from motley_lab.kube.store import Store  # noqa: E402

Json = dict[str, Any]
TOKEN = "test-token"
POD: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "busybox:1"}]}}
LABELS = {f"pod-security.kubernetes.io/{mode}": "privileged" for mode in ("enforce", "warn", "audit")}


class Answer(dict[str, Any]):
    """A decoded body with its status and warnings."""

    status: int
    warnings: list[str]


class Cluster:
    def __init__(self, server: str, context: ssl.SSLContext, lab: pathlib.Path) -> None:
        self.server, self.lab, self._context = server, lab, context

    def call(self, method: str, path: str, body: Any = None, *, kind: str = "application/json", token: str = TOKEN,
             accept: str = "application/json") -> Answer:
        request = urllib.request.Request(self.server + path, method=method, data=None if body is None else json.dumps(body).encode(),
                                         headers={"Authorization": f"Bearer {token}", "Content-Type": kind, "Accept": accept, "User-Agent": "pytest/1"})
        try:
            with urllib.request.urlopen(request, context=self._context, timeout=30) as reply:
                status, headers, text = reply.status, reply.headers, reply.read()
        except urllib.error.HTTPError as error:
            status, headers, text = error.code, error.headers, error.read()
        document = json.loads(text) if headers.get_content_type() == "application/json" else {"text": text.decode()}
        answer = Answer(document)
        answer.status, answer.warnings = status, headers.get_all("Warning") or []
        return answer

    def apply(self, path: str, body: Json, *, manager: str = "motley", more: str = "") -> Answer:
        return self.call("PATCH", f"{path}?fieldManager={manager}{more}", body, kind="application/apply-patch+yaml")

    def namespace(self, name: str, labels: dict[str, str] | None = None) -> str:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": LABELS if labels is None else labels}}
        assert self.call("POST", "/api/v1/namespaces", body).status == 201
        self.until(lambda: self.call("GET", f"/api/v1/namespaces/{name}/serviceaccounts/default").status == 200)
        return f"/api/v1/namespaces/{name}"

    def node(self, name: str, *, address: str = "", port: int = 0, **resources: str) -> None:
        body: Json = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}}
        self.call("POST", "/api/v1/nodes", body)
        have = {"cpu": "8", "memory": "32Gi", "pods": "110", **{key.replace("_", "/"): value for key, value in resources.items()}}
        status: Json = {"capacity": have, "allocatable": have, "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]}
        if address:
            status |= {"addresses": [{"type": "InternalIP", "address": address}], "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}
        assert self.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, kind="application/merge-patch+json").status == 200
        self.until(lambda: not self.call("GET", f"/api/v1/nodes/{name}")["spec"].get("taints"))

    @staticmethod
    def until(holds: Callable[[], Any], seconds: float = 20.0) -> Any:
        end = time.monotonic() + seconds
        while not (value := holds()):
            assert time.monotonic() < end, "it did not happen in time"
            time.sleep(0.02)
        return value


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(10)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)


@pytest.fixture(scope="session")
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.stop()


@pytest.fixture(scope="session")
def authority() -> Any:
    return trustme.CA()


@pytest.fixture(scope="session")
def cluster(loop: Loop, authority: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    lab = tmp_path_factory.mktemp("lab")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_OPTIONAL
    config = Config({TOKEN: User("tester", ("system:masters",))}, lab=lab, node="x86-01")
    running: Running = loop.run(start(host="127.0.0.1", port=0, context=context, config=config, store=Store()))
    client = ssl.create_default_context()
    authority.configure_trust(client)
    yield Cluster(f"https://127.0.0.1:{running.port}", client, lab)
    loop.run(running.stop())


@pytest.fixture(scope="session")
def kubelet(loop: Loop, cluster: Cluster) -> Iterator[int]:
    """A kubelet that speaks the interface: it echoes what it is asked; its port."""
    token = kubelet_token(cluster.lab)

    async def logs(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {token}":
            return web.Response(status=401)
        if request.match_info["container"] == "waiting":
            return web.Response(status=400, text='container "waiting" in pod "p" is waiting to start: ContainerCreating')
        return web.Response(text=f"log of {request.match_info['container']} {request.query_string}\n")

    async def execute(request: web.Request) -> web.StreamResponse:
        if request.match_info["container"] == "waiting":
            return web.Response(status=404, text="no such container")
        socket = web.WebSocketResponse(protocols=["v5.channel.k8s.io", "v4.channel.k8s.io"])
        await socket.prepare(request)
        command = request.query.getall("command")
        await socket.send_bytes(b"\x01" + " ".join(command).encode() + b"\n")
        if request.query.get("stdin") == "true":
            message = await socket.receive_bytes()
            await socket.send_bytes(b"\x02" + message[1:])
        code = int(command[-1]) if command[0] == "exit" else 0
        status: Json = {"metadata": {}, "status": "Success"} if not code else {
            "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "message": f"command terminated with exit code {code}",
            "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]}}
        await socket.send_bytes(b"\x03" + json.dumps(status).encode())
        await socket.close()
        return socket

    async def serve() -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", logs)
        app.router.add_get("/exec/{namespace}/{pod}/{container}", execute)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    runner = loop.run(serve())
    yield runner.addresses[0][1]
    loop.run(runner.cleanup())
