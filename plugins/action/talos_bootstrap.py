# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""etcd of the first control plane, started once."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.talos import errors
from ansible_collections.motley.inference.plugins.plugin_utils import talos_drain, talos_node
from ansible_collections.motley.inference.plugins.plugin_utils.action import Context, MotleyAction
from ansible_collections.motley.inference.plugins.plugin_utils.kube import KubeUnreachable
from ansible_collections.motley.inference.plugins.plugin_utils.talosctl import Talosctl, TalosctlError


class ActionModule(MotleyAction):
    """Looks first; a second bootstrap is never sent to a cluster that once was bootstrapped."""

    ARGUMENTS: ClassVar[dict[str, Any]] = {"timeout": {"type": "int", "default": 900}}
    MUTATES = True

    def perform(self, args: dict[str, Any], context: Context) -> dict[str, Any]:
        context.require_all_nodes()
        node = talos_node.control_planes(context)[0]
        if talos_node.adopted(context) or _kubernetes_answers(context):
            return {"changed": False, "node": node["name"]}
        talosctl = talos_node.client(context)
        if context.check_mode:
            return {"changed": _would_change(talosctl, node), "node": node["name"]}
        state = talos_node.wait_for_answer(context, talosctl, node)
        if state.kind == "maintenance":
            raise MotleyError("the control plane is still in maintenance mode", hint="run --tags talos_config first", node=node["name"])
        changed = False
        if not _has_etcd(talosctl, node):
            _refuse_lost_etcd(context, node)
            changed = _bootstrap(context, talosctl, node, timeout=args["timeout"])
        context.state.record_facts(node["name"], {"bootstrapped": True}, source="talosctl etcd members, bootstrap")
        return {"changed": changed, "node": node["name"]}


def _kubernetes_answers(context: Context) -> bool:
    """A cluster whose API answers to our kubeconfig has an etcd; the quick way of a second run."""
    try:
        kube = talos_drain.connect(talos_node.kubeconfig(context))
        return bool(kube and kube.version())
    except KubeUnreachable:
        return False
    except MotleyError:
        return False  # it answers, but not to us: the kubeconfig step sees to that


def _would_change(talosctl: Talosctl, node: dict[str, Any]) -> bool:
    if not talosctl.has_credentials:
        return True
    return not _has_etcd(talosctl, node)


def _has_etcd(talosctl: Talosctl, node: dict[str, Any]) -> bool:
    _done, outcome = talosctl.attempt(talos_node.target(node), ["etcd", "members"])
    return outcome.ok


def _refuse_lost_etcd(context: Context, node: dict[str, Any]) -> None:
    """This installation had an etcd once, and it does not answer: a bootstrap would begin an empty cluster."""
    if context.state.node_facts(node["name"]).get("bootstrapped"):
        raise MotleyError(
            "etcd was started on this installation before, and does not answer now; starting it anew would begin an empty cluster",
            hint=f"look at `talosctl service etcd`; snapshots are in {context.state.root / 'snapshots'} (talosctl bootstrap --recover-from FILE)",
            node=node["name"],
        )


def _bootstrap(context: Context, talosctl: Talosctl, node: dict[str, Any], *, timeout: int) -> bool:
    """Ask until it is taken: right after the boot the node says `not available yet`, or its clock is not set."""
    since = time.monotonic()
    while True:
        try:
            talosctl.call(talos_node.target(node), ["bootstrap"], what="starting etcd")
            return True
        except TalosctlError as error:
            if error.outcome.kind == "already":
                return False
            if error.outcome.kind != "retry":
                raise
            if time.monotonic() - since > timeout:
                raise MotleyError(
                    error.message,
                    node=node["name"],
                    evidence=error.evidence,
                    hint="if its time is not in sync, set motley_timeservers; " + errors.HINTS["retry"],
                ) from error
            context.progress(f"etcd ({error.outcome.desc[:50]})", since, key=node["name"])
            time.sleep(2)
