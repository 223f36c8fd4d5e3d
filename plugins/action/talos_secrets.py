# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cluster's secrets bundle and our talosconfig: made once, never over a live cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.talos import yaml_text
from ansible_collections.motley.inference.plugins.plugin_utils import talos_node
from ansible_collections.motley.inference.plugins.plugin_utils.action import Context, MotleyAction
from ansible_collections.motley.inference.plugins.plugin_utils.talosctl import Talosctl


class ActionModule(MotleyAction):
    """Values stay in the state directory; the result says only what was made."""

    ARGUMENTS: ClassVar[dict[str, Any]] = {}
    MUTATES = True

    def perform(self, args: dict[str, Any], context: Context) -> dict[str, Any]:
        del args
        if talos_node.adopted(context) and not context.cluster()["secrets"]["secrets_file"]:
            return {"changed": False, "made": []}
        given = context.cluster()["secrets"]["secrets_file"]
        if given and not Path(given).expanduser().is_file():
            raise MotleyError(f"motley_secrets_file {given} does not exist", hint="give the bundle that `talosctl gen secrets` wrote")
        missing = [name for name in (talos_node.SECRETS, talos_node.TALOSCONFIG) if not (context.state.root / name).is_file()]
        if given or talos_node.adopted(context):
            missing = [name for name in missing if name == talos_node.TALOSCONFIG and not context.cluster()["talos"]["talosconfig"]]
        talosctl = talos_node.client(context)
        if talos_node.SECRETS in missing:
            _refuse_over_live_cluster(context)
        if missing and not context.check_mode:
            _make(context, talosctl, missing)
        return {"changed": bool(missing), "made": missing}


def _refuse_over_live_cluster(context: Context) -> None:
    """New secrets lock us out of nodes that run with older ones, so look at every node before making any."""
    bare = Talosctl(context.cluster()["talos"]["talosctl"])
    for node in context.cluster()["nodes"]:
        state = bare.probe(talos_node.target(node))
        if state.kind == "foreign":
            raise MotleyError(
                f"there is no {talos_node.SECRETS} in {context.state.root}, and this machine is configured already: new ones would lock us out",
                hint="use the state directory that it was installed from, set motley_secrets_file or motley_talosconfig, or reset the machine",
                node=node["name"],
            )
        if state.kind == "unreachable" and node["role"] == "controlplane" and not context.check_mode:
            raise MotleyError(
                f"the control plane does not answer ({state.detail}), so it is not known whether it runs with other secrets",
                hint="power it on and boot it from its medium, then run again",
                node=node["name"],
            )


def _make(context: Context, talosctl: Talosctl, missing: list[str]) -> None:
    contract = talos_node.lock_cluster(context)["contract"]
    with talos_node.work_directory(context, "secrets") as work:
        bundle = Path(context.cluster()["secrets"]["secrets_file"] or context.state.root / talos_node.SECRETS).expanduser()
        if talos_node.SECRETS in missing:
            talosctl.offline(
                ["gen", "secrets", "--output-file", str(work / "secrets.yaml"), "--talos-version", contract], what="making the secrets"
            )
            context.state.write_text(talos_node.SECRETS, (work / "secrets.yaml").read_text())
        if talos_node.TALOSCONFIG in missing:
            context.state.write_text(talos_node.TALOSCONFIG, talosconfig(context, talosctl, bundle, work))


def talosconfig(context: Context, talosctl: Talosctl, bundle: Path, work: Path) -> str:
    """A talosconfig with endpoints: the one that talosctl writes has none, and then no command works."""
    cluster = context.cluster()
    arguments = ["gen", "config", cluster["name"], talos_node.endpoint(context), "--with-secrets", str(bundle),
                 "--output-types", "talosconfig", "--output", str(work / "talosconfig"), "--force"]  # fmt: skip
    talosctl.offline(arguments, what="making the talosconfig")
    document = talos_node.load_yaml((work / "talosconfig").read_text())
    for entry in (document.get("contexts") or {}).values():
        entry["endpoints"] = [node["ansible_host"] for node in talos_node.control_planes(context)]
    return yaml_text.dump(document)
