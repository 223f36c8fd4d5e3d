# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an image holds, as far as its config tells without pulling it: Ray, vLLM, CUDA, Python."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_VERSION = re.compile(r"v?(\d+\.\d+(?:\.\d+)?(?:\.post\d+)?(?:rc\d+)?)")

# Which label or variable of an image's config names a version; the first one that is there counts.
_LABELS: dict[str, tuple[str, ...]] = {
    "ray": ("io.ray.version", "ray.version", "ray_version"),
    "vllm": ("io.vllm.version", "vllm.version", "vllm_version"),
    "cuda": ("com.nvidia.cuda.version", "io.cuda.version"),
    "python": ("io.python.version", "org.python.version"),
}
_VARIABLES: dict[str, tuple[str, ...]] = {
    "ray": ("RAY_VERSION",),
    "vllm": ("VLLM_VERSION", "VLLM_BUILD_VERSION", "NVIDIA_VLLM_VERSION"),
    "cuda": ("CUDA_VERSION",),
    "python": ("PYTHON_VERSION",),
}


@dataclass(frozen=True)
class Contents:
    """What is inside. `ray` is None where nothing tells; `source` says what did."""

    ray: bool | None = None
    ray_version: str | None = None
    vllm_version: str | None = None
    cuda_version: str | None = None
    python_version: str | None = None
    pythonpath: str | None = None
    ray_source: str = "nothing in the image's config tells"

    def as_dict(self) -> dict[str, Any]:
        """Plain data for the lock file."""
        return {
            "ray": self.ray,
            "ray_version": self.ray_version,
            "ray_source": self.ray_source,
            "vllm_version": self.vllm_version,
            "cuda_version": self.cuda_version,
            "python_version": self.python_version,
            "pythonpath": self.pythonpath,
        }


def variables(config: Mapping[str, Any]) -> dict[str, str]:
    """The environment that the image's config sets."""
    pairs = ((config.get("config") or {}).get("Env")) or []
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def read(config: Mapping[str, Any]) -> Contents:
    """What one platform's config tells."""
    labels = {str(k): str(v) for k, v in (((config.get("config") or {}).get("Labels")) or {}).items()}
    environment = variables(config)
    found: dict[str, tuple[str, str]] = {}
    for what in _LABELS:
        for source, names, values in (("label", _LABELS[what], labels), ("variable", _VARIABLES[what], environment)):
            hit = next((n for n in names if values.get(n, "").strip()), None)
            if hit and what not in found:
                found[what] = (_plain(values[hit]), f"{source} {hit}")
    ray, ray_source = found.get("ray", ("", ""))
    if not ray and (installed := _installs_ray(config)):
        ray_source = installed
    return Contents(
        ray=True if ray or ray_source else None,
        ray_version=ray or None,
        vllm_version=found.get("vllm", ("", ""))[0] or None,
        cuda_version=found.get("cuda", ("", ""))[0] or None,
        python_version=found.get("python", ("", ""))[0] or None,
        pythonpath=environment.get("PYTHONPATH"),
        ray_source=ray_source or Contents.ray_source,
    )


def _plain(version: str) -> str:
    match = _VERSION.search(version)
    return match.group(1) if match else version.strip()


def _installs_ray(config: Mapping[str, Any]) -> str:
    """A build step that installs Ray, as the image's history shows it."""
    for step in config.get("history") or []:
        command = str(step.get("created_by", ""))
        if re.search(r"pip3?\s+install\b[^&;|]*[\s'\"]ray(\[[\w,]+\])?(==|>=|~=|[\s'\"]|$)", command):
            return "a build step that installs it"
    return ""


def version_of_tag(tag: str | None) -> str | None:
    """The engine version that a tag names: `v0.17.1`, `0.22.0-cu129`, `v0.32.0-x86_64`."""
    match = _VERSION.match(tag or "")
    return match.group(1) if match else None


def disagreement(contents: Iterable[Contents]) -> str:
    """What differs between the variants of one image and must not: Ray, Python and vLLM talk to themselves over the network."""
    seen = list(contents)
    for name in ("ray_version", "vllm_version", "python_version"):
        values = {v for c in seen if (v := getattr(c, name)) is not None}
        if len(values) > 1:
            return f"{name.replace('_', ' ')} differs between the architectures: {', '.join(sorted(values))}"
    return ""
