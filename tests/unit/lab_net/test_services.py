# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Factory, registry and hub over HTTP, as clients see them."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from motley_lab import faults
from motley_lab.record import read
from motley_lab.services.__main__ import application

LISTS = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json"
SINGLE = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
SPARK = {"customization": {"extraKernelArgs": ["arm64.nobti"], "systemExtensions": {"officialExtensions": [
    "siderolabs/nonfree-kmod-nvidia-lts", "siderolabs/nvidia-container-toolkit-lts"]}}}  # fmt: skip
SPARK_ID = "bc668cd34c1b046652bf89b476b33178418e343d51d4e2e3e0b5335d4e40e7ad"
EMPTY_ID = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Any
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Ask = Callable[..., Answer]


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama"}')
    (model / "model.safetensors").write_bytes(bytes(range(256)) * 10)
    return tmp_path


@pytest.fixture
def ask(lab: Path) -> Ask:
    def call(method: str, path: str, **options: Any) -> Answer:
        async def run() -> Answer:
            app = application(lab, lab / "model", {"127.0.0.1": "spark-01"})
            async with TestClient(TestServer(app)) as client:
                async with client.request(method, path, **options) as response:
                    return Answer(response.status, response.headers, await response.read())

        return asyncio.run(run())

    return call


# -- factory


def test_a_schematic_is_kept(ask: Ask) -> None:
    made = ask("POST", "/schematics", data=json.dumps(SPARK))
    assert (made.status, made.json["id"]) == (201, SPARK_ID)
    shown = ask("GET", f"/schematics/{SPARK_ID}")  # another process: it comes from the disk
    assert (shown.status, shown.text) == (200, made.json["schematic"])


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("POST", "/schematics", "something: 1", 400, "yaml: construct errors: line 1: field something not found in type schematic.Schematic\n"),
        ("POST", "/schematics", "owner: me", 400, "owner field is only supported in Enterprise edition\n"),
        ("GET", f"/schematics/{'0' * 64}", None, 404, "schematic not found\n"),
        ("GET", "/schematics/..%2flab", None, 404, "schematic not found\n"),
        ("GET", f"/image/{'0' * 64}/v1.14.1/metal-arm64.iso", None, 404, "schematic not found\n"),
        ("GET", f"/image/{EMPTY_ID}/1.5.0-alpha.0/metal-arm64.iso", None, 404, "version 1.5.0-alpha.0 is not available\n"),
        ("GET", f"/image/{EMPTY_ID}/v1.14.1/metal-riscv.iso", None, 400, "invalid architecture\n"),
        ("GET", "/version/x/extensions/official", None, 500, "internal server error\n"),
        ("GET", "/version/v1.5.0/extensions/official", None, 404, "version 1.5.0 is not available\n"),
        ("GET", "/nothing/here", None, 501, "the lab has no stand-in for GET /nothing/here\n"),
    ],
)
def test_refusals_of_the_factory(ask: Ask, method: str, path: str, body: str | None, status: int, text: str) -> None:
    answer = ask(method, path, data=body)
    assert (answer.status, answer.text) == (status, text)
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    ("version", "kmod", "toolkit"),
    [
        ("v1.13.9", "580.178.04-v1.13.9", "580.178.04-v1.19.1"),
        ("1.13.0", "580.126.20-v1.13.0", "580.126.20-v1.19.0"),
        ("v1.14.1", "580.178.04-v1.14.1", "580.178.04-v1.19.1"),
    ],
)
def test_extensions_carry_the_driver_of_the_release(ask: Ask, version: str, kmod: str, toolkit: str) -> None:
    refs = {entry["name"]: entry["ref"] for entry in ask("GET", f"/version/{version}/extensions/official").json}
    assert refs["siderolabs/nonfree-kmod-nvidia-lts"] == f"ghcr.io/siderolabs/nonfree-kmod-nvidia-lts:{kmod}"
    assert refs["siderolabs/nvidia-container-toolkit-lts"] == f"ghcr.io/siderolabs/nvidia-container-toolkit-lts:{toolkit}"
    assert len(refs) >= 25
    assert not [name for name in refs if name in ("siderolabs/nonfree-kmod-nvidia", "siderolabs/nvidia-container-toolkit")]


def test_an_unknown_extension_is_refused_only_when_an_image_is_asked_for(ask: Ask) -> None:
    body = json.dumps({"customization": {"systemExtensions": {"officialExtensions": ["siderolabs/foo"]}}})
    identifier = ask("POST", "/schematics", data=body).json["id"]
    for path in (f"/v2/metal-installer/{identifier}/manifests/v1.13.9", f"/image/{identifier}/v1.13.9/metal-amd64.iso"):
        answer = ask("GET", path, headers={"Accept": LISTS})
        assert (answer.status, answer.text) == (400, 'official extension "siderolabs/foo" is not available for Talos version v1.13.9\n')


def test_an_alias_is_built(ask: Ask) -> None:
    body = json.dumps({"customization": {"systemExtensions": {"officialExtensions": ["siderolabs/nonfree-kmod-nvidia"]}}})
    identifier = ask("POST", "/schematics", data=body).json["id"]
    assert ask("HEAD", f"/v2/metal-installer/{identifier}/manifests/v1.14.1", headers={"Accept": LISTS}).status == 200


def test_an_installer_is_an_index_of_both_architectures(ask: Ask) -> None:
    ask("POST", "/schematics", data=json.dumps(SPARK))
    base = f"/v2/metal-installer/{SPARK_ID}"
    index = ask("GET", f"{base}/manifests/v1.14.1", headers={"Accept": LISTS})
    entries = index.json["manifests"]
    assert [entry["platform"]["architecture"] for entry in entries] == ["amd64", "arm64"]
    manifest = ask("GET", f"{base}/manifests/{entries[1]['digest']}", headers={"Accept": SINGLE})
    config = ask("GET", f"{base}/blobs/{manifest.json['config']['digest']}")
    assert config.json["architecture"] == "arm64"


def test_kernel_arguments_are_in_the_command_line_of_the_medium(ask: Ask) -> None:
    ask("POST", "/schematics", data=json.dumps(SPARK))
    assert ask("GET", f"/image/{SPARK_ID}/v1.14.1/cmdline-metal-arm64").text.endswith(" arm64.nobti")
    assert ask("HEAD", f"/image/{SPARK_ID}/v1.14.1/metal-arm64.iso").status == 200


def test_a_missing_extension_by_fault(ask: Ask, lab: Path) -> None:
    faults.add(lab, "extension-missing", settings={"extension": "siderolabs/nonfree-kmod-nvidia-lts"})
    ask("POST", "/schematics", data=json.dumps(SPARK))
    assert ask("GET", f"/v2/metal-installer/{SPARK_ID}/manifests/v1.14.1").status == 400


# -- registry


@pytest.mark.parametrize(
    ("image", "architectures"),
    [
        ("lab/vllm-ray/manifests/v0.32.0", {"amd64", "arm64", "unknown"}),
        ("lab/vllm-ray-amd64/manifests/v0.32.0", {"amd64", "unknown"}),
        ("vllm/vllm-openai/manifests/v0.17.1", {"amd64", "arm64"}),
        ("nvidia/k8s-device-plugin/manifests/v0.17.0", {"amd64", "arm64"}),
        ("nvidia/k8s-device-plugin/manifests/v0.20.0", {"amd64", "arm64"}),
    ],
)
def test_architectures_and_digests(ask: Ask, image: str, architectures: set[str]) -> None:
    head = ask("HEAD", f"/v2/{image}", headers={"Accept": LISTS})
    index = ask("GET", f"/v2/{image}", headers={"Accept": LISTS})
    digest = f"sha256:{hashlib.sha256(index.body).hexdigest()}"
    assert head.headers["Docker-Content-Digest"] == index.headers["Docker-Content-Digest"] == digest
    assert int(head.headers["Content-Length"]) == len(index.body)
    assert head.headers["Content-Type"] == index.json["mediaType"]
    assert {entry["platform"]["architecture"] for entry in index.json["manifests"]} == architectures
    for entry in index.json["manifests"]:
        found = ask("GET", f"/v2/{image.rpartition('/')[0]}/{entry['digest']}", headers={"Accept": SINGLE})
        assert f"sha256:{hashlib.sha256(found.body).hexdigest()}" == entry["digest"]
        assert len(found.body) == entry["size"]


def _labels(ask: Ask, repository: str, tag: str) -> dict[str, str]:
    index = ask("GET", f"/v2/{repository}/manifests/{tag}", headers={"Accept": LISTS}).json
    manifest = ask("GET", f"/v2/{repository}/manifests/{index['manifests'][0]['digest']}", headers={"Accept": SINGLE}).json
    labels: dict[str, str] = ask("GET", f"/v2/{repository}/blobs/{manifest['config']['digest']}").json["config"]["Labels"]
    return labels


def test_labels_name_the_versions(ask: Ask) -> None:
    labels = _labels(ask, "lab/vllm-ray", "v0.32.0")
    assert (labels["io.ray.version"], labels["io.vllm.version"]) == ("2.60.0", "0.32.0")


@pytest.mark.parametrize(
    ("path", "accept", "status", "what"),
    [
        ("lab/vllm-ray/manifests/v0.32.0", SINGLE, 404, "OCI index found, but accept header does not support OCI indexes"),
        ("nvidia/k8s-device-plugin/manifests/v0.20.0", SINGLE, 200, "application/vnd.docker.distribution.manifest.v2+json"),
        ("nvidia/k8s-device-plugin/manifests/v9", LISTS, 404, "manifest unknown"),
        ("nobody/nothing/manifests/v1", LISTS, 404, "manifest unknown"),
        ("nobody/nothing/tags/list", "*/*", 404, "repository name not known to registry"),
        ("lab/vllm-ray/blobs/sha256:00", "*/*", 404, "blob unknown to registry"),
    ],
)
def test_what_a_client_accepts(ask: Ask, path: str, accept: str, status: int, what: str) -> None:
    answer = ask("GET", f"/v2/{path}", headers={"Accept": accept})
    assert answer.status == status
    assert (answer.json["mediaType"] if status == 200 else answer.json["errors"][0]["message"]) == what


@pytest.mark.parametrize(
    ("fault", "settings", "architectures"),
    [
        ("image-amd64-only", {}, ["amd64", "unknown"]),
        ("image-amd64-only", {"image": "vllm/vllm-openai"}, ["amd64", "arm64", "unknown", "unknown"]),
        ("image-attestation-only", {}, ["amd64", "unknown"]),
    ],
)
def test_image_faults(ask: Ask, lab: Path, fault: str, settings: dict[str, str], architectures: list[str]) -> None:
    faults.add(lab, fault, settings=settings)
    index = ask("GET", "/v2/lab/vllm-ray/manifests/v0.32.0", headers={"Accept": LISTS}).json
    assert [entry["platform"]["architecture"] for entry in index["manifests"]] == architectures


def test_an_image_without_ray(ask: Ask, lab: Path) -> None:
    faults.add(lab, "image-without-ray")
    assert "io.ray.version" not in _labels(ask, "lab/vllm-ray", "v0.32.0")


@pytest.mark.parametrize(("fault", "path"), [("registry-down", "/v2/"), ("factory-down", "/versions"), ("hub-down", "/api/models/a/b")])
def test_a_service_that_is_down(ask: Ask, lab: Path, fault: str, path: str) -> None:
    faults.add(lab, fault)
    assert ask("GET", path).status == 503
    assert list(read(lab))[-1]["status"] == 503


# -- hub

FILE = "/motley/lab-llama-28l/resolve/main"


def test_a_file_of_the_model(ask: Ask, lab: Path) -> None:
    content = (lab / "model" / "model.safetensors").read_bytes()
    head = ask("HEAD", f"{FILE}/model.safetensors")
    assert head.headers["ETag"] == f'"{hashlib.sha256(content).hexdigest()}"'
    assert int(head.headers["Content-Length"]) == len(content)
    assert len(head.headers["X-Repo-Commit"]) == 40
    assert ask("GET", f"{FILE}/model.safetensors").body == content


@pytest.mark.parametrize(("span", "start", "stop"), [("bytes=100-199", 100, 200), ("bytes=2500-", 2500, 2560), ("bytes=-10", 2550, 2560)])
def test_a_range_of_a_file(ask: Ask, lab: Path, span: str, start: int, stop: int) -> None:
    answer = ask("GET", f"{FILE}/model.safetensors", headers={"Range": span})
    assert answer.status == 206
    assert answer.headers["Content-Range"] == f"bytes {start}-{stop - 1}/2560"
    assert answer.body == (lab / "model" / "model.safetensors").read_bytes()[start:stop]


def test_a_range_behind_the_end(ask: Ask) -> None:
    assert ask("GET", f"{FILE}/model.safetensors", headers={"Range": "bytes=2560-"}).status == 416


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (f"{FILE}/nope.json", "EntryNotFound"),
        (f"{FILE}/..%2frequests.jsonl", "EntryNotFound"),
        ("/motley/nope/resolve/main/config.json", "RepoNotFound"),
        ("/motley/lab-llama-28l/resolve/v9/config.json", "RevisionNotFound"),
    ],
)
def test_refusals_of_the_hub(ask: Ask, path: str, code: str) -> None:
    answer = ask("GET", path)
    assert (answer.status, answer.headers["X-Error-Code"]) == (404, code)


def test_the_revision_follows_from_the_content(ask: Ask, lab: Path) -> None:
    first = ask("GET", "/api/models/motley/lab-llama-28l").json
    assert {entry["rfilename"] for entry in first["siblings"]} == {"config.json", "model.safetensors"}
    assert ask("GET", f"/api/models/motley/lab-llama-28l/revision/{first['sha']}").json["sha"] == first["sha"]
    (lab / "model" / "config.json").write_text("{}")
    assert ask("GET", "/api/models/motley/lab-llama-28l").json["sha"] != first["sha"]


def test_a_gated_model(ask: Ask, lab: Path) -> None:
    faults.add(lab, "hub-gated", settings={"token": "right"})
    answers = [ask("GET", f"{FILE}/config.json", headers={"Authorization": f"Bearer {token}"} if token else {}).status
               for token in ("", "wrong", "right")]  # fmt: skip
    assert answers == [401, 403, 200]


def test_requests_are_recorded_by_service_and_node(ask: Ask, lab: Path) -> None:
    ask("POST", "/schematics", data="{}")
    ask("GET", f"/v2/metal-installer/{EMPTY_ID}/manifests/v1.14.1?ns=docker.io")
    ask("GET", "/v2/lab/vllm-ray/tags/list", headers={"User-Agent": "motley"})
    ask("HEAD", f"{FILE}/config.json")
    seen = [(entry["server"], entry["method"], entry["status"], entry["node"]) for entry in read(lab)]
    assert seen == [("factory", "POST", 201, "spark-01"), ("factory", "GET", 404, "spark-01"),
                    ("registry", "GET", 200, "spark-01"), ("hub", "HEAD", 200, "spark-01")]  # fmt: skip
    assert list(read(lab))[2]["agent"] == "motley"
