# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The registry client against a small registry: indexes, plain manifests, tokens, mirrors, refusals."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.images import platforms, reference
from ansible_collections.motley.inference.plugins.plugin_utils.registry import Registry, RegistryError


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.blobs: dict[str, tuple[str, bytes]] = {}  # path -> content type, body
        self.scheme = ""  # "bearer" or "basic": what it wants
        self.seen: list[tuple[str, str]] = []
        self.status = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def put(self, repository: str, kind: str, document: dict[str, Any], media: str, *, tag: str = "") -> dict[str, Any]:
        body = json.dumps(document).encode()
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        for name in [digest, *([tag] if tag else [])]:
            self.blobs[f"/v2/{repository}/{kind}/{name}"] = (media, body)
        return {"digest": digest, "mediaType": media, "size": len(body)}

    def image(self, repository: str, machine: str, labels: dict[str, str] | None = None, *, tag: str = "") -> dict[str, Any]:
        config = {"architecture": machine, "os": "linux", "config": {"Labels": labels or {}}}
        manifest = {"schemaVersion": 2, "config": self.put(repository, "blobs", config, "application/vnd.oci.image.config.v1+json"), "layers": []}
        return {**self.put(repository, "manifests", manifest, platforms.MANIFEST_TYPES[0], tag=tag), "platform": {"architecture": machine, "os": "linux"}}


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: Any) -> None: ...

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        server = self.server
        token = self.headers.get("Authorization", "")
        server.seen.append((self.path, token))
        if server.status:
            return self.answer(server.status, json.dumps({"errors": [{"code": "TOOMANYREQUESTS", "message": "slow down"}]}).encode())
        if self.path.startswith("/token"):
            return self.answer(200, json.dumps({"token": "given"}).encode())
        if server.scheme == "bearer" and token != "Bearer given":
            return self.answer(401, WWW_Authenticate=f'Bearer realm="{server.url}/token",service="here",scope="repository:lab/x:pull"')
        if server.scheme == "basic" and token != f"Basic {base64.b64encode(b'me:pass').decode()}":
            return self.answer(401, WWW_Authenticate='Basic realm="here"')
        if self.path not in server.blobs:
            return self.answer(404, json.dumps({"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}).encode())
        media, body = server.blobs[self.path]
        return self.answer(200, body, Content_Type=media)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
        yield running
        running.shutdown()


def registry(server: Server) -> Registry:
    return Registry(mirrors={"docker.io": server.url, "nvcr.io": server.url}, timeout=5)


def index(server: Server) -> str:
    attestation = {"digest": "sha256:none", "platform": {"architecture": "unknown", "os": "unknown"}}
    entries = [server.image("lab/x", m, {"io.ray.version": "2.60.0"}) for m in ("amd64", "arm64")]
    return str(server.put("lab/x", "manifests", {"manifests": [*entries, attestation]}, platforms.INDEX_TYPES[0], tag="v1")["digest"])


def test_an_index(server: Server) -> None:
    digest = index(server)
    seen = registry(server).inspect(reference.parse("docker.io/lab/x:v1"))
    assert (seen.digest, seen.single, seen.architectures) == (digest, False, ["amd64", "arm64"])
    assert seen.contents["arm64"].ray_version == "2.60.0"


def test_by_digest_a_changed_manifest_is_noticed(server: Server) -> None:
    digest = index(server)
    assert registry(server).inspect(reference.parse(f"lab/x@{digest}")).digest == digest
    server.blobs[f"/v2/lab/x/manifests/{digest}"] = (platforms.INDEX_TYPES[0], b'{"manifests": []}')
    with pytest.raises(RegistryError, match="sent a manifest with digest"):
        registry(server).inspect(reference.parse(f"lab/x@{digest}"))


def test_a_plain_manifest_takes_the_architecture_of_its_config(server: Server) -> None:
    server.image("lab/x", "amd64", tag="v1")
    seen = registry(server).inspect(reference.parse("nvcr.io/lab/x:v1"))
    assert (seen.single, seen.architectures) == (True, ["amd64"])


def test_an_anonymous_token_is_fetched_once(server: Server) -> None:
    index(server)
    server.scheme = "bearer"
    registry(server).inspect(reference.parse("lab/x:v1"))
    assert [path for path, _ in server.seen if path.startswith("/token")] == ["/token?service=here&scope=repository%3Alab%2Fx%3Apull"]


def test_credentials_from_a_file(server: Server, tmp_path: Any) -> None:
    index(server)
    server.scheme = "basic"
    host = server.url.removeprefix("http://")
    file = tmp_path / "auth.json"
    file.write_text(json.dumps({"auths": {host: {"auth": base64.b64encode(b"me:pass").decode()}}}))
    image = reference.parse(f"{host}/lab/x:v1")
    assert Registry(auth_file=file, timeout=5).inspect(image).architectures == ["amd64", "arm64"]
    with pytest.raises(RegistryError, match="answers 401") as caught:
        Registry(timeout=5).inspect(image)
    assert "credentials" in caught.value.hint
    with pytest.raises(MotleyError, match="can not be read"):
        Registry(auth_file=tmp_path / "none")


@pytest.mark.parametrize(("status", "hint"), [(404, "check the spelling"), (429, "limits anonymous requests"), (503, "try again")])
def test_refusals_say_what_to_do(server: Server, status: int, hint: str) -> None:
    server.status = 0 if status == 404 else status
    with pytest.raises(RegistryError) as caught:
        Registry(mirrors={}, timeout=5).inspect(reference.parse(f"{server.url.removeprefix('http://')}/lab/none:v1"))
    assert caught.value.status == status
    assert hint in caught.value.hint


def test_after_a_failing_mirror_the_registry_itself_is_asked(server: Server) -> None:
    index(server)
    host = server.url.removeprefix("http://")
    client = Registry(mirrors={host: "http://127.0.0.1:1"}, timeout=5)
    assert client.inspect(reference.parse(f"{host}/lab/x:v1")).architectures == ["amd64", "arm64"]
    with pytest.raises(RegistryError, match="does not answer") as caught:
        Registry(mirrors={"docker.io": "http://127.0.0.1:1"}, timeout=5)._fetch("http://127.0.0.1:1/v2/", reference.parse("a/b"), "*/*")
    assert caught.value.status == 0


def test_no_registry(server: Server) -> None:
    server.blobs["/v2/lab/x/manifests/v1"] = ("text/html", b"<html>log in</html>")
    with pytest.raises(RegistryError, match="is no JSON") as caught:
        registry(server).inspect(reference.parse("lab/x:v1"))
    assert "proxy" in caught.value.hint
