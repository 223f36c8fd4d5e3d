# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the actions of the serving side share: the cluster's client, images from the lock file, secrets, files for people."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.motley.inference.plugins.module_utils.engine import versions
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.images import reference
from ansible_collections.motley.inference.plugins.module_utils.images.reference import Reference
from ansible_collections.motley.inference.plugins.module_utils.kube import gpu, objects
from ansible_collections.motley.inference.plugins.module_utils.kube.objects import Object
from ansible_collections.motley.inference.plugins.module_utils.serving import layout
from ansible_collections.motley.inference.plugins.module_utils.serving.layout import Layout
from ansible_collections.motley.inference.plugins.plugin_utils import yaml
from ansible_collections.motley.inference.plugins.plugin_utils.action import Context
from ansible_collections.motley.inference.plugins.plugin_utils.kube import Change, Kube, KubeUnreachable

LOCK = "lock.yml"
DEFAULT_ENGINE_IMAGE = "docker.io/vllm/vllm-openai"


def kubeconfig(context: Context) -> Path:
    """The operator's kubeconfig, else the one in the state directory."""
    own = context.cluster()["kubeconfig"]
    return Path(str(own)).expanduser() if own else context.state.root / "kubeconfig"


def client(context: Context) -> Kube | None:
    """A client of the cluster; in check mode None, with a note, where there is none or where it does not answer."""
    path = kubeconfig(context)
    if context.check_mode and not path.exists():
        context.display(f"  note: no kubeconfig yet ({path}); nothing was compared with a cluster")
        return None
    kube = Kube(path)
    if context.check_mode:
        try:
            kube.version()
        except KubeUnreachable as error:
            context.display(f"  note: {error.message}; nothing was compared with it")
            return None
    return kube


def engine_version(cluster: Mapping[str, Any], plan: Mapping[str, Any] | None) -> str:
    """The engine's version: the plan's, else the inventory's, else the default."""
    made = plan or {}
    sources: list[Mapping[str, Any]] = [made.get("engine") or {}, (made.get("request") or {}).get("engine") or {}, cluster["engine"]]
    for source in sources:
        if source.get("version"):
            return str(source["version"])
    return versions.DEFAULT_VERSION[str(cluster["launcher"])]


def engine_image(cluster: Mapping[str, Any], plan: Mapping[str, Any] | None) -> Reference:
    """The engine's image: the operator's, else vLLM's own of that version."""
    own = cluster["engine"]["image"]
    return reference.parse(str(own) if own else f"{DEFAULT_ENGINE_IMAGE}:v{engine_version(cluster, plan).removeprefix('v')}")


def plugin_image(cluster: Mapping[str, Any]) -> Reference:
    """The device plugin's image."""
    return reference.parse(gpu.plugin_image(str(cluster["device_plugin_version"] or gpu.PLUGIN_DEFAULT)))


def locked_image(context: Context, wanted: Reference) -> tuple[Reference, dict[str, Any]]:
    """An image by the digest of the lock file, with what is known of it. In check mode an unknown digest is no failure."""
    entry = ((context.state.read_json(LOCK) or {}).get("images") or {}).get(str(wanted))
    if entry:
        return wanted.pinned(entry["digest"]), dict(entry)
    if context.check_mode or wanted.digest:
        return wanted, {}
    raise MotleyError(f"{wanted} is not in {context.state.root / LOCK}", hint="run --tags container_image first")


def render(context: Context, name: str, definitions: Sequence[Mapping[str, Any]]) -> None:
    """Objects without secrets as a file for people: rendered/NAME, in check mode check/rendered/NAME."""
    context.state.write_text(f"rendered/{name}", yaml.dump(objects.render(definitions)))


def diff_of(changes: Iterable[Change]) -> list[dict[str, str]]:
    """Differences in the form that `--diff` prints; secrets are already hidden."""
    found = []
    for change in changes:
        if change.changed:
            before = yaml.dump([change.before]) if change.before else ""
            after = yaml.dump([objects.stripped(change.after)]) if change.after else ""
            name = str(change.identity)
            found.append({"before": before, "after": after, "before_header": name, "after_header": f"{name} ({change.action})"})
    return found


def summary(context: Context, changes: Iterable[Change]) -> list[dict[str, Any]]:
    """Say what was done with which object; the result's list."""
    found = list(changes)
    words = {"created": "create", "changed": "change", "recreated": "delete and create anew", "deleted": "delete"}
    for change in found:
        if change.changed and context.check_mode:
            context.display(f"  would {words[change.action]} {change.identity}")
        elif change.action == "recreated":
            context.display(f"  {change.identity} was deleted and created anew")
    return [change.as_dict() for change in found]


def pass_on_warnings(context: Context, kube: Kube) -> None:
    """Warning headers of the API server, once each."""
    for text in kube.warnings:
        context.warn(f"Kubernetes: {text}")
    kube.warnings.clear()


# -- secrets -------------------------------------------------------------------------------------------------------------


def secret_of(context: Context, kube: Kube | None, *, file: str, secret: tuple[str, str, str], own_file: str | None = None) -> str:
    """A secret of the service: the operator's file, else the state directory's, else the cluster's, else a new one.

    secret: namespace, name and key of the Secret that holds it. In check mode an unknown one is not made.
    """
    state = context.state
    if own_file:
        value = _read_secret(own_file)
    elif (state.root / file).exists():
        value = (state.root / file).read_text().strip()
    elif context.check_mode:
        return objects.GENERATED
    else:
        value = _live_secret(kube, secret) or secrets.token_urlsafe(32)
    if not value:
        raise MotleyError(f"{own_file or state.root / file} is empty", hint="put the secret into it, or remove the file")
    context.hide(value)
    if not context.check_mode:
        state.write_text(file, value + "\n")
    return value


def _read_secret(file: str) -> str:
    try:
        return Path(file).expanduser().read_text().strip()
    except OSError as error:
        raise MotleyError(f"the file {file} can not be read: {error.strerror}", hint="correct the path in the inventory") from error


def _live_secret(kube: Kube | None, secret: tuple[str, str, str]) -> str:
    """The value that a running cluster has: a state directory that was lost must not lock its owner out."""
    if kube is None:
        return ""
    namespace, name, key = secret
    live = kube.get(objects.Identity("v1", "Secret", name, namespace))
    return objects.secret_value(live, key) if live else ""


def hub_token(context: Context) -> str | None:
    """The Hugging Face token, from its file or variable; never kept in the state directory."""
    file = context.cluster()["secrets"]["hf_token_file"]
    value = _read_secret(str(file)) if file else str(context.variable("motley_hf_token") or "")
    context.hide(value or None)
    return value or None


def api_key(context: Context) -> str:
    """The endpoint's key as the state directory has it."""
    own = context.cluster()["secrets"]["api_key_file"]
    value = _read_secret(str(own)) if own else (context.state.read_text("api_key") or "").strip()
    if not value:
        raise MotleyError("there is no API key in the state directory", hint="run --tags ray_cluster first")
    context.hide(value)
    return value


def namespace_objects(definitions: Iterable[Object]) -> list[Object]:
    """Definitions that live in a namespace."""
    return [d for d in definitions if (d.get("metadata") or {}).get("namespace")]


# -- layout and settings -------------------------------------------------------------------------------------------------


def make_layout(context: Context, plan: Mapping[str, Any]) -> Layout:
    """Where what runs, from plan, inventory and what was found out per node."""
    cluster = context.cluster()
    facts = {node["name"]: context.state.node_facts(node["name"]) for node in cluster["nodes"]}
    return layout.build(cluster, plan, facts, check_mode=context.check_mode)


def go_on(context: Context, *tags: str) -> str:
    """The command with which a run of a single tag is continued; empty if this run comes to those tags itself."""
    running = set(context.variable("ansible_run_tags") or [])
    if not running or running & {"all", *tags[:1]}:
        return ""
    sources = context.variable("ansible_inventory_sources") or []
    inventory = " ".join(f"-i {shlex.quote(str(source))}" for source in sources)
    return f"ansible-playbook motley.inference.site {inventory} --tags {','.join(tags)}".replace("  ", " ")
