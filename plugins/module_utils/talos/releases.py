# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Talos releases: one row each, with its source. A new release is a new row."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError

Branch = Literal["lts", "production"]
_VERSION = re.compile(r"^v?(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z.-]+))?$")


class Version(NamedTuple):
    """A release number that sorts; a pre-release sorts before its release."""

    major: int
    minor: int
    patch: int
    final: bool
    pre: tuple[tuple[int, str], ...]

    @property
    def minor_pair(self) -> tuple[int, int]:
        """Major and minor."""
        return (self.major, self.minor)

    def __str__(self) -> str:
        tail = ".".join(text or str(number) for number, text in self.pre)
        return f"v{self.major}.{self.minor}.{self.patch}" + (f"-{tail}" if tail else "")


def parse(text: str) -> Version:
    """`v1.14.1` or `1.14.1` as a value that sorts."""
    found = _VERSION.match(text.strip())
    if not found:
        raise MotleyError(f"{text!r} is not a release number", hint="write it as v1.14.1")
    major, minor, patch, pre = found.groups()
    parts = tuple((int(part), "") if part.isdigit() else (0, part) for part in (pre or "").split(".") if part)
    return Version(int(major), int(minor), int(patch), not pre, parts)


@dataclass(frozen=True)
class Drivers:
    """Driver and toolkit versions that the official extensions of one release hold."""

    lts: str
    production: str
    toolkit: str

    def branch(self, name: str) -> str:
        """Driver version of a branch."""
        return self.production if name == "production" else self.lts


@dataclass(frozen=True)
class Release:
    """One Talos release as far as Motley knows it."""

    version: str
    kubernetes: str
    drivers: Drivers | None
    source: str


_EXTENSIONS = "siderolabs/extensions nvidia-gpu/vars.yaml at this tag"
_NOTES = "siderolabs/talos CHANGELOG.md at this tag"

# version, Kubernetes that goes with it, NVIDIA lts, production, toolkit, source
_ROWS: tuple[tuple[str, str, str, str, str, str], ...] = (
    ("v1.12.0", "1.35.0", "580.105.08", "570.195.03", "v1.18.1", _EXTENSIONS),
    ("v1.12.11", "1.35.4", "580.126.20", "570.211.01", "v1.18.2", f"{_EXTENSIONS}; {_NOTES}"),
    ("v1.13.0", "1.36.0", "580.126.20", "595.58.03", "v1.19.0", f"{_EXTENSIONS}; {_NOTES}"),
    ("v1.13.1", "1.36.0", "580.159.03", "595.71.05", "v1.19.0", _EXTENSIONS),
    ("v1.13.2", "1.36.0", "580.159.03", "595.71.05", "v1.19.0", _EXTENSIONS),
    ("v1.13.3", "1.36.0", "580.159.04", "595.71.05", "v1.19.0", _EXTENSIONS),
    ("v1.13.4", "1.36.0", "580.159.04", "595.71.05", "v1.19.1", _EXTENSIONS),
    ("v1.13.5", "1.36.0", "580.167.08", "595.71.05", "v1.19.1", _EXTENSIONS),
    ("v1.13.6", "1.36.0", "580.167.08", "595.71.05", "v1.19.1", _EXTENSIONS),
    ("v1.13.7", "1.36.0", "580.173.02", "595.71.05", "v1.19.1", _EXTENSIONS),
    ("v1.13.8", "1.36.0", "580.173.02", "595.71.05", "v1.19.1", _EXTENSIONS),
    ("v1.13.9", "1.36.3", "580.178.04", "595.91.07", "v1.19.1", f"{_EXTENSIONS}; {_NOTES}"),
    ("v1.14.0-rc.1", "1.36.1", "580.178.04", "595.91.07", "v1.19.1", _EXTENSIONS),
    ("v1.14.0", "1.36.1", "580.178.04", "595.91.07", "v1.19.1", "field reports for lts; production as in v1.14.0-rc.1"),
    ("v1.14.1", "1.36.1", "580.178.04", "595.91.07", "v1.19.1", "coffee-the-dev/talos-dgx-spark-guide for lts and Kubernetes"),
)
RELEASES: dict[str, Release] = {
    version: Release(version, kubernetes, Drivers(lts, production, toolkit), source)
    for version, kubernetes, lts, production, toolkit, source in _ROWS
}

# Config contract and the Kubernetes minors that a release supports: six each
# (siderolabs/talos pkg/machinery/constants SupportedKubernetesVersions).
OLDEST_MINOR = (1, 12)
NEWEST_MINOR = (1, 14)
_KUBERNETES_MINORS: dict[tuple[int, int], tuple[int, int]] = {(1, 12): (30, 35), (1, 13): (31, 36), (1, 14): (32, 37)}


@dataclass(frozen=True)
class Contract:
    """Which layout of the machine configuration a Talos minor writes."""

    name: str
    documents: bool

    def __str__(self) -> str:
        return self.name


def contract(version: str) -> Contract:
    """The configuration contract of a Talos release; refuses releases that Motley has no contract for."""
    minor = parse(version).minor_pair
    if minor < OLDEST_MINOR:
        raise MotleyError(
            f"motley_talos_version {version} is older than v{OLDEST_MINOR[0]}.{OLDEST_MINOR[1]}, the oldest that Motley writes configurations for",
            hint="set motley_talos_version: v1.14.1",
        )
    if minor > NEWEST_MINOR:
        raise MotleyError(
            f"motley_talos_version {version} is newer than v{NEWEST_MINOR[0]}.{NEWEST_MINOR[1]}, the newest that Motley knows; from v1.15 on the "
            "NVIDIA toolkit extension holds no container toolkit, so the device plugin alone finds no runtime `nvidia`",
            hint="set motley_talos_version: v1.14.1",
        )
    return Contract(f"v{minor[0]}.{minor[1]}", documents=minor >= (1, 14))


def release(version: str) -> Release | None:
    """The row of this release, if there is one."""
    return RELEASES.get(str(parse(version)))


def kubernetes_default(version: str) -> str:
    """Kubernetes version for a Talos release when the inventory names none: its own row, else the newest row of its minor."""
    wanted = parse(version)
    row = release(version)
    if row is not None:
        return row.kubernetes
    same = [row for row in RELEASES.values() if parse(row.version).minor_pair == wanted.minor_pair]
    older = [row for row in same if parse(row.version) <= wanted]
    pool = older or same
    if not pool:
        raise MotleyError(f"no Kubernetes version is known for Talos {version}", hint="set motley_kubernetes_version")
    return max(pool, key=lambda row: parse(row.version)).kubernetes


def check_kubernetes(version: str, kubernetes: str) -> str:
    """The Kubernetes version without its v, refused when this Talos release does not run it."""
    wanted = parse(kubernetes)
    low, high = _KUBERNETES_MINORS.get(parse(version).minor_pair, (0, 999))
    if wanted.major != 1 or not low <= wanted.minor <= high:
        raise MotleyError(
            f"motley_kubernetes_version {kubernetes} does not go with Talos {version}, which runs 1.{low} to 1.{high}",
            hint=f"set motley_kubernetes_version: {kubernetes_default(version)}",
        )
    return str(wanted).removeprefix("v")
