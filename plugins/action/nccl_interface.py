# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The network interface of one node that carries NCCL and Gloo, into nodes.json."""

from __future__ import annotations

from typing import Any, ClassVar

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.network import interface
from ansible_collections.motley.inference.plugins.plugin_utils import talos_node
from ansible_collections.motley.inference.plugins.plugin_utils.action import Context, MotleyAction

FACT = "interface"


class ActionModule(MotleyAction):
    """The up link that owns the node's inter-node address; refused with the candidates when in doubt."""

    ARGUMENTS: ClassVar[dict[str, Any]] = {"node": {"type": "str"}, "interface": {"type": "str"}}

    def perform(self, args: dict[str, Any], context: Context) -> dict[str, Any]:
        node = context.node(args["node"])
        name = node["name"]
        peers = [n["address"] for n in context.cluster()["nodes"] if n["name"] != name]
        read = _read(context, node)
        if read is None:
            return {"changed": False, "interface": None, "rejected": {}}
        links, addresses, routes = read
        choice = interface.choose(
            interface.links(links, addresses),
            node=name,
            address=node["address"],
            interface=args["interface"] or node["interface"],
            routes=routes,
            peers=peers,
        )
        for text in choice.warnings:
            context.warn(f"{name}: {text}")
        known = context.state.node_facts(name).get(FACT)
        found = choice.as_dict()
        if known != found:
            source = "motley_interface, checked on the node" if args["interface"] or node["interface"] else "talosctl get links, addresses, routes"
            context.state.record_facts(name, {FACT: found}, source=source)
        return {"changed": known != found, "interface": found, "rejected": choice.rejected}


def _read(context: Context, node: dict[str, Any]) -> tuple[list[Any], list[Any], list[Any]] | None:
    """Links, addresses and routes of the node; None in check mode where it can not be asked."""
    talosctl, target = talos_node.client(context), talos_node.target(node)
    try:
        links, addresses, routes = (talosctl.get(target, resource) for resource in ("links", "addresses", "routes"))
    except MotleyError as error:
        if not context.check_mode:
            raise
        context.display(f"  {node['name']}: note: {error.message}; the interface is not known yet")
        return None
    return links, addresses, routes
