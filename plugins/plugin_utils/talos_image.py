# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Schematics of the inventory's nodes: compared with the factory's list, registered, kept in lock.yml."""

from __future__ import annotations

from typing import Any

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.talos import drivers, schematic
from ansible_collections.motley.inference.plugins.plugin_utils import talos_node
from ansible_collections.motley.inference.plugins.plugin_utils.action import Context
from ansible_collections.motley.inference.plugins.plugin_utils.factory import Factory


def of_inventory(context: Context, name: str, *, register: bool = True) -> dict[str, Any]:
    """The schematic of a node of the inventory, registered and locked; nothing is asked when the lock holds it already."""
    image = talos_node.image_of(context, name)
    url = context.cluster()["talos"]["factory_url"]
    known = talos_node.locked(context, name)
    if known and _is_current(known, image, url) and (not register or _is_registered(known, url)):
        entry, changed = known, False
    else:
        entry = _registered(context, image, url, name, post=register and not context.check_mode)
        changed = entry != known or known is not None
        talos_node.lock_node(context, name, entry)
    context.state.write_text(f"rendered/{name}/schematic.yaml", image.yaml)
    for text in image.warnings:
        context.warn(f"{name}: {text}")
    before = known["yaml"] if known else ""
    return {
        "changed": changed,
        **result(image, entry, url),
        "diff": {"before": before, "after": image.yaml, "before_header": f"{name} schematic", "after_header": f"{name} schematic"},
    }


def _is_current(known: dict[str, Any], image: schematic.Image, url: str) -> bool:
    return (known.get("yaml"), known.get("version"), known.get("factory"), known.get("secureboot")) == (
        image.yaml,
        image.version,
        url,
        image.secureboot,
    )


def _is_registered(known: dict[str, Any], url: str) -> bool:
    """Whether the factory still has it; one that does not answer is not needed for what is locked already."""
    try:
        return Factory(url, tries=1).knows(known["schematic"])
    except MotleyError:
        return True


def _registered(context: Context, image: schematic.Image, url: str, name: str, *, post: bool) -> dict[str, Any]:
    try:
        return register(image, Factory(url, tries=1) if context.check_mode else Factory(url), node=name, post=post)
    except MotleyError as error:
        # A check run works without the factory, as long as nothing depends on its answer.
        if not context.check_mode or "does not answer" not in error.message:
            raise
        talos_node.note(context, name, f"note: {error.message}; its extension list was not compared")
        return _entry(image, url, image.id, {})


def register(image: schematic.Image, factory: Factory, *, node: str | None, post: bool) -> dict[str, Any]:
    """Compare names with the factory's list, register, compare the ID; what goes into lock.yml."""
    versions = schematic.check_offered(image, factory.extensions(image.version), node=node) if image.extensions else {}
    identifier = factory.register(image.yaml) if post else image.id
    if image.certain and identifier != image.id:
        raise MotleyError(
            f"the factory {factory.url} gave the schematic ID {identifier[:12]}, and its text hashes to {image.id[:12]}",
            hint="this factory changes schematics on the way; do not install from it",
            node=node,
        )
    return _entry(image, factory.url, identifier, versions)


def _entry(image: schematic.Image, url: str, identifier: str, versions: dict[str, str]) -> dict[str, Any]:
    driver = drivers.driver_version(versions[image.driver.kmod]) if image.driver and image.driver.kmod in versions else ""
    return {
        "schematic": identifier,
        "installer": image.installer(url, schematic=identifier),
        "version": image.version,
        "factory": url,
        "secureboot": image.secureboot,
        "yaml": image.yaml,
        "extensions": versions or dict.fromkeys(image.extensions, ""),
        "driver": driver,
    }


def result(image: schematic.Image, entry: dict[str, Any], url: str) -> dict[str, Any]:
    return {
        "schematic": entry["schematic"],
        "yaml": image.yaml,
        "installer": entry["installer"],
        "iso": image.iso(url, schematic=entry["schematic"]),
        "extensions": entry["extensions"],
        "kernel_args": list(image.kernel_args),
        "driver": entry["driver"],
        "architecture": image.arch,
        "notes": list(image.warnings),
    }
