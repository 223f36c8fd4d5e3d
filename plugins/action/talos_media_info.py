# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Boot media of all nodes, and what to do at the machines before."""

from __future__ import annotations

from typing import Any, ClassVar

from ansible_collections.motley.inference.plugins.module_utils.talos import media
from ansible_collections.motley.inference.plugins.plugin_utils import talos_image, talos_node
from ansible_collections.motley.inference.plugins.plugin_utils.action import Context, MotleyAction


class ActionModule(MotleyAction):
    """Registers each node's schematic and prints its ISO; no machine has to answer."""

    ARGUMENTS: ClassVar[dict[str, Any]] = {}
    MUTATES = True

    def perform(self, args: dict[str, Any], context: Context) -> dict[str, Any]:
        del args
        cluster, changed = context.cluster(), False
        found = []
        for node in cluster["nodes"]:
            result = talos_image.of_inventory(context, node["name"])
            changed = changed or result["changed"]
            image = talos_node.image_of(context, node["name"])
            found.append(
                media.medium(
                    node["name"],
                    image,
                    factory_url=cluster["talos"]["factory_url"],
                    schematic=result["schematic"],
                    address=node["ansible_host"],
                    disk=node["install_disk"] or "",
                    accelerators=node["accelerators"],
                )
            )
        context.display(media.text(found, version=cluster["talos"]["version"]))
        return {
            "changed": changed,
            "media": {item.node: {"iso": item.iso, "secureboot_iso": item.secureboot_iso, "steps": list(item.steps)} for item in found},
        }
