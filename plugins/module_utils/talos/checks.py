# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the node that runs is the node that was planned: release, schematic, extensions, driver, modules, arguments."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.motley.inference.plugins.module_utils.talos import drivers
from ansible_collections.motley.inference.plugins.module_utils.talos.resources import Extensions


@dataclass(frozen=True)
class Check:
    """One comparison: what was expected, what was seen, and what to do when they differ."""

    id: str
    passed: bool
    expected: str
    seen: str
    remedy: str = ""

    def as_dict(self) -> dict[str, object]:
        """Plain data."""
        return {"id": self.id, "passed": self.passed, "expected": self.expected, "seen": self.seen, "remedy": self.remedy}


def image_checks(
    *,
    wanted_version: str,
    wanted_schematic: str,
    wanted_extensions: Sequence[str],
    wanted_args: Sequence[str],
    wanted_arch: str,
    driver: str = "",
    gpu: bool,
    version: str,
    arch: str,
    extensions: Extensions,
    modules: Collection[str],
    cmdline: Sequence[str],
) -> list[Check]:
    """All comparisons of a running node with its plan; driver is the version that the factory offers, empty if unknown."""
    again = "run --tags talos_image"
    checks = [
        Check("version", version == wanted_version, wanted_version, version, f"{again}: the node runs another release than planned"),
        Check("architecture", arch == wanted_arch, wanted_arch, arch, "check ansible_host: this address belongs to another machine"),
        Check("schematic", extensions.schematic == wanted_schematic, wanted_schematic[:12], extensions.schematic[:12] or "none", again),
    ]
    names = [name.removeprefix("siderolabs/") for name in wanted_extensions]
    missing = [name for name in names if name not in extensions.versions]
    checks.append(Check("extensions", not missing, ", ".join(names) or "none", ", ".join(sorted(extensions.versions)) or "none", again))
    lost = [arg for arg in wanted_args if arg not in cmdline]
    checks.append(
        Check(
            "cmdline",
            not lost,
            " ".join(wanted_args) or "nothing special",
            f"without {' '.join(lost)}" if lost else "as planned",
            f"{again}: kernel arguments come with the image, and this boot did not use it (see /proc/cmdline)",
        )
    )
    if gpu:
        checks += [_driver(extensions, names, driver), _modules(modules)]
    return checks


def _driver(extensions: Extensions, names: Sequence[str], expected: str) -> Check:
    seen = {name: extensions.driver(name) for name in names if name.startswith((*drivers.KMOD.values(), drivers.TOOLKIT))}
    values = set(seen.values())
    passed = len(values) == 1 and values != {""} and (not expected or values == {expected})
    text = ", ".join(f"{name} {value or 'missing'}" for name, value in seen.items())
    return Check(
        "driver",
        passed,
        expected or "one version for modules and userland",
        text or "none",
        "give kernel modules and container toolkit the same branch, then run --tags talos_image",
    )


def _modules(modules: Collection[str]) -> Check:
    missing = [name for name in drivers.MODULES if name not in modules]
    return Check(
        "modules",
        not missing,
        ", ".join(drivers.MODULES),
        f"without {', '.join(missing)}" if missing else "all loaded",
        "the driver did not come up: see `talosctl dmesg`; on a GB10 power it off and on once, a warm reboot can leave its GPU dead",
    )


def failed(checks: Sequence[Check]) -> list[Check]:
    """Those that did not pass."""
    return [check for check in checks if not check.passed]


def table(checks: Mapping[str, Sequence[Check]]) -> str:
    """Lines for a person, only what failed."""
    return "\n".join(
        f"{node}: {check.id}: expected {check.expected}, seen {check.seen}; {check.remedy}"
        for node, items in checks.items()
        for check in failed(items)
    )
