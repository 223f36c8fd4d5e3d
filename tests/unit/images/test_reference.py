# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Image references."""

from __future__ import annotations

import pytest
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.images.reference import Reference, parse

DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("text", "registry", "repository", "tag", "digest"),
    [
        ("vllm/vllm-openai:v0.17.1", "docker.io", "vllm/vllm-openai", "v0.17.1", None),
        ("busybox", "docker.io", "library/busybox", "latest", None),
        ("docker.io/busybox:1", "docker.io", "library/busybox", "1", None),
        ("index.docker.io/vllm/vllm-openai", "docker.io", "vllm/vllm-openai", "latest", None),
        ("nvcr.io/nvidia/k8s-device-plugin:v0.20.0", "nvcr.io", "nvidia/k8s-device-plugin", "v0.20.0", None),
        ("10.0.0.1:8080/lab/vllm-ray:v0.32.0", "10.0.0.1:8080", "lab/vllm-ray", "v0.32.0", None),
        ("localhost/x", "localhost", "x", "latest", None),
        (f"ghcr.io/a/b@{DIGEST}", "ghcr.io", "a/b", None, DIGEST),
        (f"ghcr.io/a/b:1.2@{DIGEST}", "ghcr.io", "a/b", "1.2", DIGEST),
    ],
)
def test_parse(text: str, registry: str, repository: str, tag: str | None, digest: str | None) -> None:
    assert parse(text) == Reference(registry, repository, tag, digest)


@pytest.mark.parametrize("text", ["", "Vllm/Openai", "a/b:", "a/b:bad tag", "a/b@sha256:12", "ghcr.io/", "-x/y.z/a:1@", "http://ghcr.io/a/b"])
def test_refused(text: str) -> None:
    with pytest.raises(MotleyError, match="image reference"):
        parse(text)


def test_the_digest_selects_and_the_tag_stays() -> None:
    pinned = parse("vllm/vllm-openai:v0.17.1").pinned(DIGEST)
    assert pinned.version == DIGEST
    assert str(pinned) == f"docker.io/vllm/vllm-openai:v0.17.1@{DIGEST}"
    assert parse(str(pinned)) == pinned
