# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which NVIDIA driver an accelerator needs on which Talos release, and what is known about the pair.

Tables with a source per row: families of accelerators, and reports of what works or is broken on stock Talos.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.talos.releases import Branch, parse

Flavour = Literal["open", "nonfree"]
Level = Literal["works", "reported", "broken"]

KMOD: dict[str, str] = {"open": "nvidia-open-gpu-kernel-modules", "nonfree": "nonfree-kmod-nvidia"}
TOOLKIT = "nvidia-container-toolkit"
# The extension blacklists autoload, so the machine configuration has to list them (siderolabs/extensions nvidia-gpu).
MODULES: tuple[str, ...] = ("nvidia", "nvidia_uvm", "nvidia_drm", "nvidia_modeset")


@dataclass(frozen=True)
class Family:
    """Accelerators that take the same driver."""

    name: str
    arch: str
    flavours: tuple[Flavour, ...]  # the first is the default
    source: str
    powercycle: bool = False


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("volta", "amd64", ("nonfree",), "NVIDIA open-gpu-kernel-modules README: Turing and newer; 580 is the last branch for Volta"),
        Family("turing", "amd64", ("open", "nonfree"), "NVIDIA open-gpu-kernel-modules README"),
        Family("ampere", "amd64", ("open", "nonfree"), "NVIDIA open-gpu-kernel-modules README"),
        Family("ada", "amd64", ("open", "nonfree"), "NVIDIA open-gpu-kernel-modules README"),
        Family("hopper", "amd64", ("open", "nonfree"), "NVIDIA open-gpu-kernel-modules README"),
        Family("blackwell", "amd64", ("open",), "NVIDIA driver README: Blackwell by the open modules only"),
        Family("grace-hopper", "arm64", ("open",), "NVIDIA driver installation guide: Grace Hopper by the open modules only"),
        Family("gb10", "arm64", ("nonfree", "open"), "siderolabs/docs NVIDIA pages 1.13 and 1.14, siderolabs/talos#13315", powercycle=True),
    )
}

_FAMILY_OF: dict[str, str] = {
    "gb10": "gb10",
    "gh200-96": "grace-hopper",
    **dict.fromkeys(("v100-16", "v100-32"), "volta"),
    **dict.fromkeys(("t4",), "turing"),
    **dict.fromkeys(("rtx3090", "rtx3090ti", "rtxa6000", "a10", "a100-40", "a100-80-sxm", "a100-80-pcie"), "ampere"),
    **dict.fromkeys(("rtx4080", "rtx4090", "rtx6000ada", "l4", "l40", "l40s"), "ada"),
    **dict.fromkeys(("h100-sxm", "h100-pcie", "h100-nvl", "h200"), "hopper"),
    **dict.fromkeys(
        ("rtx5090", "rtx5080", "rtx5070ti", "rtx5060ti16", "rtxpro6000", "rtxpro6000maxq", "rtxpro6000server", "b200"), "blackwell"
    ),
}
_NO_TALOS: dict[str, str] = {
    "jetson-thor": "its driver comes with NVIDIA's own kernel only",
    "m3ultra": "Talos does not run on it",
}


@dataclass(frozen=True)
class Note:
    """What is known about a family, a range of releases (from, up to but without), a flavour and a branch."""

    id: str
    level: Level
    family: str
    since: str
    before: str
    flavours: tuple[str, ...]
    branches: tuple[str, ...]
    text: str
    remedy: str
    source: str

    def applies(self, family: str, version: str, flavour: str, branch: str) -> bool:
        """Whether it speaks of this combination."""
        seen = parse(version)
        if self.family != family or flavour not in self.flavours or branch not in self.branches:
            return False
        return (not self.since or seen >= parse(self.since)) and (not self.before or seen < parse(self.before))


_ANY_FLAVOUR, _ANY_BRANCH = ("open", "nonfree"), ("lts", "production")
NOTES: tuple[Note, ...] = (
    Note(
        "gb10-open-stall",
        "broken",
        "gb10",
        "v1.13.0",
        "",
        ("open",),
        _ANY_BRANCH,
        "the open kernel modules stall the GB10 at boot (kernel built with Clang and ThinLTO); the Talos API never comes up",
        "leave motley_talos_image_flavour at its default (nonfree)",
        "siderolabs/talos#13315; coffee-the-dev/talos-dgx-spark-guide",
    ),
    Note(
        "gb10-sva",
        "broken",
        "gb10",
        "",
        "v1.14.1",
        _ANY_FLAVOUR,
        _ANY_BRANCH,
        "the arm64 kernel of this release lacks CONFIG_ARM_SMMU_V3_SVA: nvidia-smi and the device plugin look right, but every CUDA call "
        "fails (cuInit returns 3)",
        "set motley_talos_version: v1.14.1 or newer",
        "siderolabs/talos#14087; siderolabs/pkgs kernel configuration",
    ),
    Note(
        "gb10-570",
        "broken",
        "gb10",
        "v1.12.0",
        "v1.13.0",
        _ANY_FLAVOUR,
        ("production",),
        "the production branch of this release is 570, which is older than the GB10",
        "leave motley_talos_image_branch at its default (lts)",
        "siderolabs/extensions nvidia-gpu/vars.yaml at v1.12.0",
    ),
    Note(
        "gb10-nonfree-lts",
        "works",
        "gb10",
        "v1.14.1",
        "",
        ("nonfree",),
        ("lts",),
        "CUDA and vLLM run over two DGX Sparks with the nonfree LTS driver 580.178.04",
        "",
        "coffee-the-dev/talos-dgx-spark-guide (2026-09-25)",
    ),
    Note(
        "gb10-production",
        "reported",
        "gb10",
        "v1.14.1",
        "",
        ("nonfree",),
        ("production",),
        "nobody has reported the production branch on a GB10 under Talos",
        "",
        "siderolabs/docs NVIDIA pages name LTS only",
    ),
    Note(
        "volta-595",
        "broken",
        "volta",
        "v1.13.0",
        "",
        _ANY_FLAVOUR,
        ("production",),
        "the production branch of this release is 595, and 580 is the last driver for Volta",
        "leave motley_talos_image_branch at its default (lts)",
        "NVIDIA driver 590 release notes",
    ),
)


def family(accelerator: str) -> Family:
    """The driver family of an accelerator id; refuses what Talos or NVIDIA has no driver for."""
    if accelerator in _NO_TALOS:
        raise MotleyError(
            f"{accelerator} has no driver on Talos: {_NO_TALOS[accelerator]}", hint="use motley_platform: k3s or host for this node"
        )
    name = _FAMILY_OF.get(accelerator) or _guess(accelerator)
    if name is None:
        raise MotleyError(
            f"no Talos driver is known for the accelerator {accelerator!r}", hint=f"known are {', '.join(sorted(_FAMILY_OF))}"
        )
    return FAMILIES[name]


def _guess(accelerator: str) -> str | None:
    """The family of a GeForce or RTX card that has no row of its own, by its series."""
    lower = accelerator.lower()
    for start, name in (("rtx20", "turing"), ("rtx30", "ampere"), ("rtx40", "ada"), ("rtx50", "blackwell"), ("rtxpro", "blackwell")):
        if lower.startswith(start):
            return name
    return None


@dataclass(frozen=True)
class Driver:
    """The driver of one node: what goes into its image, and what is known about that."""

    flavour: str
    branch: str
    arch: str
    families: tuple[str, ...]
    kernel_args: tuple[str, ...]
    notes: tuple[Note, ...]
    powercycle: bool

    @property
    def kmod(self) -> str:
        """Extension with the kernel modules."""
        return f"siderolabs/{KMOD[self.flavour]}-{self.branch}"

    @property
    def toolkit(self) -> str:
        """Extension with userland and container toolkit."""
        return f"siderolabs/{TOOLKIT}-{self.branch}"


def driver(
    accelerators: Sequence[str], version: str, *, flavour: str | None = None, branch: Branch | None = None, node: str | None = None
) -> Driver | None:
    """The driver for these accelerators on this release; None where there are none."""
    if not accelerators:
        return None
    families = {family(name).name: family(name) for name in accelerators}
    chosen = _flavour(list(families.values()), flavour, node=node)
    archs = {item.arch for item in families.values()}
    if len(archs) > 1:
        raise MotleyError(
            "motley_accelerators names cards of different machine architectures", hint="one node has one architecture", node=node
        )
    wanted: str = branch or "lts"
    notes = tuple(note for name in families for note in NOTES if note.applies(name, version, chosen, wanted))
    return Driver(
        flavour=chosen,
        branch=wanted,
        arch=archs.pop(),
        families=tuple(families),
        kernel_args=_kernel_args(set(families), version),
        notes=notes,
        powercycle=any(item.powercycle for item in families.values()),
    )


def _flavour(families: Sequence[Family], asked: str | None, *, node: str | None) -> str:
    common = [flavour for flavour in families[0].flavours if all(flavour in item.flavours for item in families)]
    if not common:
        raise MotleyError(
            f"the cards of this node need different NVIDIA kernel modules ({', '.join(f'{item.name}: {item.flavours[0]}' for item in families)}), "
            "and an image holds one flavour",
            hint="put the cards into different nodes",
            node=node,
        )
    if asked and asked not in common:
        raise MotleyError(
            f"motley_talos_image_flavour {asked} does not drive {', '.join(item.name for item in families)} ({families[0].source})",
            hint=f"use {common[0]}",
            node=node,
        )
    return asked or common[0]


def _kernel_args(families: set[str], version: str) -> tuple[str, ...]:
    """Arguments that the driver needs on this kernel.

    siderolabs/pkgs sets CONFIG_ARM64_BTI_KERNEL from Talos 1.13 on, and NVIDIA's binary objects have no landing pads
    (siderolabs/talos#13019, NVIDIA/open-gpu-kernel-modules#771).
    """
    if families & {"gb10", "grace-hopper"} and parse(version).minor_pair >= (1, 13):
        return ("arm64.nobti",)
    return ()


def refuse_broken(chosen: Driver, version: str, *, accepted: Sequence[str] = (), node: str | None = None) -> list[str]:
    """Raise for a known-broken combination that the operator has not accepted by its id; returns what to warn about."""
    warnings = []
    for note in chosen.notes:
        if note.level == "broken" and note.id not in accepted:
            raise MotleyError(
                f"Talos {version} with the {chosen.flavour} {chosen.branch} driver is known to be broken here: {note.text}",
                hint=f"{note.remedy}; or accept it with motley_talos_image_accept: [{note.id}]",
                node=node,
                evidence=(f"source: {note.source}",),
            )
        if note.level != "works":
            warnings.append(f"{note.text} ({note.source})")
    return warnings


def driver_version(tag: str) -> str:
    """`580.178.04` out of an extension's version `580.178.04-v1.13.9`."""
    return tag.split("-", 1)[0]
