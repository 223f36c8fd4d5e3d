# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The machine configuration of a node: generated whole, validated, compared, applied."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, ClassVar

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.talos import config, redact, releases, resources, yaml_text
from ansible_collections.motley.inference.plugins.module_utils.talos import patches as user_patches
from ansible_collections.motley.inference.plugins.plugin_utils import talos_drain, talos_node
from ansible_collections.motley.inference.plugins.plugin_utils.action import Context, MotleyAction
from ansible_collections.motley.inference.plugins.plugin_utils.state import RESTARTING
from ansible_collections.motley.inference.plugins.plugin_utils.talosctl import NodeState, Talosctl, TalosctlError

try:
    import yaml

    YAML_ERROR: ImportError | None = None
except ImportError as error:
    YAML_ERROR = error


class ActionModule(MotleyAction):
    """`changed` is what the node's dry run says; in maintenance mode applying it starts the installation, which is waited for."""

    ARGUMENTS: ClassVar[dict[str, Any]] = {
        "node": {"type": "str"},
        "timeout": {"type": "int", "default": talos_node.INSTALL_SECONDS},
    }
    MUTATES = True

    def perform(self, args: dict[str, Any], context: Context) -> dict[str, Any]:
        node = context.node(args["node"])
        name = node["name"]
        if talos_node.adopted(context) and not context.cluster()["secrets"]["secrets_file"]:
            return {"changed": False, "applied": False, "check": False, "state": "adopted"}
        talosctl = talos_node.client(context)
        with talos_node.work_directory(context, f"config-{name}") as work:
            bundle = _bundle(context, talosctl, work)
            state = _state(context, talosctl, node)
            path = _generate(context, talosctl, node, state, bundle=bundle, work=work)
            secrets = redact.leaves(talos_node.load_yaml(bundle.read_text()))
            text = redact.redact(path.read_text(), secrets=secrets)
            context.state.write_text(f"rendered/{name}/machineconfig.yaml", text)
            match state.kind:
                case "configured":
                    result = _update(context, talosctl, node, path, state, secrets, timeout=args["timeout"])
                case "maintenance":
                    result = _install(context, talosctl, node, path, text, state, timeout=args["timeout"])
                case _:
                    talos_node.note(context, name, f"note: {talos_node.describe(state)}; its configuration was rendered, not compared")
                    result = {"changed": True, "applied": False, "diff": _diff(name, "", text)}
        proven = bool(context.state.node_facts(name).get("image_proven"))
        return {"check": result["applied"] or not proven, "state": state.kind, **result}


def _bundle(context: Context, talosctl: Talosctl, work: Path) -> Path:
    """The secrets bundle; in a check run before there is one, a throw-away one, of which nothing is kept."""
    given = context.cluster()["secrets"]["secrets_file"]
    path = Path(given).expanduser() if given else context.state.root / talos_node.SECRETS
    if path.is_file():
        return path
    if not context.check_mode:
        raise MotleyError(f"there is no {talos_node.SECRETS} in {context.state.root}", hint="run --tags talos_config, which makes it once")
    talosctl.offline(["gen", "secrets", "--output-file", str(work / "secrets.yaml")], what="making secrets for the check")
    return work / "secrets.yaml"


def _state(context: Context, talosctl: Talosctl, node: dict[str, Any]) -> NodeState:
    """What the node is; where it is known to be installed its dry run tells, and asking first would only cost time."""
    if context.state.node_facts(node["name"]).get("installed") and talosctl.has_credentials:
        return NodeState("configured")
    return talos_node.wait_for_answer(context, talosctl, node)


# -- the text ------------------------------------------------------------------------------------------------------
def _generate(context: Context, talosctl: Talosctl, node: dict[str, Any], state: NodeState, *, bundle: Path, work: Path) -> Path:
    """Write the whole configuration and have talosctl validate it."""
    cluster, lock = context.cluster(), talos_node.lock_cluster(context)
    contract = releases.contract(f"{lock['contract']}.0")
    spec = _spec(context, talosctl, node, state, kubernetes=lock["kubernetes_version"])
    files = [_write(work / "patch-00.yaml", yaml_text.dump_all(config.documents(spec, contract)))]
    for number, text in enumerate(_user_patches(context, node, contract), 1):
        files.append(_write(work / f"patch-{number:02}.yaml", text))
    output = work / "config.yaml"
    arguments = config.generate(
        spec,
        contract,
        cluster=cluster["name"],
        endpoint=talos_node.endpoint(context),
        secrets=str(bundle),
        patches=[str(path) for path in files],
        output=str(output),
    )
    try:
        talosctl.offline(arguments, what="generating the machine configuration")
        talosctl.offline(["validate", "--config", str(output), "--mode", "metal"], what="validating the machine configuration")
    except TalosctlError as error:
        raise MotleyError(
            error.message,
            node=node["name"],
            evidence=error.evidence,
            hint="correct motley_talos_patches of this host" if len(files) > 1 else error.hint,
        ) from error
    return output


def _write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def _spec(context: Context, talosctl: Talosctl, node: dict[str, Any], state: NodeState, *, kubernetes: str) -> config.NodeConfig:
    cluster, lock = context.cluster(), talos_node.require_locked(context, node["name"])
    network = cluster["network"]
    static = node["static_address"] or ""
    return config.NodeConfig(
        name=node["name"],
        role=node["role"],
        address=node["address"],
        install_disk=node["install_disk"] or "",
        installer=lock["installer"],
        talos_version=lock["version"],
        kubernetes_version=kubernetes,
        install_wipe=bool(node["install_wipe"]),
        gpu=bool(node["accelerators"]),
        interface=_interface(context, talosctl, node, state) if static else "",
        static_address=static,
        gateway=node["gateway"] or "",
        nameservers=tuple(network["nameservers"]),
        timeservers=tuple(network["timeservers"]),
        registry_mirrors=config.with_factory(cluster["registry_mirrors"], cluster["talos"]["factory_url"]),
    )


def _interface(context: Context, talosctl: Talosctl, node: dict[str, Any], state: NodeState) -> str:
    """The link that gets the static address: named in the inventory, known, or the one that has the address now."""
    known = node["interface"] or context.state.node_facts(node["name"]).get("interface")
    if known:
        return str(known)
    if state.kind == "unreachable":
        return "<found at run time>"
    return resources.interface_of(talosctl.get(talos_node.target(node), "addresses", insecure=state.insecure), node["ansible_host"])


def _user_patches(context: Context, node: dict[str, Any], contract: releases.Contract) -> list[str]:
    """Patches of the inventory as text, checked; YAML text is handed on as it is."""
    if YAML_ERROR is not None:
        raise MotleyError(f"the Python library PyYAML is missing: {YAML_ERROR}", hint="pip install pyyaml")
    texts, documents = [], []
    for item in node["talos_patches"]:
        if isinstance(item, str):
            try:
                documents += [document for document in yaml.safe_load_all(item) if document is not None]
            except yaml.YAMLError as error:
                raise MotleyError(
                    f"motley_talos_patches holds text that is no YAML: {str(error).splitlines()[0]}",
                    node=node["name"],
                    hint="write the patch as a mapping, or as a block with |",
                ) from error
            texts.append(item)
        else:
            document = user_patches.unlearn_booleans(item)
            documents.append(document)
            texts.append(yaml_text.dump(document))
    for warning in user_patches.check(documents, contract, node=node["name"]):
        context.warn(f"{node['name']}: {warning}")
    return texts


# -- a node that runs ----------------------------------------------------------------------------------------------
def _update(
    context: Context, talosctl: Talosctl, node: dict[str, Any], path: Path, state: NodeState, secrets: list[str], *, timeout: int
) -> dict[str, Any]:
    name, where = node["name"], talos_node.target(node)
    dry = ["apply-config", "--file", str(path), "--mode", "auto", "--dry-run"]
    try:
        found = config.dry_run(talosctl.call(where, dry, what="comparing the configuration").err)
    except TalosctlError as error:
        if error.outcome.kind in ("usage", "fatal"):
            raise
        return _not_as_remembered(context, talosctl, node, path, secrets, timeout=timeout)
    if not found.changed:
        if not context.check_mode and not context.state.node_facts(name).get("installed"):
            _finish_install(context, talosctl, node, timeout=timeout)
        return {"changed": False, "applied": False}
    diff = redact.redact(found.diff, secrets=secrets)
    _refuse_reboot(context, name, found.reboot)
    if not context.check_mode:
        boot = _boot(talosctl, node, state)
        with talos_node.restarts(context, name) if found.reboot else contextlib.nullcontext():
            talosctl.call(where, ["apply-config", "--file", str(path), "--mode", "auto"], timeout=120, what="applying the configuration")
            if found.reboot:
                talos_node.wait_back(context, talosctl, node, reached=lambda: False, before=boot, timeout=timeout)
            _finish_install(context, talosctl, node, timeout=timeout)
    return {
        "changed": True,
        "applied": not context.check_mode,
        "reboot": found.reboot,
        "diff": {"prepared": f"{name} machine configuration\n{diff}\n"},
    }


def _boot(talosctl: Talosctl, node: dict[str, Any], state: NodeState) -> str:
    status = state.status or talosctl.probe(talos_node.target(node)).status
    return status.boot if status else ""


def _not_as_remembered(
    context: Context, talosctl: Talosctl, node: dict[str, Any], path: Path, secrets: list[str], *, timeout: int
) -> dict[str, Any]:
    """The node was installed once, and does not answer as such: rebooting, reset, or gone."""
    state = talos_node.wait_for_answer(context, talosctl, node)
    match state.kind:
        case "configured":
            return _update(context, talosctl, node, path, state, secrets, timeout=timeout)
        case "maintenance":
            return _install(context, talosctl, node, path, redact.redact(path.read_text(), secrets=secrets), state, timeout=timeout)
    talos_node.note(context, node["name"], f"note: {talos_node.describe(state)}; its configuration was rendered, not compared")
    return {"changed": False, "applied": False}


def _refuse_reboot(context: Context, name: str, reboot: bool) -> None:
    if not reboot or context.cluster()["talos"]["allow_reboot"]:
        return
    serving = talos_drain.serving(talos_node.kubeconfig(context), name)
    if serving:
        raise MotleyError(
            f"the new configuration takes a reboot, and {serving} runs on this node",
            node=name,
            hint="run again with -e motley_allow_reboot=true when the service may stop; --check --diff shows the change",
        )


# -- a node in maintenance mode ------------------------------------------------------------------------------------
def _install(
    context: Context, talosctl: Talosctl, node: dict[str, Any], path: Path, text: str, state: NodeState, *, timeout: int
) -> dict[str, Any]:
    name, where = node["name"], talos_node.target(node)
    lock = talos_node.require_locked(context, name)
    _right_machine(talosctl, node, lock, image_arch=talos_node.image_of(context, name).arch)
    _free_disk(talosctl, node)
    result = {"changed": True, "diff": _diff(name, "", text)}
    if context.check_mode:
        return {**result, "applied": False}
    # A fresh machine: nothing that was known of the old installation holds.
    context.state.record_facts(name, {"installed": False, "bootstrapped": False, "image_proven": False}, source="talos_machine_config")
    with talos_node.restarts(context, name):
        talosctl.call(where, ["apply-config", "--file", str(path)], insecure=True, timeout=120, what="applying the first configuration")
        talos_node.note(context, name, f"installing Talos {lock['version']} to {node['install_disk']}")
        _finish_install(context, talosctl, node, before=state.status.boot if state.status else "", timeout=timeout)
    return {**result, "applied": True}


def _finish_install(context: Context, talosctl: Talosctl, node: dict[str, Any], *, timeout: int, before: str = "") -> None:
    talos_node.wait_installed(context, talosctl, node, before=before, timeout=timeout)
    context.state.record_facts(node["name"], {"installed": True, RESTARTING: False}, source="talosctl get machinestatus, get systemdisk")


def _right_machine(talosctl: Talosctl, node: dict[str, Any], lock: dict[str, Any], *, image_arch: str) -> None:
    """The medium's release has to read the configuration, and the machine has to be the one that the inventory means."""
    seen = talosctl.version(talos_node.target(node), insecure=True)
    if seen.arch != image_arch:
        raise MotleyError(
            f"the machine at {node['ansible_host']} is {seen.arch}, and {', '.join(node['accelerators']) or 'this node'} is in {image_arch}",
            hint="the address belongs to another machine: correct ansible_host",
            node=node["name"],
        )
    if releases.parse(seen.tag).minor_pair < releases.parse(lock["version"]).minor_pair:
        raise MotleyError(
            f"the machine was booted from a medium of Talos {seen.tag}, which does not read a configuration of {lock['version']}",
            hint="boot it from the medium that playbooks/media.yml names",
            node=node["name"],
        )


def _free_disk(talosctl: Talosctl, node: dict[str, Any]) -> None:
    """Refuse a disk that is not there, or that holds something, unless this host says that it may be wiped."""
    where, wanted = talos_node.target(node), node["install_disk"]
    found = resources.disks(talosctl.get(where, "disks", insecure=True))
    disk = next((item for item in found if wanted == item.path or wanted in item.links), None)
    if disk is None:
        raise MotleyError(
            f"there is no disk {wanted}",
            evidence=[f"{item.path} {item.text}" for item in found],
            node=node["name"],
            hint="set motley_install_disk on this host to one of these"
            if found
            else "the node shows no disk at all: check its firmware setup",
        )
    if node["install_wipe"]:
        return
    volumes = resources.volumes_on(talosctl.get(where, "discoveredvolumes", insecure=True), disk.path)
    if volumes:
        raise MotleyError(
            f"the disk {wanted} ({disk.text}) is not empty, and the installation takes it whole",
            evidence=volumes,
            node=node["name"],
            hint="if all of this may be erased, set motley_install_wipe: true on this host (not for all hosts)",
        )


def _diff(name: str, before: str, after: str) -> dict[str, str]:
    header = f"{name} machine configuration"
    return {"before": before, "after": after, "before_header": header, "after_header": header}
