# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Another image for a running node, when release or schematic differ from the lock."""

from __future__ import annotations

import contextlib
import time
from typing import Any, ClassVar

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.talos import resources, upgrade
from ansible_collections.motley.inference.plugins.plugin_utils import talos_drain, talos_node
from ansible_collections.motley.inference.plugins.plugin_utils.action import Context, MotleyAction
from ansible_collections.motley.inference.plugins.plugin_utils.kube import Kube, KubeUnreachable
from ansible_collections.motley.inference.plugins.plugin_utils.state import RESTARTING
from ansible_collections.motley.inference.plugins.plugin_utils.talosctl import Talosctl, TalosctlError

_SNAPSHOTS_KEPT = 5


class ActionModule(MotleyAction):
    """Compares first, empties the node if something runs there, upgrades, waits, proves the result, and goes on after a kill."""

    ARGUMENTS: ClassVar[dict[str, Any]] = {
        "node": {"type": "str"},
        "role": {"type": "str", "choices": ["any", "worker", "controlplane"], "default": "any"},
        "allow_reboot": {"type": "bool"},
        "timeout": {"type": "int", "default": talos_node.INSTALL_SECONDS},
    }
    MUTATES = True

    def perform(self, args: dict[str, Any], context: Context) -> dict[str, Any]:
        node = context.node(args["node"])
        if args["role"] not in ("any", node["role"]):
            return {"changed": False, "skipped": True, "skip_reason": f"{node['name']} is a {node['role']}"}
        name, talosctl = node["name"], talos_node.client(context)
        wanted = talos_node.require_locked(context, name)
        state = talos_node.wait_for_answer(context, talosctl, node)
        if state.kind != "configured":
            return {"changed": False, "state": state.kind, "reasons": []}
        seen = talos_node.observe(talosctl, node)
        allow = args["allow_reboot"] if args["allow_reboot"] is not None else context.cluster()["talos"]["allow_reboot"]
        pending = (context.state.read_json(talos_node.PENDING) or {}).get(name)
        decision = upgrade.decide(
            running_version=seen["version"], wanted_version=wanted["version"], running_schematic=seen["extensions"].schematic,
            wanted_schematic=wanted["schematic"], serving=talos_drain.serving(talos_node.kubeconfig(context), name),
            allow_reboot=bool(allow or pending), node=name,
        )  # fmt: skip
        if decision.action == "none":
            resumed = not context.check_mode and _finish(context, name, pending)
            if resumed:
                context.state.record_facts(name, {RESTARTING: False}, source="talosctl get machinestatus")
            return {"changed": resumed, "state": state.kind, "reasons": []}
        diff = {
            "before": f"Talos {seen['version']}\nschematic {seen['extensions'].schematic}\n",
            "after": f"Talos {wanted['version']}\nschematic {wanted['schematic']}\n",
        }
        if not context.check_mode:
            with talos_node.restarts(context, name):
                _upgrade(context, talosctl, node, wanted, boot=state.status.boot if state.status else "", timeout=args["timeout"])
        return {"changed": True, "state": state.kind, "reasons": list(decision.reasons), "diff": diff}


def _upgrade(context: Context, talosctl: Talosctl, node: dict[str, Any], wanted: dict[str, Any], *, boot: str, timeout: int) -> None:
    name = node["name"]
    if node["role"] == "controlplane":
        _snapshot(context, talosctl, node)
    _empty(context, name, wanted)
    image = talos_node.image_of(context, name)
    arguments = upgrade.arguments(wanted["installer"], powercycle=bool(image.driver and image.driver.powercycle), timeout=timeout)
    talos_node.note(context, name, f"upgrading to Talos {wanted['version']}, schematic {wanted['schematic'][:12]}")
    _send(context, talosctl, node, arguments, timeout=timeout)

    def reached() -> bool:
        seen = talos_node.observe(talosctl, node)
        return not _compare(seen, wanted)

    if not talos_node.wait_back(context, talosctl, node, reached=reached, before=boot, timeout=timeout):
        seen = talos_node.observe(talosctl, node)
        _finish(context, name, (context.state.read_json(talos_node.PENDING) or {}).get(name))
        raise upgrade.rolled_back(
            running_version=seen["version"],
            wanted_version=wanted["version"],
            running_schematic=seen["extensions"].schematic,
            wanted_schematic=wanted["schematic"],
            node=name,
        )
    _wait_ready(context, talosctl, node)
    _finish(context, name, (context.state.read_json(talos_node.PENDING) or {}).get(name))


def _compare(seen: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    return upgrade.compare(
        running_version=seen["version"],
        wanted_version=wanted["version"],
        running_schematic=seen["extensions"].schematic,
        wanted_schematic=wanted["schematic"],
    )


def _send(context: Context, talosctl: Talosctl, node: dict[str, Any], arguments: list[str], *, timeout: int) -> None:
    """The upgrade call. A registry that builds the image first, or an upgrade that a killed run began, passes with time."""
    since, tries = time.monotonic(), 0
    while True:
        try:
            talosctl.call(talos_node.target(node), arguments, timeout=timeout + 60.0, tries=1, what="the upgrade")
            return
        except TalosctlError as error:
            tries += 1
            passing = error.outcome.kind == "retry" and tries < 20 or "error pulling image" in error.outcome.desc and tries < 3
            if not passing or time.monotonic() - since > timeout:
                raise
            context.progress(f"the upgrade to start ({error.outcome.desc[:60]})", since, key=node["name"])
            time.sleep(min(30, 2 * tries))


def _empty(context: Context, name: str, wanted: dict[str, Any]) -> None:
    """Cordon and drain when something runs there; what was done is written down first, so that a later run undoes it."""
    kube = talos_drain.connect(talos_node.kubeconfig(context))
    try:
        pods = talos_drain.workloads(kube, name) if kube else []
    except KubeUnreachable:
        kube, pods = None, []  # nothing can be evicted; the rule on reboots has allowed this already
    entry = {"installer": wanted["installer"], "cordoned": bool(pods), "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    _note_pending(context, name, entry)
    if kube is None or not pods:
        return
    talos_drain.set_schedulable(kube, name, schedulable=False)
    try:
        talos_drain.drain(context, kube, name)
    except MotleyError:
        talos_drain.set_schedulable(kube, name, schedulable=True)
        _note_pending(context, name, None)
        raise


def _note_pending(context: Context, name: str, entry: dict[str, Any] | None) -> None:
    def change(document: dict[str, Any]) -> dict[str, Any]:
        document.pop(name, None)
        return {**document, name: entry} if entry else document

    context.state.update_json(talos_node.PENDING, change)


def _finish(context: Context, name: str, pending: dict[str, Any] | None) -> bool:
    """Undo a cordon of ours and forget the upgrade; True when there was one to finish."""
    if not pending:
        return False
    if pending.get("cordoned"):
        kube = talos_drain.connect(talos_node.kubeconfig(context))
        if kube:
            context.wait(
                "the Kubernetes API, to let pods onto the node again", lambda: _uncordon(kube, name), timeout=300, every=2, key=name
            )
    _note_pending(context, name, None)
    return True


def _uncordon(kube: Kube, name: str) -> bool:
    with contextlib.suppress(MotleyError):
        talos_drain.set_schedulable(kube, name, schedulable=True)
        return True
    return False


def _wait_ready(context: Context, talosctl: Talosctl, node: dict[str, Any]) -> None:
    """Machine stage running and ready, where the cluster is bootstrapped; else booting is all it gets to."""
    bootstrapped = talos_node.kubeconfig(context).is_file()

    def look() -> bool:
        state = talosctl.probe(talos_node.target(node))
        ready = bool(state.status and state.status.ready) if bootstrapped else True
        return state.kind == "configured" and state.stage in resources.RUNNING_STAGES and ready

    context.wait("it to be ready", look, timeout=600, every=2, key=node["name"], hint="talosctl get machinestatus shows what it waits for")


def _snapshot(context: Context, talosctl: Talosctl, node: dict[str, Any]) -> None:
    """A snapshot of etcd before the control plane is touched; a cluster without etcd yet has nothing to save."""
    _done, outcome = talosctl.attempt(talos_node.target(node), ["etcd", "members"])
    if not outcome.ok:
        if context.state.node_facts(node["name"]).get("bootstrapped"):
            raise MotleyError(
                f"etcd does not answer, so no snapshot can be taken before the upgrade: {outcome.desc}",
                node=node["name"],
                hint="repair etcd first (talosctl service etcd); never force an upgrade of a single control plane",
            )
        return
    folder = context.state.root / "snapshots"
    folder.mkdir(mode=0o700, exist_ok=True)
    with talos_node.work_directory(context, f"snapshot-{node['name']}") as work:
        talosctl.call(talos_node.target(node), ["etcd", "snapshot", str(work / "etcd.db")], timeout=300, what="the etcd snapshot")
        target = folder / f"etcd-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.db"
        (work / "etcd.db").chmod(0o600)
        (work / "etcd.db").rename(target)
    talos_node.note(context, node["name"], f"etcd snapshot {target}")
    for old in sorted(folder.glob("etcd-*.db"))[:-_SNAPSHOTS_KEPT]:
        old.unlink()
