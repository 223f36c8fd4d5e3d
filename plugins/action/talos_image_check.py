# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a node runs the image that was planned."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.talos import checks, resources, upgrade
from ansible_collections.motley.inference.plugins.plugin_utils import talos_node
from ansible_collections.motley.inference.plugins.plugin_utils.action import Context, MotleyAction
from ansible_collections.motley.inference.plugins.plugin_utils.talosctl import Talosctl


class ActionModule(MotleyAction):
    """before: says what an upgrade would be for, and judges nodes that need none. after: everything has to be as planned."""

    ARGUMENTS: ClassVar[dict[str, Any]] = {
        "node": {"type": "str"},
        "moment": {"type": "str", "choices": ["before", "after"], "default": "after"},
        "timeout": {"type": "int", "default": 60},
    }

    def perform(self, args: dict[str, Any], context: Context) -> dict[str, Any]:
        node = context.node(args["node"])
        name, talosctl = node["name"], talos_node.client(context)
        wanted = talos_node.require_locked(context, name)
        state = talos_node.wait_for_answer(context, talosctl, node)
        if state.kind != "configured" or state.stage not in resources.RUNNING_STAGES:
            if not context.check_mode and args["moment"] == "after":
                raise MotleyError(
                    f"the node does not run its installed system ({talos_node.describe(state)})",
                    hint="run --tags talos_config first",
                    node=name,
                )
            if state.kind == "unreachable":
                talos_node.note(context, name, f"note: {talos_node.describe(state)}; nothing was compared")
            return {"changed": False, "state": state.kind, "upgrade": False, "reasons": [], "checks": []}
        seen = talos_node.observe(talosctl, node)
        reasons = upgrade.compare(
            running_version=seen["version"],
            wanted_version=wanted["version"],
            running_schematic=seen["extensions"].schematic,
            wanted_schematic=wanted["schematic"],
        )
        if not reasons and args["moment"] == "before" and name in (context.state.read_json(talos_node.PENDING) or {}):
            reasons = ["an upgrade that was interrupted is to be finished"]
        if reasons and (args["moment"] == "before" or context.check_mode):
            return {"changed": False, "state": state.kind, "upgrade": True, "reasons": reasons, "checks": []}
        found = _settled(context, talosctl, node, wanted, seen, timeout=args["timeout"] if args["moment"] == "after" else 0)
        bad = checks.failed(found)
        # Before the configuration is applied the modules may not be listed yet; talos_config looks again then.
        pending = args["moment"] == "before" and [item.id for item in bad] == ["modules"]
        if bad and not pending:
            raise MotleyError(
                f"the node is not as planned: {', '.join(item.id for item in bad)}",
                node=name,
                evidence=[f"{item.id}: expected {item.expected}, seen {item.seen}" for item in bad],
                hint="; ".join(dict.fromkeys(item.remedy for item in bad)),
            )
        talos_node.record(context, name, seen)
        context.state.record_facts(name, {"image_proven": not bad}, source="talos_image_check")
        return {"changed": False, "state": state.kind, "upgrade": False, "reasons": [], "checks": [item.as_dict() for item in found]}


def _settled(
    context: Context, talosctl: Talosctl, node: dict[str, Any], wanted: dict[str, Any], seen: dict[str, Any], *, timeout: int
) -> list[checks.Check]:
    """The checks, once the modules are loaded: right after a boot they may take a moment."""
    since = time.monotonic()
    while True:
        found = look(talosctl, node, wanted, seen, context)
        waits = [item.id for item in checks.failed(found)] == ["modules"]
        if not waits or context.check_mode or time.monotonic() - since >= timeout:
            return found
        context.progress("its NVIDIA kernel modules", since, key=node["name"])
        time.sleep(2)


def look(talosctl: Talosctl, node: dict[str, Any], wanted: dict[str, Any], seen: dict[str, Any], context: Context) -> list[checks.Check]:
    """Compare what runs with the lock."""
    where, image = talos_node.target(node), talos_node.image_of(context, node["name"])
    return checks.image_checks(
        wanted_version=wanted["version"],
        wanted_schematic=wanted["schematic"],
        wanted_extensions=image.extensions,
        wanted_args=image.kernel_args,
        wanted_arch=image.arch,
        driver=wanted["driver"],
        gpu=image.driver is not None,
        version=seen["version"],
        arch=seen["arch"],
        extensions=seen["extensions"],
        modules=resources.modules(talosctl.get(where, "modules")) if image.driver else (),
        cmdline=resources.cmdline(talosctl.get(where, "cmdline")),
    )
