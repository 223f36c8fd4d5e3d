# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is there before a launch, against the plan."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.motley.inference.plugins.module_utils.serving import checks

from .builders import places, plan

SHM = 2**30
UP = 0x1043
MEMINFO = "MemTotal:       125489152 kB\nMemFree:         1000000 kB\nMemAvailable:   {available} kB\n"
GOOD_SMI = "0, NVIDIA GeForce RTX 4090, 24564, 24210, 0\n1, NVIDIA GeForce RTX 4090, 24564, 24210, 0\n"


def probe(**more: Any) -> dict[str, Any]:
    base = {"smi": GOOD_SMI, "smi_error": "", "meminfo": MEMINFO.format(available=120_000_000), "flags": UP, "address": None, "interfaces": ["lo", "enp3s0"]}
    return {**base, **more}


def judge(node: int = 0, **more: Any) -> checks.Found:
    return checks.judge(places().members[node], probe(**more), shm_bytes=SHM)


def test_all_is_there() -> None:
    found = judge()
    assert (found.problems, found.shortages) == ((), ())
    assert [d.free_gib for d in found.devices] == [24210 / 1024] * 2


@pytest.mark.parametrize(
    ("change", "text", "hint"),
    [
        ({"flags": None}, "x86-01 has no interface enp3s0 any more (it has lo, enp3s0)", "nccl_interface"),
        ({"flags": 0x1002}, "x86-01: enp3s0 is down", "cable"),
        ({"flags": 0x1003}, "x86-01: enp3s0 is down", "cable"),
        ({"address": "10.0.0.21"}, "enp3s0 has the address 10.0.0.21, planned is 10.0.0.20", "motley_address"),
        ({"smi": "", "smi_error": "NVIDIA-SMI has failed\nbecause"}, "shows 0 devices, planned are 2: because", "gpu_device_plugin"),
        ({"smi": GOOD_SMI.splitlines()[0]}, "shows 1 devices, planned are 2", "gpu_device_plugin"),
    ],
)
def test_problems(change: dict[str, Any], text: str, hint: str) -> None:
    found = judge(**change)
    assert text in found.problems[0]
    assert hint in found.hints[0]


def test_a_card_that_is_in_use() -> None:
    found = judge(smi=GOOD_SMI.replace("1, NVIDIA GeForce RTX 4090, 24564, 24210", "1, NVIDIA GeForce RTX 4090, 24564, 12288"))
    (short,) = found.shortages
    assert (short.device, short.free_gib, short.needed_gib) == (1, 12.0, 21.6)
    assert "x86-01: 12.00 of 23.99 GiB of device 1 is free, the plan takes 21.60" in short.text()


def test_a_card_that_does_not_tell_is_no_shortage() -> None:
    assert judge(smi=GOOD_SMI.replace("24564, 24210", "[N/A], [N/A]")).shortages == ()


@pytest.mark.parametrize(("available", "short"), [(120_000_000, 0), (114_500_000, 0), (110_000_000, 1), (20_000_000, 1)])
def test_unified_memory_counts_what_is_available_and_shm(available: int, short: int) -> None:
    smi = "0, NVIDIA GB10, [N/A], [N/A], 0\n"
    found = judge(1, smi=smi, meminfo=MEMINFO.format(available=available), interfaces=["enP7s7"])
    assert len(found.shortages) == short
    if short:
        assert found.shortages[0].needed_gib == pytest.approx(109.0)
        assert found.shortages[0].unified


def shortage(free: float) -> checks.Shortage:
    return checks.Shortage("x86-01", 1, free, 24.0, 21.6, unified=False)


@pytest.mark.parametrize(
    ("free", "fraction"),
    [
        (21.0, 0.87),  # of 24 GiB
        (14.4, 0.60),
        (12.9, None),  # 10 weights, 2 reserve and a tenth of 9.6 KV no longer fit
        (1.0, None),
    ],
)
def test_the_fraction_that_fits(free: float, fraction: float | None) -> None:
    assert checks.fitting_fraction([shortage(free)], plan()) == fraction
