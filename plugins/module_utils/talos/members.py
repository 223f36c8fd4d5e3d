# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kubernetes nodes against the planned machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Member:
    """A node as Kubernetes has it."""

    name: str
    arch: str
    ready: bool
    reason: str
    schedulable: bool
    kubelet: str
    system: str
    addresses: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "addresses": list(self.addresses)}


def read(node: Mapping[str, Any]) -> Member:
    """A Node object as a member."""
    status = node.get("status") or {}
    info = status.get("nodeInfo") or {}
    condition: Mapping[str, Any] = next((item for item in status.get("conditions") or [] if item.get("type") == "Ready"), {})
    labels = node.get("metadata", {}).get("labels") or {}
    return Member(
        name=str(node.get("metadata", {}).get("name", "")),
        arch=str(info.get("architecture") or labels.get("kubernetes.io/arch", "")),
        ready=condition.get("status") == "True",
        reason=str(condition.get("message") or condition.get("reason") or "it has not said that it is Ready"),
        schedulable=not (node.get("spec") or {}).get("unschedulable"),
        kubelet=str(info.get("kubeletVersion", "")),
        system=str(info.get("osImage", "")),
        addresses=tuple(str(item.get("address")) for item in status.get("addresses") or [] if item.get("type") == "InternalIP"),
    )


def problems(found: Sequence[Member], planned: Mapping[str, str]) -> list[str]:
    """What keeps the cluster from being the planned one (architecture by name), a line each."""
    by_name = {item.name: item for item in found}
    strangers = sorted(set(by_name) - set(planned))
    lines = []
    for name, arch in planned.items():
        item = by_name.get(name)
        if item is None:
            lines.append(
                f"{name} has not joined" + (f"; there is {', '.join(strangers)}, which the inventory does not name" if strangers else "")
            )
        elif item.arch != arch:
            lines.append(f"{name} is {item.arch}, planned was {arch}")
        elif not item.ready:
            lines.append(f"{name} is not Ready: {item.reason}")
        elif not item.schedulable:
            lines.append(f"{name} is cordoned: kubectl uncordon {name}")
    return lines
