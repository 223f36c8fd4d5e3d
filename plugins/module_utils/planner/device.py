# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Accelerators, links and the devices of a cluster.

Vendor figures are priors. A row that was measured says so; every other one is the vendor's, times an efficiency.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import NamedTuple

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError

GIB = 1 << 30
DECODE_EFFICIENCY = 0.85  # share of the vendor's bandwidth that decoding reaches: 0.79 to 0.94 measured on GB10
PREFILL_EFFICIENCY = 0.55  # share of the vendor's dense FLOPS that prefill reaches: an estimate
UNIFIED_HOST_RESERVE_GIB = 12.0  # kernel, Kubernetes, Ray and page cache beside the engine in the same pool
DEFAULT_LINK = "10gbe-tcp"


class Accelerator(NamedTuple):
    """One row of the accelerator table."""

    id: str
    name: str  # as nvidia-smi prints it
    memory_gib: float  # what a CUDA framework can allocate on an idle card
    bandwidth_gbs: float  # vendor peak, decimal GB/s
    tflops: float  # dense BF16 with FP32 accumulation (FP16 where there is no BF16)
    capability: str
    unified: bool
    arch: str  # of the host
    peer: str  # link between two such cards of one node
    source: str


_DGX = "NVIDIA DGX Spark hardware page; two units measured at 240 GB/s read; CUDA total 119.6 to 121.7 GiB by OS release"
_ADA = "NVIDIA Ada GPU architecture whitepaper"
_BLACKWELL = "NVIDIA RTX Blackwell GPU architecture whitepaper"
_SHEET = "NVIDIA datasheet of the card"

ACCELERATORS: dict[str, Accelerator] = {
    row.id: row
    for row in (
        Accelerator("gb10", "NVIDIA GB10", 119.6, 273.0, 125.0, "12.1", True, "arm64", "pcie5-x16", _DGX),
        Accelerator(
            "rtx3090",
            "NVIDIA GeForce RTX 3090",
            23.69,
            936.0,
            71.0,
            "8.6",
            False,
            "amd64",
            "pcie4-x16",
            "NVIDIA GA102 whitepaper; 65.4 TFLOPS measured",
        ),
        Accelerator("rtx3090ti", "NVIDIA GeForce RTX 3090 Ti", 23.69, 1008.0, 80.0, "8.6", False, "amd64", "pcie4-x16", "NVIDIA GA102 whitepaper"),
        Accelerator("rtx4080", "NVIDIA GeForce RTX 4080", 15.7, 716.8, 97.5, "8.9", False, "amd64", "pcie4-x16", _ADA),
        Accelerator("rtx4090", "NVIDIA GeForce RTX 4090", 23.64, 1008.0, 165.2, "8.9", False, "amd64", "pcie4-x16", _ADA),
        Accelerator("rtx5060ti16", "NVIDIA GeForce RTX 5060 Ti", 15.5, 448.0, 47.4, "12.0", False, "amd64", "pcie4-x16", _BLACKWELL),
        Accelerator("rtx5070ti", "NVIDIA GeForce RTX 5070 Ti", 15.5, 896.0, 87.9, "12.0", False, "amd64", "pcie5-x16", _BLACKWELL),
        Accelerator("rtx5080", "NVIDIA GeForce RTX 5080", 15.5, 960.0, 112.6, "12.0", False, "amd64", "pcie5-x16", _BLACKWELL),
        Accelerator("rtx5090", "NVIDIA GeForce RTX 5090", 31.36, 1792.0, 209.5, "12.0", False, "amd64", "pcie5-x16", _BLACKWELL),
        Accelerator("rtxa6000", "NVIDIA RTX A6000", 47.54, 768.0, 154.8, "8.6", False, "amd64", "pcie4-x16", _SHEET),
        Accelerator("rtx6000ada", "NVIDIA RTX 6000 Ada Generation", 47.4, 960.0, 364.2, "8.9", False, "amd64", "pcie4-x16", _SHEET),
        Accelerator(
            "rtxpro6000", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 94.97, 1792.0, 503.8, "12.0", False, "amd64", "pcie5-x16", _SHEET
        ),
        Accelerator(
            "rtxpro6000maxq",
            "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
            94.97,
            1792.0,
            438.9,
            "12.0",
            False,
            "amd64",
            "pcie5-x16",
            _SHEET,
        ),
        Accelerator(
            "rtxpro6000server", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 94.97, 1597.0, 468.8, "12.0", False, "amd64", "pcie5-x16", _SHEET
        ),
        Accelerator("l4", "NVIDIA L4", 22.03, 300.0, 121.0, "8.9", False, "amd64", "pcie4-x16", _SHEET),
        Accelerator("l40", "NVIDIA L40", 44.39, 864.0, 181.05, "8.9", False, "amd64", "pcie4-x16", _SHEET),
        Accelerator("l40s", "NVIDIA L40S", 44.39, 864.0, 362.05, "8.9", False, "amd64", "pcie4-x16", _SHEET),
        Accelerator("a10", "NVIDIA A10", 22.0, 600.0, 125.0, "8.6", False, "amd64", "pcie4-x16", _SHEET),
        Accelerator("a100-40", "NVIDIA A100-SXM4-40GB", 39.39, 1555.0, 312.0, "8.0", False, "amd64", "nvlink4-h100", _SHEET),
        Accelerator("a100-80-pcie", "NVIDIA A100 80GB PCIe", 79.15, 1935.0, 312.0, "8.0", False, "amd64", "pcie4-x16", _SHEET),
        Accelerator("a100-80-sxm", "NVIDIA A100-SXM4-80GB", 79.15, 2039.0, 312.0, "8.0", False, "amd64", "nvlink4-h100", _SHEET),
        Accelerator("h100-nvl", "NVIDIA H100 NVL", 93.1, 3900.0, 835.0, "9.0", False, "amd64", "pcie5-x16", _SHEET),
        Accelerator("h100-pcie", "NVIDIA H100 PCIe", 79.1, 2000.0, 756.0, "9.0", False, "amd64", "pcie5-x16", _SHEET),
        Accelerator("h100-sxm", "NVIDIA H100 80GB HBM3", 79.1, 3350.0, 989.4, "9.0", False, "amd64", "nvlink4-h100", _SHEET),
        Accelerator(
            "h200",
            "NVIDIA H200",
            139.8,
            4800.0,
            989.4,
            "9.0",
            False,
            "amd64",
            "nvlink4-h100",
            "NVIDIA H200 datasheet; 4.3 TB/s copy and 788 TFLOPS measured",
        ),
        Accelerator(
            "b200",
            "NVIDIA B200",
            178.0,
            8000.0,
            2250.0,
            "10.0",
            False,
            "amd64",
            "nvlink4-h100",
            "NVIDIA HGX B200 datasheet; usable memory approximate",
        ),
        Accelerator("gh200-96", "NVIDIA GH200 480GB", 94.5, 4000.0, 989.4, "9.0", False, "arm64", "nvlink4-h100", _SHEET),
        Accelerator("jetson-thor", "NVIDIA Thor", 122.0, 273.0, 258.0, "11.0", True, "arm64", "pcie5-x16", _SHEET),
        Accelerator("t4", "Tesla T4", 14.58, 320.0, 65.0, "7.5", False, "amd64", "pcie4-x16", _SHEET),
        Accelerator("v100-16", "Tesla V100-SXM2-16GB", 15.77, 900.0, 125.0, "7.0", False, "amd64", "pcie4-x16", _SHEET),
        Accelerator("v100-32", "Tesla V100-SXM2-32GB", 31.74, 900.0, 125.0, "7.0", False, "amd64", "pcie4-x16", _SHEET),
    )
}


@dataclass(frozen=True)
class Link:
    """How two workers exchange tensors."""

    id: str
    gbs: float  # GB/s, one direction
    rtt_us: float  # round trip


LINKS: dict[str, Link] = {
    link.id: link
    for link in (
        Link("1gbe", 0.117, 150.0),
        Link("2.5gbe", 0.29, 120.0),
        Link("10gbe-tcp", 1.15, 60.0),
        Link("25gbe-tcp", 2.7, 40.0),
        Link("cx7-200g-roce-single-rail", 13.9, 25.0),
        Link("cx7-200g-roce-dual-rail", 20.5, 25.0),
        Link("pcie4-x16", 25.0, 10.0),
        Link("pcie5-x16", 50.0, 10.0),
        Link("nvlink-3090-bridge", 50.0, 5.0),
        Link("nvlink4-h100", 370.0, 5.0),
    )
}


@dataclass(frozen=True)
class Device:
    """One device of one node, with what the inventory overrides already applied."""

    node: str
    index: int
    accelerator: str
    memory: int  # bytes that the framework sees
    bandwidth: float  # bytes a second, efficiency applied
    flops: float  # FLOPS, efficiency applied
    unified: bool
    capability: str
    peer: Link
    fixed_reserve: int | None  # bytes, where the inventory declares the reserve: then it is the only one
    host_reserve: int  # bytes of a unified pool that belong to the host

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal for devices that are interchangeable in every figure."""
        return (self.accelerator, self.memory, self.bandwidth, self.flops, self.unified, self.fixed_reserve, self.host_reserve, self.peer)

    @property
    def safe_fraction(self) -> float:
        """Largest memory fraction, in hundredths, at which the start-up check of vLLM finds that much free."""
        if self.fixed_reserve is not None or not self.host_reserve:
            return 1.0
        return max(0.01, int((self.memory - self.host_reserve) * 100 // self.memory) / 100)


@dataclass(frozen=True)
class Node:
    """One machine."""

    name: str
    address: str
    devices: tuple[Device, ...]
    arch: str
    env: tuple[tuple[str, str], ...] = ()  # the operator's variables for this node


def nearest(word: str, known: list[str]) -> str:
    """A "did you mean" for a misspelt word, or the list of what there is."""
    longer = [k for k in known if word and k.lower().startswith(word.lower())]
    close = longer or difflib.get_close_matches(word.lower(), [k.lower() for k in known], n=1, cutoff=0.5)
    if close:
        return f"Did you mean {next(k for k in known if k.lower() == close[0].lower())!r}?"
    return "Known: " + ", ".join(sorted(known)) + "."


def find_accelerator(text: str, where: str) -> Accelerator:
    """The row for an id or an nvidia-smi name; never a default."""
    word = text.strip()
    if word.lower() in ACCELERATORS:
        return ACCELERATORS[word.lower()]
    for row in ACCELERATORS.values():
        if row.name.lower() == word.lower():
            return row
    if "mig" in re.split(r"[ \-.:]", word.lower()):
        raise MotleyError(
            f"{where}: {text!r} is a slice of a card (MIG); Motley plans whole devices",
            hint="name the whole card, or turn MIG off on that node",
        )
    prefixed = [row for row in ACCELERATORS.values() if word.lower().startswith(row.name.lower() + " ")]
    if prefixed:
        return max(prefixed, key=lambda row: len(row.name))
    raise MotleyError(f"{where}: unknown accelerator {text!r}", hint=nearest(word, list(ACCELERATORS)))


def find_link(text: str, where: str) -> Link:
    """The row of the link table."""
    if text not in LINKS:
        raise MotleyError(f"{where}: unknown link {text!r}", hint=nearest(text, list(LINKS)) + ' Or give "gbs" and "rtt_us".')
    return LINKS[text]


@dataclass(frozen=True)
class Cluster:
    """The nodes and how they are joined."""

    nodes: tuple[Node, ...]
    pairs: tuple[tuple[frozenset[str], Link], ...]
    fallback: Link

    def node(self, name: str) -> Node:
        return next(n for n in self.nodes if n.name == name)

    def between(self, one: str, other: str) -> Link:
        """The link between two nodes."""
        wanted = frozenset((one, other))
        return next((link for pair, link in self.pairs if pair == wanted), self.fallback)

    def link(self, one: Device, other: Device) -> Link:
        """The link between two devices: the slower of both buses inside a node."""
        if one.node == other.node:
            return min(one.peer, other.peer, key=lambda link: link.gbs)
        return self.between(one.node, other.node)
