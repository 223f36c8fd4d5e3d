# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is inside an image, by its config."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.motley.inference.plugins.module_utils.images import contents


def config(labels: dict[str, str] | None = None, env: list[str] | None = None, history: list[str] | None = None) -> dict[str, Any]:
    return {"config": {"Labels": labels, "Env": env}, "history": [{"created_by": h} for h in history or []]}


@pytest.mark.parametrize(
    ("document", "ray", "ray_version", "vllm"),
    [
        (config({"io.ray.version": "2.60.0", "io.vllm.version": "0.32.0"}), True, "2.60.0", "0.32.0"),
        (config(env=["RAY_VERSION=2.54.0", "NVIDIA_VLLM_VERSION=0.11.1+cu"]), True, "2.54.0", "0.11.1"),
        (config(history=["RUN pip install 'ray[default]==2.54.0' # buildkit"]), True, None, None),
        (config(history=["RUN pip install --no-cache-dir ray"]), True, None, None),
        (config(history=["RUN pip install xray rayon && echo ray"]), None, None, None),
        (config(env=["PATH=/usr/bin"]), None, None, None),
        ({}, None, None, None),
    ],
)
def test_ray_and_vllm(document: dict[str, Any], ray: bool | None, ray_version: str | None, vllm: str | None) -> None:
    found = contents.read(document)
    assert (found.ray, found.ray_version, found.vllm_version) == (ray, ray_version, vllm)


def test_more_that_a_config_tells() -> None:
    found = contents.read(config(env=["CUDA_VERSION=13.0.1", "PYTHON_VERSION=3.12", "PYTHONPATH=/opt/x", "BROKEN"]))
    assert (found.cuda_version, found.python_version, found.pythonpath) == ("13.0.1", "3.12", "/opt/x")


@pytest.mark.parametrize(
    ("tag", "version"), [("v0.17.1", "0.17.1"), ("0.22.0-cu129", "0.22.0"), ("v0.32.0-x86_64", "0.32.0"), ("latest", None), ("nightly-0.1", None), (None, None)]
)
def test_the_version_that_a_tag_names(tag: str | None, version: str | None) -> None:
    assert contents.version_of_tag(tag) == version


def test_variants_must_agree() -> None:
    first, second = contents.Contents(ray_version="2.43.0"), contents.Contents(ray_version="2.44.1")
    assert "ray version differs" in contents.disagreement([first, second])
    assert contents.disagreement([first, contents.Contents()]) == ""
