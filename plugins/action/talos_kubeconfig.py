# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cluster's kubeconfig, in the state directory."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.plugin_utils import talos_drain, talos_node
from ansible_collections.motley.inference.plugins.plugin_utils.action import Context, MotleyAction
from ansible_collections.motley.inference.plugins.plugin_utils.kube import KubeError, KubeUnreachable
from ansible_collections.motley.inference.plugins.plugin_utils.talosctl import TalosctlError


class ActionModule(MotleyAction):
    """Fetched when there is none, or when the API refuses the one that is there; never merged into another file."""

    ARGUMENTS: ClassVar[dict[str, Any]] = {"timeout": {"type": "int", "default": 300}}
    MUTATES = True

    def perform(self, args: dict[str, Any], context: Context) -> dict[str, Any]:
        path = talos_node.kubeconfig(context)
        if context.cluster()["kubeconfig"]:
            if not path.is_file():
                raise MotleyError(f"motley_kubeconfig {path} does not exist", hint="give the kubeconfig of the cluster that is there")
            return {"changed": False, "kubeconfig": str(path)}
        if path.is_file() and not _refused(context):
            return {"changed": False, "kubeconfig": str(path)}
        if not context.check_mode:
            context.state.write_text(talos_node.KUBECONFIG, _fetch(context, timeout=args["timeout"]))
        return {"changed": True, "kubeconfig": str(path)}


def _refused(context: Context) -> bool:
    """Whether the API answers, and not to this kubeconfig: its certificate has run out, or the cluster is another one."""
    try:
        kube = talos_drain.connect(talos_node.kubeconfig(context))
        if kube:
            kube.request("GET", "/api/v1/nodes", query={"limit": "1"}, timeout=10)
    except KubeError as error:
        return error.status in (401, 403)
    except KubeUnreachable as error:
        return "CERTIFICATE_VERIFY_FAILED" in error.message or "certificate" in error.message.lower()
    except MotleyError:
        return True  # it cannot be read
    return False


def _fetch(context: Context, *, timeout: int) -> str:
    node, talosctl = talos_node.control_planes(context)[0], talos_node.client(context)
    since = time.monotonic()
    with talos_node.work_directory(context, "kubeconfig") as work:
        target = work / "kubeconfig"
        while True:
            try:
                talosctl.call(
                    talos_node.target(node), ["kubeconfig", "--merge=false", "--force", str(target)], what="fetching the kubeconfig"
                )
                return target.read_text()
            except TalosctlError as error:
                if error.outcome.kind != "retry" or time.monotonic() - since > timeout:
                    raise
                context.progress("the kubeconfig", since, key=node["name"])
                time.sleep(2)
