# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import io
import json
import threading
import urllib.error
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.talos import schematic
from ansible_collections.motley.inference.plugins.plugin_utils import talos_image
from ansible_collections.motley.inference.plugins.plugin_utils.factory import Factory

OFFERED = [
    {
        "name": "siderolabs/nonfree-kmod-nvidia-lts",
        "ref": "ghcr.io/siderolabs/nonfree-kmod-nvidia-lts:580.178.04-v1.14.1",
        "digest": "sha256:0",
    },
    {
        "name": "siderolabs/nvidia-container-toolkit-lts",
        "ref": "ghcr.io/siderolabs/nvidia-container-toolkit-lts:580.178.04-v1.19.1",
        "digest": "sha256:1",
    },
]


class Handler(BaseHTTPRequestHandler):
    """An Image Factory as far as these tests ask it."""

    log: list[tuple[str, str]]
    posted_id: str
    fail_first: int

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        type(self).log.append(("GET", self.path))
        if type(self).fail_first > 0:
            type(self).fail_first -= 1
            self._send(503, b"try later\n")
        elif self.path == "/version/v1.14.1/extensions/official":
            self._send(200, json.dumps(OFFERED).encode())
        else:
            self._send(404, b"version 1.14.9 is not available\n")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        type(self).log.append(("POST", body))
        self._send(201, json.dumps({"id": type(self).posted_id}).encode())

    def log_message(self, *args: Any) -> None:
        """Keep quiet."""


@pytest.fixture
def factory() -> Iterator[tuple[Factory, type[Handler]]]:
    image = schematic.for_node(["gb10"], "v1.14.1")
    handler = type("Fresh", (Handler,), {"log": [], "posted_id": image.id, "fail_first": 0})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield Factory(f"http://127.0.0.1:{server.server_port}/", sleep=lambda seconds: None), handler
    server.shutdown()
    server.server_close()


def test_names_are_compared_before_anything_is_registered(factory: tuple[Factory, type[Handler]]) -> None:
    client, handler = factory
    image = schematic.for_node(["gb10"], "v1.14.1", extensions=["siderolabs/no-such-thing"])
    with pytest.raises(MotleyError, match="is not available for Talos v1.14.1"):
        talos_image.register(image, client, node="spark-01", post=True)
    assert [method for method, _ in handler.log] == ["GET"]


def test_registration(factory: tuple[Factory, type[Handler]]) -> None:
    client, handler = factory
    image = schematic.for_node(["gb10"], "v1.14.1")
    entry = talos_image.register(image, client, node="spark-01", post=True)
    assert handler.log == [("GET", "/version/v1.14.1/extensions/official"), ("POST", image.yaml)]
    assert entry["schematic"] == image.id
    assert entry["driver"] == "580.178.04"
    assert entry["installer"] == f"{client.url.removeprefix('http://')}/metal-installer/{image.id}:v1.14.1"


def test_without_post_nothing_is_registered(factory: tuple[Factory, type[Handler]]) -> None:
    client, handler = factory
    talos_image.register(schematic.for_node(["gb10"], "v1.14.1"), client, node=None, post=False)
    assert [method for method, _ in handler.log] == ["GET"]


def test_another_id_for_a_plain_schematic_is_refused(factory: tuple[Factory, type[Handler]]) -> None:
    client, handler = factory
    handler.posted_id = "f" * 64
    with pytest.raises(MotleyError, match="schematic ID"):
        talos_image.register(schematic.for_node(["gb10"], "v1.14.1"), client, node=None, post=True)


def test_the_factorys_id_counts_where_the_local_one_is_not_certain(factory: tuple[Factory, type[Handler]]) -> None:
    client, handler = factory
    handler.posted_id = "f" * 64
    entry = talos_image.register(schematic.for_node(["gb10"], "v1.14.1", kernel_args=["a b: c"]), client, node=None, post=True)
    assert entry["schematic"] == "f" * 64


def test_passing_faults_are_tried_again(factory: tuple[Factory, type[Handler]]) -> None:
    client, handler = factory
    handler.fail_first = 2
    assert len(client.extensions("v1.14.1")) == 2
    assert len(handler.log) == 3


def test_an_unknown_release_names_the_variable(factory: tuple[Factory, type[Handler]]) -> None:
    with pytest.raises(MotleyError) as caught:
        factory[0].extensions("v1.14.9")
    assert "motley_talos_version" in caught.value.hint
    assert len(factory[1].log) == 1


@pytest.mark.parametrize("error", [urllib.error.URLError("refused"), TimeoutError("slow"), ConnectionResetError("reset")])
def test_a_silent_factory_is_named(error: Exception) -> None:
    def never(*args: Any, **options: Any) -> Any:
        raise error

    with pytest.raises(MotleyError, match="https://f does not answer"):
        Factory("https://f", open_url=never, sleep=lambda seconds: None).extensions("v1.14.1")


def test_something_else_at_that_address_is_no_factory() -> None:
    class Page(io.BytesIO):
        status = 200

    with pytest.raises(MotleyError, match="does not answer as an Image Factory"):
        Factory("https://f", open_url=lambda *a, **k: Page(b"<html>")).extensions("v1.14.1")
