# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is there just before a launch, against what the plan needs: memory of devices, of the host, and the interface."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.motley.inference.plugins.module_utils.serving.layout import Member

_UP, _RUNNING = 0x1, 0x40
_GIB = float(2**30)
# nvidia-smi rounds to whole MiB, and a context that ends a moment later may still be counted.
_TOLERANCE_GIB = 2 / 1024
_MEMINFO = re.compile(r"^(MemTotal|MemAvailable):\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True)
class Memory:
    """One device: what it has and what of it is free; None where it can not be told."""

    index: int
    name: str
    total_gib: float | None
    free_gib: float | None


@dataclass(frozen=True)
class Shortage:
    """A device with less free memory than the launch takes at its start."""

    node: str
    device: int
    free_gib: float
    total_gib: float
    needed_gib: float
    unified: bool

    def text(self) -> str:
        what = "of the shared memory is available" if self.unified else f"of device {self.device} is free"
        return f"{self.node}: {self.free_gib:.2f} of {self.total_gib:.2f} GiB {what}, the plan takes {self.needed_gib:.2f}"


@dataclass(frozen=True)
class Found:
    """One node's findings."""

    problems: tuple[str, ...] = ()
    shortages: tuple[Shortage, ...] = ()
    devices: tuple[Memory, ...] = ()
    hints: tuple[str, ...] = field(default=())


def _gib(text: str) -> float | None:
    try:
        return float(text) / 1024
    except ValueError:
        return None  # "[N/A]", "[Not Supported]": a GB10


def devices(smi: str) -> list[Memory]:
    """Rows of `nvidia-smi --query-gpu=index,name,memory.total,memory.free,utilization.gpu --format=csv,noheader,nounits`."""
    found = []
    for line in smi.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) >= 4 and cells[0].isdigit():
            found.append(Memory(int(cells[0]), cells[1], _gib(cells[2]), _gib(cells[3])))
    return found


def host_memory(meminfo: str) -> tuple[float, float]:
    """(total, available) in GiB, of /proc/meminfo."""
    values = {name: int(number) * 1024 / _GIB for name, number in _MEMINFO.findall(meminfo)}
    return values.get("MemTotal", 0.0), values.get("MemAvailable", 0.0)


def judge(member: Member, probe: Mapping[str, Any], *, shm_bytes: int) -> Found:
    """Compare one node's probe with its part of the plan."""
    problems, hints, shortages = [], [], []
    flags = probe.get("flags")
    if flags is None:
        problems.append(f"{member.name} has no interface {member.interface} any more (it has {', '.join(probe.get('interfaces') or [])})")
        hints.append("run --tags nccl_interface, then --tags ray_cluster")
    elif not (int(flags) & _UP and int(flags) & _RUNNING):
        problems.append(f"{member.name}: {member.interface} is down")
        hints.append("check the cable and the switch port")
    elif probe.get("address") and probe["address"] != member.address:
        problems.append(f"{member.name}: {member.interface} has the address {probe['address']}, planned is {member.address}")
        hints.append("correct the address, or motley_address, and run --tags nccl_interface")
    seen = devices(str(probe.get("smi") or ""))
    if len(seen) < member.gpus:
        why = str(probe.get("smi_error") or "").strip().splitlines()
        problems.append(f"{member.name} shows {len(seen)} devices, planned are {member.gpus}" + (f": {why[-1]}" if why else ""))
        hints.append("run --tags gpu_device_plugin")
    if member.unified:
        shortages += _unified(member, probe, shm_bytes)
    else:
        shortages += _discrete(member, seen)
    return Found(tuple(problems), tuple(shortages), tuple(seen), tuple(hints))


def _unified(member: Member, probe: Mapping[str, Any], shm_bytes: int) -> list[Shortage]:
    """One pool for host and device: what the engine takes at its start, and /dev/shm beside it, has to be available."""
    total, available = host_memory(str(probe.get("meminfo") or ""))
    needed = sum(member.budget_gib) + shm_bytes / _GIB
    if total and available + _TOLERANCE_GIB < needed:
        return [Shortage(member.name, 0, available, total, needed, unified=True)]
    return []


def _discrete(member: Member, seen: Sequence[Memory]) -> list[Shortage]:
    wanted = [m for m in seen if m.index in member.devices] if member.visible else list(seen[: member.gpus])
    found = []
    for memory, needed in zip(wanted, member.budget_gib, strict=False):
        if memory.free_gib is not None and memory.total_gib and memory.free_gib + _TOLERANCE_GIB < needed:
            found.append(Shortage(member.name, memory.index, memory.free_gib, memory.total_gib, needed, unified=False))
    return found


def fitting_fraction(shortages: Sequence[Shortage], plan: Mapping[str, Any]) -> float | None:
    """The largest memory fraction that finds its memory free everywhere and still holds weights and reserves; None: no fraction does."""
    fraction = min(
        [float(plan["gpu_memory_utilization"])]
        + [int((s.free_gib - (0.0 if not s.unified else max(0.0, s.needed_gib - _budget(plan, s)))) * 100 / _size(plan, s)) / 100 for s in shortages]
    )
    for stage in plan["stages"]:
        for worker in stage["workers"]:
            size = float(worker["budget_gib"]) / float(plan["gpu_memory_utilization"])
            # A tenth of the planned KV cache is the least that is worth a start.
            least = float(worker["weights_gib"]) + float(worker["reserve_gib"]) + 0.1 * float(worker["kv_gib"])
            if size * fraction < least:
                return None
    return fraction if fraction > 0 else None


def _workers(plan: Mapping[str, Any], node: str) -> list[Mapping[str, Any]]:
    return [w for stage in plan["stages"] for w in stage["workers"] if w["node"] == node]


def _budget(plan: Mapping[str, Any], shortage: Shortage) -> float:
    return sum(float(w["budget_gib"]) for w in _workers(plan, shortage.node))


def _size(plan: Mapping[str, Any], shortage: Shortage) -> float:
    """Memory of the device as the plan counts it."""
    budgets = [float(w["budget_gib"]) for w in _workers(plan, shortage.node)]
    return max(budgets) / float(plan["gpu_memory_utilization"])
