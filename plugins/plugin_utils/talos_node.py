# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the Talos actions share: the client and image of a node, the lock file, waiting for a machine stage, work files."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.talos import drivers, errors, redact, releases, resources, schematic
from ansible_collections.motley.inference.plugins.plugin_utils.action import Context
from ansible_collections.motley.inference.plugins.plugin_utils.state import RESTARTING
from ansible_collections.motley.inference.plugins.plugin_utils.talosctl import NodeState, Talosctl, Target

LOCK = "lock.yml"
SECRETS = "secrets.yaml"
TALOSCONFIG = "talosconfig"
KUBECONFIG = "kubeconfig"
WORK = ".work"

# An installation pulls an image that the factory may have to build first; a GB10 cycles its power.
INSTALL_SECONDS = 1800
# A machine that does not answer may be in the middle of a reboot.
ANSWER_SECONDS = 300
# A machine leaves maintenance mode within seconds of its configuration.
MAINTENANCE_SECONDS = 120
_SWITCH_SECONDS = 30
PENDING = "upgrades.json"      # upgrades that were begun and not yet finished, with what is to be undone
_EVERY = 2.0


def target(node: Mapping[str, Any]) -> Target:
    """How talosctl reaches a node of the cluster."""
    return Target(str(node["name"]), str(node["ansible_host"]))


def secret_values(context: Context) -> list[str]:
    """Every secret of the bundle in the state directory, for their removal from texts."""
    text = _bundle_text(context)
    return redact.leaves(load_yaml(text)) if text else []


def _bundle_text(context: Context) -> str | None:
    path = context.cluster()["secrets"]["secrets_file"]
    if path:
        return Path(path).expanduser().read_text()
    return (context.state.root / SECRETS).read_text() if (context.state.root / SECRETS).is_file() else None


def load_yaml(text: str) -> Any:
    """One YAML document."""
    import yaml

    return yaml.safe_load(text)


def client(context: Context) -> Talosctl:
    """talosctl with this cluster's credentials."""
    talos = context.cluster()["talos"]
    config = Path(talos["talosconfig"]).expanduser() if talos["talosconfig"] else context.state.root / TALOSCONFIG
    return Talosctl(talos["talosctl"], talosconfig=config, secrets=secret_values(context))


def adopted(context: Context) -> bool:
    """Whether the cluster was made elsewhere: then nothing is bootstrapped and no secret is made."""
    cluster = context.cluster()
    return bool(cluster["talos"]["talosconfig"] or cluster["kubeconfig"])


def kubeconfig(context: Context) -> Path:
    """The kubeconfig of this cluster, there or not."""
    given = context.cluster()["kubeconfig"]
    return Path(given).expanduser() if given else context.state.root / KUBECONFIG


def control_planes(context: Context) -> list[dict[str, Any]]:
    """Nodes that run the Kubernetes API and etcd; the first one is bootstrapped."""
    return [node for node in context.cluster()["nodes"] if node["role"] == "controlplane"]


def endpoint(context: Context) -> str:
    """Address of the Kubernetes API, for every node and for us."""
    return f"https://{control_planes(context)[0]['address']}:6443"


def image_of(context: Context, name: str) -> schematic.Image:
    """The image of a node of the inventory."""
    hosts, _groups = context.inventory()
    options = {
        key.removeprefix("motley_talos_image_"): value for key, value in hosts[name].items() if key.startswith("motley_talos_image_")
    }
    node, talos = context.node(name), context.cluster()["talos"]
    return build_image(node["accelerators"], _version(talos), arch=None, options=options, node=name)


def _version(talos: Mapping[str, Any]) -> str:
    if not talos["version"]:
        raise MotleyError("motley_talos_version is not set", hint="set it under all.vars, for example v1.14.1")
    return str(talos["version"])


def build_image(
    accelerators: list[str], version: str, *, arch: str | None, options: Mapping[str, Any], node: str | None
) -> schematic.Image:
    """The image for accelerators and options as an inventory or a task gives them."""
    releases.contract(version)
    secureboot = options.get("secureboot")
    return schematic.for_node(
        accelerators,
        version,
        arch=arch,
        flavour=None if options.get("flavour") == "auto" else options.get("flavour"),
        branch=options.get("branch"),
        kernel_args=[str(item) for item in options.get("kernel_args") or []],
        extensions=[str(item) for item in options.get("extensions") or []],
        overlay=options.get("overlay"),
        accepted=[str(item) for item in options.get("accept") or []],
        secureboot=secureboot.lower() in ("true", "yes", "1", "on") if isinstance(secureboot, str) else bool(secureboot),
        node=node,
    )


# -- lock file -----------------------------------------------------------------------------------------------------
def locked(context: Context, name: str) -> dict[str, Any] | None:
    """What lock.yml holds of a node's image."""
    entry = ((context.state.read_json(LOCK) or {}).get("talos") or {}).get(name)
    return dict(entry) if entry else None


def require_locked(context: Context, name: str) -> dict[str, Any]:
    """The same, or a refusal that names the step that writes it."""
    entry = locked(context, name)
    if entry is None:
        raise MotleyError("there is no image for this node in lock.yml", hint="run --tags talos_image first", node=name)
    wanted = context.cluster()["talos"]["version"]
    if wanted and entry["version"] != wanted:
        raise MotleyError(
            f"lock.yml holds an image of Talos {entry['version']}, and the inventory says {wanted}",
            hint="run --tags talos_image",
            node=name,
        )
    return entry


def lock_node(context: Context, name: str, entry: Mapping[str, Any]) -> bool:
    """Write a node's image into lock.yml."""

    def change(document: dict[str, Any]) -> dict[str, Any]:
        document.setdefault("talos", {})[name] = dict(entry)
        return document

    return context.state.update_json(LOCK, change)


def lock_cluster(context: Context) -> dict[str, str]:
    """Contract and Kubernetes version of the cluster, kept from its first configuration on.

    A newer Talos reads an older layout, but switching the layout or Kubernetes under a running cluster is a step of its
    own; what the inventory says about Kubernetes counts.
    """
    talos = context.cluster()["talos"]
    version = _version(talos)
    known = (context.state.read_json(LOCK) or {}).get("talos_cluster") or {}
    contract = str(known.get("contract") or releases.contract(version).name)
    kubernetes = str(talos["kubernetes_version"] or known.get("kubernetes_version") or releases.kubernetes_default(version))
    entry = {"contract": contract, "kubernetes_version": releases.check_kubernetes(version, kubernetes)}

    def change(document: dict[str, Any]) -> dict[str, Any]:
        document["talos_cluster"] = entry
        return document

    context.state.update_json(LOCK, change)
    return entry


# -- work files ----------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def work_directory(context: Context, name: str) -> Iterator[Path]:
    """A private directory for files that talosctl has to read or write; what a killed run left is removed first."""
    if context.check_mode:
        folder = Path(tempfile.mkdtemp(prefix="motley-"))
    else:
        folder = context.state.root / WORK / name
        shutil.rmtree(folder, ignore_errors=True)
        for directory in (context.state.root, folder.parent, folder):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    before = os.umask(0o077)
    try:
        yield folder
    finally:
        os.umask(before)
        shutil.rmtree(folder, ignore_errors=True)
        if not context.check_mode:
            with contextlib.suppress(OSError):  # another node's files may be there
                folder.parent.rmdir()


# -- waiting -------------------------------------------------------------------------------------------------------
def refuse_state(state: NodeState, node: str) -> None:
    """Raise for a node that we cannot work with."""
    if state.kind == "foreign":
        raise MotleyError(
            f"this machine is configured already, by other secrets than ours ({state.detail})", hint=errors.HINTS["foreign"], node=node
        )
    if state.kind == "expired":
        raise MotleyError("the node refuses our client certificate: it has run out", hint=errors.HINTS["expired"], node=node)


def wait_for_answer(context: Context, talosctl: Talosctl, node: Mapping[str, Any], *, timeout: float = ANSWER_SECONDS) -> NodeState:
    """The node's state, once it has one that lasts: it answers, and neither installs, reboots nor upgrades."""

    def look() -> NodeState | None:
        state = talosctl.probe(target(node))
        refuse_state(state, str(node["name"]))
        settled = state.kind == "maintenance" or (state.kind == "configured" and state.stage in resources.RUNNING_STAGES)
        return state if settled else None

    if context.check_mode:
        state = talosctl.probe(target(node))
        refuse_state(state, str(node["name"]))
        return state
    found: NodeState = context.wait(
        "an answer of its Talos API", look, timeout=timeout, every=_EVERY, key=str(node["name"]), hint=errors.HINTS["retry"]
    )
    return found


def wait_installed(
    context: Context, talosctl: Talosctl, node: Mapping[str, Any], *, before: str = "", timeout: float = INSTALL_SECONDS
) -> NodeState:
    """Wait until Talos runs from its disk. A control plane stays in `booting` until etcd is bootstrapped, so that counts.

    The machine stage alone does not tell the boot from the medium from the boot from the disk; the system disk does.
    before is the boot in maintenance mode that took the configuration: a node that is there again could not install.
    """
    began = since()

    def look() -> NodeState | None:
        state = talosctl.probe(target(node))
        if state.kind in ("foreign", "expired") and since() - began > _SWITCH_SECONDS:
            refuse_state(state, str(node["name"]))  # earlier it may be in the middle of changing its certificates
        if state.kind == "maintenance":
            _refuse_failed_install(state, str(node["name"]), before=before, waited=since() - began)
        if state.kind != "configured" or state.stage not in resources.RUNNING_STAGES:
            return None
        with contextlib.suppress(MotleyError):  # it may go down between the two calls
            return state if resources.system_disk(talosctl.get(target(node), "systemdisk")) else None
        return None

    found: NodeState = context.wait(
        "its installation and first boot", look, timeout=timeout, every=_EVERY, key=str(node["name"]),
        hint="look at its console: it shows the stage and why it waits; then run again, it goes on from here",
    )  # fmt: skip
    return found


def _refuse_failed_install(state: NodeState, node: str, *, before: str, waited: float) -> None:
    again = bool(before and state.status and state.status.boot != before)
    if again or waited > MAINTENANCE_SECONDS:
        raise MotleyError(
            "the installation failed: the machine took its configuration and is in maintenance mode again"
            if again
            else f"the machine took its configuration and is still in maintenance mode after {waited:.0f} s",
            hint="its console says why; most often it cannot pull the installer image: can the machine reach the factory (motley_factory_url), "
            "by name (motley_nameservers) and with the right time (motley_timeservers)?",
            node=node,
        )


def wait_back(
    context: Context,
    talosctl: Talosctl,
    node: Mapping[str, Any],
    *,
    reached: Callable[[], bool],
    before: str,
    timeout: float = INSTALL_SECONDS,
) -> bool:
    """Wait until a rebooting node is back; True when reached() holds, False when it came back without.

    before is the boot that it was in: a node that is still in it has not gone down yet.
    """
    down = False

    def look() -> str | None:
        nonlocal down
        state = talosctl.probe(target(node))
        if state.kind != "configured" or state.stage not in resources.RUNNING_STAGES:
            down = True
            return None
        down = down or bool(before and state.status and state.status.boot != before)
        try:
            if reached():
                return "reached"
        except MotleyError:
            down = True
            return None
        return "back" if down else None

    return bool(
        context.wait(
            "its reboot",
            look,
            timeout=timeout,
            every=_EVERY,
            key=str(node["name"]),
            hint="look at its console; then run again, it goes on from here",
        )
        == "reached"
    )


@contextlib.contextmanager
def restarts(context: Context, node: str) -> Iterator[None]:
    """Around what makes a machine restart: a run that dies in it leaves the note, and the next one waits for the machine."""
    context.state.record_facts(node, {RESTARTING: True}, source="this run")
    yield
    context.state.record_facts(node, {RESTARTING: False}, source="this run")


def note(context: Context, node: str, text: str) -> None:
    """A line for a person about a node."""
    context.display(f"  {node}: {text}")


def describe(state: NodeState) -> str:
    """A node's state in words."""
    match state.kind:
        case "configured":
            return f"configured, machine stage {state.stage or 'unknown'}"
        case "maintenance":
            return "in maintenance mode"
        case "unreachable":
            return f"no answer ({state.detail})" if state.detail else "no answer"
    return state.kind


def observe(talosctl: Talosctl, node: Mapping[str, Any]) -> dict[str, Any]:
    """Release, architecture and extensions of a running node."""
    where = target(node)
    version = talosctl.version(where)
    found = resources.extensions(talosctl.get(where, "extensions"))
    return {"version": version.tag, "arch": version.arch, "extensions": found}


def record(context: Context, node: str, seen: Mapping[str, Any]) -> None:
    """Put what a node said into nodes.json."""
    found: resources.Extensions = seen["extensions"]
    facts = {
        "architecture": seen["arch"],
        "talos_version": seen["version"],
        "schematic": found.schematic,
        "extensions": dict(sorted(found.versions.items())),
        "driver": next((found.driver(name) for name in found.versions if name.startswith(drivers.TOOLKIT)), ""),
    }
    context.state.record_facts(node, facts, source="talosctl version, get extensions")


def since() -> float:
    """Start of a wait."""
    return time.monotonic()
