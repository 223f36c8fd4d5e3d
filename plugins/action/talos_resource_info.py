# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Any resource of a Talos node."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.talos import redact
from ansible_collections.motley.inference.plugins.plugin_utils import talos_node
from ansible_collections.motley.inference.plugins.plugin_utils.action import Context, MotleyAction
from ansible_collections.motley.inference.plugins.plugin_utils.talosctl import Talosctl, Target

_SECRET_TYPES = ("machineconfig", "mc", "machineconfigs", "secret", "rootsecret", "certificate", "osrootsecret")


class ActionModule(MotleyAction):
    """By an address it needs no inventory; else the node is this host's. Secrets inside a resource are replaced."""

    ARGUMENTS: ClassVar[dict[str, Any]] = {
        "resource": {"type": "str", "required": True},
        "id": {"type": "str"},
        "namespace": {"type": "str"},
        "node": {"type": "str"},
        "address": {"type": "str"},
        "talosconfig": {"type": "path"},
        "talosctl": {"type": "str", "default": "talosctl"},
        "insecure": {"type": "bool"},
    }

    def perform(self, args: dict[str, Any], context: Context) -> dict[str, Any]:
        if args["address"]:
            target = Target(args["node"] or args["address"], args["address"])
            talosctl = Talosctl(args["talosctl"], talosconfig=args["talosconfig"])
        else:
            target = talos_node.target(context.node(args["node"]))
            talosctl = talos_node.client(context)
        insecure = args["insecure"]
        if insecure is None:
            state = talosctl.probe(target)
            if state.kind == "unreachable":
                raise MotleyError(
                    f"the node does not answer ({state.detail})", hint="check its address and that it is up", node=target.name
                )
            talos_node.refuse_state(state, target.name)
            insecure = state.insecure
        found = talosctl.get(target, args["resource"], insecure=insecure, identifier=args["id"] or "", namespace=args["namespace"] or "")
        return {"changed": False, "resources": _without_secrets(found, args["resource"])}


def _without_secrets(found: list[dict[str, Any]], resource: str) -> list[dict[str, Any]]:
    """Machine configurations are one text; other secret types show keys as fields."""
    if not resource.lower().startswith(_SECRET_TYPES):
        return found
    for item in found:
        spec = item.get("spec")
        item["spec"] = redact.redact(spec) if isinstance(spec, str) else _fields(spec)
    return found


def _fields(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _fields(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_fields(item) for item in value]
    return redact.GENERATED if isinstance(value, str) and len(value) > 16 else json.loads(json.dumps(value))
