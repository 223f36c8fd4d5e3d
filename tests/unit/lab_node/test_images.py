# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images: references, mirrors, and what does not fit the node's architecture."""

from __future__ import annotations

import asyncio
import pathlib
from typing import Any

import pytest

pytest.importorskip("aiohttp")
from aiohttp import web  # noqa: E402
from aiohttp.test_utils import TestServer  # noqa: E402
from motley_lab.kubelet.images import PullError, Store, split  # noqa: E402

CONFIGS = {"sha256:ca": "amd64", "sha256:cb": "arm64"}
INDEX = {"manifests": [{"digest": "sha256:a", "platform": {"os": "linux", "architecture": "amd64"}},
                       {"digest": "sha256:b", "platform": {"os": "linux", "architecture": "arm64"}},
                       {"digest": "sha256:x", "platform": {"os": "unknown", "architecture": "unknown"}}]}
ANSWERS = {"both": INDEX, "amd64": {"manifests": INDEX["manifests"][::2]}, "plain": {"config": {"digest": "sha256:ca"}},
           "sha256:a": {"config": {"digest": "sha256:ca"}}, "sha256:b": {"config": {"digest": "sha256:cb"}}}


@pytest.mark.parametrize(("reference", "wanted"), [
    ("vllm/vllm-openai:v1", ("docker.io", "vllm/vllm-openai", "v1")), ("busybox", ("docker.io", "library/busybox", "latest")),
    ("10.0.0.1:8080/lab/vllm-ray:v0.32.0", ("10.0.0.1:8080", "lab/vllm-ray", "v0.32.0")),
    ("nvcr.io/nvidia/x@sha256:ab", ("nvcr.io", "nvidia/x", "sha256:ab")), ("nvcr.io/nvidia/x:v1@sha256:ab", ("nvcr.io", "nvidia/x", "sha256:ab")),
])
def test_split(reference: str, wanted: tuple[str, str, str]) -> None:
    assert split(reference) == wanted


def pull(reference: str, *, architecture: str, tmp_path: pathlib.Path) -> Any:
    async def manifest(request: web.Request) -> web.Response:
        found = ANSWERS.get(request.match_info["reference"])
        return web.json_response(found, headers={"Docker-Content-Digest": "sha256:top"}) if found else web.json_response({}, status=404)

    async def blob(request: web.Request) -> web.Response:
        return web.json_response({"os": "linux", "architecture": CONFIGS[request.match_info["digest"]], "config": {"Env": ["LAB_IMAGE_TAG=v1"]}})

    async def main() -> Any:
        app = web.Application()
        app.router.add_get("/v2/{name:.+}/manifests/{reference}", manifest)
        app.router.add_get("/v2/{name:.+}/blobs/{digest}", blob)
        async with TestServer(app) as server:
            url = str(server.make_url("/"))
            store = Store(tmp_path / "images.json", architecture=architecture, service="http://127.0.0.1:9", mirrors={"docker.io": url})
            return await store.pull(reference), Store(tmp_path / "images.json", architecture=architecture, service="", mirrors={}).present(reference)

    return asyncio.run(main())


def test_pull_picks_the_nodes_architecture_and_keeps_it(tmp_path: pathlib.Path) -> None:
    image, kept = pull("lab/vllm-ray:both", architecture="arm64", tmp_path=tmp_path)
    assert (image.digest, image.view, image.environment) == ("sha256:top", "engine", {"LAB_IMAGE_TAG": "v1"})
    assert kept == image


@pytest.mark.parametrize(("reference", "message"), [
    ("lab/vllm-ray:amd64", 'failed to pull and unpack image "docker.io/lab/vllm-ray:amd64": no match for platform in manifest: not found'),
    ("lab/vllm-ray:plain", 'failed to pull and unpack image "docker.io/lab/vllm-ray:plain": no match for platform in manifest: not found'),
    ("lab/vllm-ray:v9", "docker.io/lab/vllm-ray:v9: not found"), ("quay.io/lab/x:1", 'failed to do request: Head "http://127.0.0.1:9/v2/lab/x/manifests/1"'),
])
def test_pull_failures(tmp_path: pathlib.Path, reference: str, message: str) -> None:
    with pytest.raises(PullError) as caught:
        pull(reference, architecture="arm64", tmp_path=tmp_path)
    assert message in str(caught.value)
