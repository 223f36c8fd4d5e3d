# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The schematic of a node, registered at the Image Factory."""

from __future__ import annotations

from typing import Any, ClassVar

from ansible_collections.motley.inference.plugins.module_utils.talos import schematic
from ansible_collections.motley.inference.plugins.plugin_utils import talos_image, talos_node
from ansible_collections.motley.inference.plugins.plugin_utils.action import Context, MotleyAction
from ansible_collections.motley.inference.plugins.plugin_utils.factory import Factory


class ActionModule(MotleyAction):
    """With accelerators and talos_version it needs no inventory; without them it is the node's, and goes into lock.yml."""

    ARGUMENTS: ClassVar[dict[str, Any]] = {
        "node": {"type": "str"},
        "talos_version": {"type": "str"},
        "accelerators": {"type": "list", "elements": "str"},
        "arch": {"type": "str", "choices": ["amd64", "arm64"]},
        "flavour": {"type": "str", "choices": ["open", "nonfree"]},
        "branch": {"type": "str", "choices": ["lts", "production"]},
        "kernel_args": {"type": "list", "elements": "str"},
        "extensions": {"type": "list", "elements": "str"},
        "overlay": {"type": "dict"},
        "secureboot": {"type": "bool"},
        "accept": {"type": "list", "elements": "str"},
        "factory_url": {"type": "str"},
        "register": {"type": "bool", "default": True},
    }
    RULES: ClassVar[dict[str, Any]] = {"required_together": [["talos_version", "accelerators"]]}
    MUTATES = False

    def perform(self, args: dict[str, Any], context: Context) -> dict[str, Any]:
        if args["talos_version"] is None:
            return talos_image.of_inventory(context, args["node"] or context.host, register=args["register"])
        options = {name: args[name] for name in ("flavour", "branch", "kernel_args", "extensions", "overlay", "secureboot", "accept")}
        image = talos_node.build_image(args["accelerators"], args["talos_version"], arch=args["arch"], options=options, node=args["node"])
        url = args["factory_url"] or schematic.FACTORY
        entry = talos_image.register(image, Factory(url), node=args["node"], post=args["register"] and not context.check_mode)
        return {"changed": False, **talos_image.result(image, entry, url)}
