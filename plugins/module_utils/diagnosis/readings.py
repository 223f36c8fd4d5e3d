# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Text that machines print when asked what their devices and links do: nvidia-smi and /proc/net/dev."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# Memory is not asked for: on unified memory NVML answers "Not Supported", and nothing here needs it.
SMI_QUERY = ("index", "uuid", "name", "utilization.gpu", "pstate")
SMI_COMMAND = ("nvidia-smi", f"--query-gpu={','.join(SMI_QUERY)}", "--format=csv,noheader,nounits")
NET_COMMAND = ("cat", "/proc/net/dev")
_IDLE_PSTATE = 8  # P8 and slower are idle clocks


@dataclass(frozen=True)
class Gpu:
    """One device in one sample; utilization and P-state are None where the driver does not tell."""

    index: int
    uuid: str
    name: str
    utilization: int | None
    pstate: int | None


def gpus(text: str) -> list[Gpu]:
    """Lines of SMI_COMMAND; what is no line of it (warnings, errors) is skipped."""
    found = []
    for line in text.splitlines():
        cells = [c.strip() for c in line.split(",")]
        if len(cells) == len(SMI_QUERY) and cells[0].isdigit():
            state = re.fullmatch(r"P(\d+)", cells[4])
            found.append(Gpu(int(cells[0]), cells[1], cells[2], int(cells[3]) if cells[3].isdigit() else None, int(state[1]) if state else None))
    return found


@dataclass(frozen=True)
class Busy:
    """A device over all samples of a probe."""

    index: int
    name: str
    utilization: int | None  # highest
    pstate: int | None  # fastest
    samples: int

    @property
    def busy(self) -> bool | None:
        """Whether it worked; None where the driver told neither load nor P-state."""
        if self.utilization is not None:
            return self.utilization > 0
        return None if self.pstate is None else self.pstate < _IDLE_PSTATE

    @property
    def text(self) -> str:
        load = "load not told" if self.utilization is None else f"up to {self.utilization} %"
        return load + ("" if self.pstate is None else f", P{self.pstate}")


def busiest(samples: Iterable[str]) -> list[Busy]:
    """The devices of one node over the samples of a probe, by index."""
    seen: dict[int, list[Gpu]] = {}
    for text in samples:
        for gpu in gpus(text):
            seen.setdefault(gpu.index, []).append(gpu)
    return [
        Busy(index, own[0].name, max((g.utilization for g in own if g.utilization is not None), default=None),
             min((g.pstate for g in own if g.pstate is not None), default=None), len(own))
        for index, own in sorted(seen.items())
    ]


def counters(text: str) -> dict[str, int]:
    """Bytes received and sent by each interface of /proc/net/dev, loopback left out."""
    found = {}
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        cells = rest.split()
        if colon and len(cells) >= 9 and cells[0].isdigit() and cells[8].isdigit() and name.strip() != "lo":
            found[name.strip()] = int(cells[0]) + int(cells[8])
    return found


def moved(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Bytes per interface between two readings, most first; a counter that went back was reset and says nothing."""
    grown = {name: after[name] - before[name] for name in after if name in before and after[name] >= before[name]}
    return dict(sorted(grown.items(), key=lambda item: -item[1]))


def size(count: float) -> str:
    """Bytes for people."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(count) >= factor:
            return f"{count / factor:.2f} {unit}"
    return f"{count:.0f} B"
