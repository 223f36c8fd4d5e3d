# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a node needs another image, and whether it may get one now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.talos.releases import parse


@dataclass(frozen=True)
class Decision:
    """What to do with a running node: nothing, or an upgrade for these reasons."""

    action: Literal["none", "upgrade"]
    reasons: tuple[str, ...] = ()


def compare(*, running_version: str, wanted_version: str, running_schematic: str, wanted_schematic: str) -> list[str]:
    """Differences between what runs and what is wanted, as a person reads them; talosctl never says "unchanged" itself."""
    reasons = []
    if parse(running_version) != parse(wanted_version):
        reasons.append(f"Talos {running_version}, wanted {wanted_version}")
    if running_schematic != wanted_schematic:
        seen = running_schematic[:12] or "none (no image of the factory)"
        reasons.append(f"schematic {seen}, wanted {wanted_schematic[:12]}")
    return reasons


def decide(
    *,
    running_version: str,
    wanted_version: str,
    running_schematic: str,
    wanted_schematic: str,
    serving: str,
    allow_reboot: bool,
    node: str | None = None,
) -> Decision:
    """Upgrade or not, by the rule "no surprise reboot": serving says what runs on the node, empty for nothing."""
    reasons = compare(
        running_version=running_version,
        wanted_version=wanted_version,
        running_schematic=running_schematic,
        wanted_schematic=wanted_schematic,
    )
    if not reasons:
        return Decision("none")
    running, wanted = parse(running_version), parse(wanted_version)
    if wanted.major != running.major or wanted.minor > running.minor + 1:
        raise MotleyError(
            f"Talos goes one minor release at a time, not from {running_version} to {wanted_version}",
            hint=f"set motley_talos_version to the newest v{running.major}.{running.minor + 1} first",
            node=node,
        )
    if wanted < running and wanted.minor_pair != running.minor_pair:
        raise MotleyError(
            f"the node runs Talos {running_version}, which is newer than motley_talos_version {wanted_version}",
            hint=f"set motley_talos_version: {running_version}; an older minor does not read a newer one's configuration",
            node=node,
        )
    if serving and not allow_reboot:
        raise MotleyError(
            f"{'; '.join(reasons)}: that takes a reboot, and {serving} runs on this node",
            hint="run again with -e motley_allow_reboot=true when the service may stop",
            node=node,
        )
    return Decision("upgrade", tuple(reasons))


def rolled_back(
    *, running_version: str, wanted_version: str, running_schematic: str, wanted_schematic: str, node: str | None = None
) -> MotleyError:
    """The node came back with the old image: the new one did not boot (Talos tries it once and falls back)."""
    seen = "; ".join(
        compare(
            running_version=running_version,
            wanted_version=wanted_version,
            running_schematic=running_schematic,
            wanted_schematic=wanted_schematic,
        )
    )
    return MotleyError(
        f"the new image did not boot and the node fell back to the old one: node runs {seen}",
        hint="look at its console during a boot; nothing is lost, the old system runs",
        node=node,
    )


def arguments(image: str, *, powercycle: bool, timeout: int) -> list[str]:
    """Arguments of `talosctl upgrade`.

    The drain is ours: talosctl's own one comes after the installation and leaves the node cordoned when it fails. A GB10
    needs its power cycled, for after a kexec its GPU does not come up.
    """
    return [
        "upgrade", "--image", image, "--drain=false", "--wait=false", "--progress", "plain",
        "--reboot-mode", "powercycle" if powercycle else "default", "--timeout", f"{timeout}s",
    ]  # fmt: skip
