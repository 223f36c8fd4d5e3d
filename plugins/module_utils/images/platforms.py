# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which platforms an image has: index, plain manifest and config, as a registry sends them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError

INDEX_TYPES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFEST_TYPES = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
ACCEPT = ", ".join((*INDEX_TYPES, *MANIFEST_TYPES))

# What people and uname call an architecture, as OCI names it.
ARCHITECTURES = {"x86_64": "amd64", "x86-64": "amd64", "aarch64": "arm64", "arm64/v8": "arm64"}
_ATTESTATION = "vnd.docker.reference.type"


@dataclass(frozen=True)
class Platform:
    """One variant of an image."""

    os: str
    architecture: str
    digest: str = ""

    def __str__(self) -> str:
        return f"{self.os}/{self.architecture}"


def architecture(name: str) -> str:
    """The OCI name of an architecture."""
    return ARCHITECTURES.get(name.lower(), name.lower())


def is_index(document: Mapping[str, Any], content_type: str = "") -> bool:
    """Whether a document lists manifests (several platforms) instead of layers (one)."""
    kind = str(document.get("mediaType") or content_type.partition(";")[0].strip())
    if kind in INDEX_TYPES:
        return True
    return kind not in MANIFEST_TYPES and "manifests" in document


def of_index(index: Mapping[str, Any]) -> list[Platform]:
    """The platforms of an index; entries that only carry provenance (attestations) are no images."""
    found: list[Platform] = []
    for entry in index.get("manifests") or []:
        platform = entry.get("platform") or {}
        system, machine = platform.get("os", ""), platform.get("architecture", "")
        attestation = (entry.get("annotations") or {}).get(_ATTESTATION) == "attestation-manifest"
        if attestation or not machine or "unknown" in (system, machine):
            continue
        found.append(Platform(system or "linux", architecture(machine), str(entry.get("digest", ""))))
    return found


def of_config(config: Mapping[str, Any]) -> Platform:
    """The platform of a plain manifest: only its config blob names it."""
    machine = str(config.get("architecture", ""))
    if not machine:
        raise MotleyError(
            "the image's config names no architecture",
            hint="the manifest is no container image (a chart or an artifact?); use the image's own reference",
        )
    return Platform(str(config.get("os") or "linux"), architecture(machine))


def check(image: str, platforms: Sequence[Platform], needed: Mapping[str, Sequence[str]], *, single: bool) -> None:
    """Refuse an image that lacks an architecture. needed: architecture -> the nodes of that architecture."""
    have = {p.architecture for p in platforms if p.os == "linux"}
    missing = {machine: list(nodes) for machine, nodes in sorted(needed.items()) if machine not in have}
    if not missing:
        return
    names = ", ".join(sorted({str(p) for p in platforms})) or "no platform at all"
    lacking = "; ".join(f"no linux/{machine} variant (needed by {', '.join(nodes)})" for machine, nodes in missing.items())
    form = "single manifest" if single else "image index"
    raise MotleyError(
        f"{image} has {lacking}: it is {names} only ({form})" if platforms else f"{image} has {lacking}: {names} ({form})",
        hint=_fix(missing),
        evidence=[f"{machine}: {', '.join(nodes)}" for machine, nodes in missing.items()],
    )


def _fix(missing: Mapping[str, Sequence[str]]) -> str:
    machines = " and ".join(missing)
    return (
        f"take a tag that is published for {machines} as well (vllm/vllm-openai is, from autumn 2025 on), or build and push one for all "
        "architectures (docker buildx build --platform linux/amd64,linux/arm64 --push), and name it in motley_image"
    )
