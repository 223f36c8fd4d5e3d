# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The nodes as Kubernetes sees them, against the plan."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.talos import members
from ansible_collections.motley.inference.plugins.plugin_utils import talos_drain, talos_node
from ansible_collections.motley.inference.plugins.plugin_utils.action import Context, MotleyAction
from ansible_collections.motley.inference.plugins.plugin_utils.kube import KubeUnreachable


class ActionModule(MotleyAction):
    """Waits until every planned node is there under its name, with its architecture, and Ready."""

    ARGUMENTS: ClassVar[dict[str, Any]] = {"timeout": {"type": "int", "default": 900}}

    def perform(self, args: dict[str, Any], context: Context) -> dict[str, Any]:
        planned = {node["name"]: talos_node.image_of(context, node["name"]).arch for node in context.cluster()["nodes"]}
        last: list[str] = ["the Kubernetes API does not answer"]

        def look() -> list[members.Member] | None:
            nonlocal last
            found = _nodes(context)
            if found is None:
                last = [f"the Kubernetes API does not answer; {_control_plane(context)}"]
                return None
            last = members.problems(found, planned)
            return None if last else found

        if context.check_mode:
            found = _nodes(context)
            for text in members.problems(found, planned) if found is not None else last:
                talos_node.note(context, "cluster", f"note: {text}")
            return {"changed": False, "nodes": [item.as_dict() for item in found or []]}
        since = time.monotonic()
        while not (seen := look()):
            if time.monotonic() - since <= args["timeout"]:
                context.progress(f"the nodes to be Ready ({'; '.join(last)})", since, key="cluster")
                time.sleep(1)
                continue
            raise MotleyError(
                f"not all nodes are Ready after {args['timeout']} s",
                evidence=last,
                hint="talosctl get machinestatus and talosctl service kubelet on that node say why; then run again",
            )
        for item in seen:
            context.state.record_facts(item.name, {"architecture": item.arch, "kubelet": item.kubelet}, source="kubernetes nodes")
        return {"changed": False, "nodes": [item.as_dict() for item in seen]}


def _control_plane(context: Context) -> str:
    """Why the API may be silent: what Talos says of the machine that runs it."""
    node, talosctl = talos_node.control_planes(context)[0], talos_node.client(context)
    if not talosctl.has_credentials:
        return f"{node['name']} runs it"
    return f"{node['name']}: {talos_node.describe(talosctl.probe(talos_node.target(node)))}"


def _nodes(context: Context) -> list[members.Member] | None:
    try:
        kube = talos_drain.connect(talos_node.kubeconfig(context))
        return [members.read(item) for item in kube.list_objects("v1", "Node")] if kube else None
    except KubeUnreachable:
        return None
