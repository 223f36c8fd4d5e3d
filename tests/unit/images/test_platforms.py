# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which platforms an image has. The two indexes are public ones, with other digests."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.images import platforms

OCI_INDEX, DOCKER_LIST = platforms.INDEX_TYPES
OCI_MANIFEST, DOCKER_MANIFEST = platforms.MANIFEST_TYPES


def entry(machine: str, system: str = "linux", **more: Any) -> dict[str, Any]:
    return {"digest": f"sha256:{machine}", "platform": {"architecture": machine, "os": system}, **more}


ARM_AND_ATTESTATION = {"mediaType": OCI_INDEX, "manifests": [entry("arm64"), entry("unknown", "unknown")]}
ATTESTATION_BY_ANNOTATION = {
    "mediaType": OCI_INDEX,
    "manifests": [entry("amd64"), entry("arm64", annotations={"vnd.docker.reference.type": "attestation-manifest"})],
}
BOTH = {"mediaType": DOCKER_LIST, "manifests": [entry("arm64"), entry("amd64")]}


@pytest.mark.parametrize(
    ("index", "found"),
    [
        (ARM_AND_ATTESTATION, ["linux/arm64"]),
        (ATTESTATION_BY_ANNOTATION, ["linux/amd64"]),
        (BOTH, ["linux/arm64", "linux/amd64"]),
        ({"manifests": []}, []),
        ({"manifests": [{"digest": "sha256:x"}]}, []),
        ({"manifests": [entry("aarch64")]}, ["linux/arm64"]),
    ],
)
def test_platforms_of_an_index(index: dict[str, Any], found: list[str]) -> None:
    assert [str(p) for p in platforms.of_index(index)] == found


@pytest.mark.parametrize(
    ("document", "content_type", "index"),
    [
        (BOTH, "", True),
        ({"manifests": []}, "", True),
        ({"config": {}, "layers": []}, OCI_MANIFEST, False),
        ({"config": {}}, f"{OCI_INDEX}; charset=utf-8", True),
        ({"mediaType": DOCKER_MANIFEST, "manifests": []}, "", False),
    ],
)
def test_index_or_manifest(document: dict[str, Any], content_type: str, index: bool) -> None:
    assert platforms.is_index(document, content_type) is index


def test_a_plain_manifest_has_the_platform_of_its_config() -> None:
    assert str(platforms.of_config({"architecture": "amd64", "os": "linux"})) == "linux/amd64"
    with pytest.raises(MotleyError, match="names no architecture"):
        platforms.of_config({"os": "linux"})


def check(index: dict[str, Any], needed: dict[str, list[str]], *, single: bool = False) -> None:
    platforms.check("x/y:1", platforms.of_index(index), needed, single=single)


def test_complete_images_pass() -> None:
    check(BOTH, {"amd64": ["x86-01"], "arm64": ["spark-01"]})
    check(ARM_AND_ATTESTATION, {"arm64": ["spark-01"]})


def test_a_missing_architecture_is_named_with_its_nodes_and_the_fix() -> None:
    with pytest.raises(MotleyError) as caught:
        check(ARM_AND_ATTESTATION, {"amd64": ["x86-01", "x86-02"], "arm64": ["spark-01"]})
    assert "no linux/amd64 variant (needed by x86-01, x86-02)" in caught.value.message
    assert "linux/arm64 only (image index)" in caught.value.message
    assert "motley_image" in caught.value.hint


def test_a_single_manifest_says_so() -> None:
    with pytest.raises(MotleyError, match=r"linux/amd64 only \(single manifest\)"):
        platforms.check("x/y:1", [platforms.Platform("linux", "amd64")], {"arm64": ["spark-01"]}, single=True)


def test_other_systems_do_not_count() -> None:
    with pytest.raises(MotleyError, match="no linux/amd64"):
        check({"manifests": [entry("amd64", "windows")]}, {"amd64": ["x86-01"]})
