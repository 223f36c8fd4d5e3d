# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images: every needed architecture, Ray or not, pinned by digest in the lock file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ansible_collections.motley.inference.plugins.module_utils.engine import versions
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.images import contents, platforms, reference
from ansible_collections.motley.inference.plugins.module_utils.images.reference import Reference
from ansible_collections.motley.inference.plugins.module_utils.kube import gpu
from ansible_collections.motley.inference.plugins.module_utils.serving import ray
from ansible_collections.motley.inference.plugins.plugin_utils import serving
from ansible_collections.motley.inference.plugins.plugin_utils.action import Context, MotleyAction
from ansible_collections.motley.inference.plugins.plugin_utils.registry import Image, Registry

# Images whose tag names the engine's version and whose contents the engine table knows.
_PUBLISHED = ("docker.io/vllm/vllm-openai", "docker.io/vllm/vllm-openai-cu129")


class ActionModule(MotleyAction):
    """With images: those. Without: the engine's and the device plugin's of the inventory, recorded in the lock file."""

    ARGUMENTS: ClassVar[dict[str, Any]] = {
        "images": {"type": "list", "elements": "str"},
        "architectures": {"type": "list", "elements": "str"},
        "mirrors": {"type": "dict"},
        "auth_file": {"type": "path"},
        "ca_file": {"type": "path"},
        "refresh": {"type": "bool", "default": False},
        "timeout": {"type": "int", "default": 20},
    }
    MUTATES = True

    def perform(self, args: dict[str, Any], context: Context) -> dict[str, Any]:
        own = args["images"] is not None
        cluster = None if own else context.cluster()
        mirrors = args["mirrors"] if args["mirrors"] is not None else (cluster or {}).get("registry_mirrors") or {}
        registry = Registry(mirrors=mirrors, auth_file=args["auth_file"], ca_file=args["ca_file"], timeout=args["timeout"])
        if own:
            needed = {platforms.architecture(a): ["your nodes"] for a in args["architectures"] or []}
            rows = {text: _look(registry, reference.parse(text), needed) for text in args["images"]}
            return {"changed": False, "images": rows}
        return _of_inventory(context, registry, refresh=args["refresh"] or bool((cluster or {}).get("rebuild")))


def _of_inventory(context: Context, registry: Registry, *, refresh: bool) -> dict[str, Any]:
    context.require_all_nodes()
    cluster = context.cluster()
    plan = context.plan()
    needed: dict[str, list[str]] = {}
    for node in cluster["nodes"]:
        found = context.state.node_facts(node["name"]).get("architecture")
        needed.setdefault(platforms.architecture(str(found or node["arch"])), []).append(node["name"])
    engine, plugin = serving.engine_image(cluster, plan), serving.plugin_image(cluster)
    unified = [n["name"] for n in cluster["nodes"] if "gb10" in n["accelerators"]]
    gpu.check_plugin(str(plugin.tag), unified=unified)
    known = {} if refresh else (context.state.read_json(serving.LOCK) or {}).get("images") or {}
    rows: dict[str, dict[str, Any]] = {}
    for image in dict.fromkeys((engine, plugin)):
        entry = known.get(str(image))
        if entry and not set(needed) - set(entry["architectures"]):
            rows[str(image)] = entry
            continue
        try:
            rows[str(image)] = _look(registry, image, needed)
        except MotleyError as error:
            if not context.check_mode or getattr(error, "status", None) != 0:
                raise
            context.display(f"  note: {error.message}; nothing was looked at")
            rows[str(image)] = {}
    _judge_engine(context, cluster, plan, engine, rows[str(engine)])
    return {"changed": _lock(context, rows), "images": rows}


def _look(registry: Registry, image: Reference, needed: Mapping[str, list[str]]) -> dict[str, Any]:
    """Ask the registry; refuse what lacks an architecture."""
    seen = registry.inspect(image)
    platforms.check(str(image), seen.platforms, needed, single=seen.single)
    wrong = contents.disagreement(seen.contents.values())
    if wrong:
        raise MotleyError(f"{image}: {wrong}", hint="Ray and vLLM refuse each other then: use an image whose variants were built together")
    inside = _inside(image, seen)
    return {"digest": seen.digest, "architectures": seen.architectures, "single": seen.single, **inside.as_dict()}


def _inside(image: Reference, seen: Image) -> contents.Contents:
    """What is inside: the config's word, else the engine table's for vLLM's own images."""
    found = next(iter(seen.contents.values()), contents.Contents())
    version = found.vllm_version or (contents.version_of_tag(image.tag) if image.name in _PUBLISHED else None)
    if found.ray is None and version and image.name in _PUBLISHED:
        row = versions.row(version)
        return contents.Contents(**{**vars(found), "vllm_version": version, "ray": row.ray_inside, "ray_source": f"engine table: {row.source}"})
    return contents.Contents(**{**vars(found), "vllm_version": version})


def _judge_engine(context: Context, cluster: Mapping[str, Any], plan: Mapping[str, Any], image: Reference, row: Mapping[str, Any]) -> None:
    """The engine's image has to fit launcher and plan."""
    planned = serving.engine_version(cluster, plan)
    seen = row.get("vllm_version")
    if seen and versions.parse(seen)[:2] != versions.parse(planned)[:2]:
        raise MotleyError(
            f"{image} holds vLLM {seen}, and the plan was made for {planned}: they place ranks and carry variables by other rules",
            hint=f"set motley_engine_version to {seen} and run --tags plan, or name an image with {planned} in motley_image",
        )
    if cluster["launcher"] != "ray" or not row:
        return
    if row.get("ray") is False:
        raise MotleyError(
            f"{image} holds no Ray ({row.get('ray_source')}), and motley_launcher is ray",
            hint=f"leave motley_image and motley_engine_version out ({versions.DEFAULT_VERSION['ray']} brings Ray), or name an image in motley_image "
            "to which Ray was added (pip install 'ray[default]', the same version for all architectures)",
        )
    old = ray.version_problem(row.get("ray_version"))
    if old:
        raise MotleyError(f"{image}: {old}", hint="use an image with Ray 2.52 or newer")
    if row.get("ray") is None:
        context.warn(f"{image}: nothing in its config tells whether it holds Ray; this vLLM version does not bring it by itself")


def _lock(context: Context, rows: Mapping[str, dict[str, Any]]) -> bool:
    """Put the images into the lock file, in place of older ones."""
    before = (context.state.read_json(serving.LOCK) or {}).get("images") or {}
    after = {name: row for name, row in rows.items() if row}
    if before == after:
        return False

    def change(document: dict[str, Any]) -> dict[str, Any]:
        return {**document, "images": after}

    context.state.update_json(serving.LOCK, change)
    for name, row in after.items():
        if before.get(name) != row:
            inside = f", Ray {row['ray_version']}" if row.get("ray_version") else ""
            context.display(f"  {name}: {', '.join(row['architectures'])}{inside}, {row['digest'][:19]}")
    return True
