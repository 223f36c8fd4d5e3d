# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Image Factory schematics: what is in a node's image, its canonical text, its ID and the addresses that follow."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.talos import drivers, yaml_text
from ansible_collections.motley.inference.plugins.module_utils.talos.releases import Branch

FACTORY = "https://factory.talos.dev"

# Every field of a schematic in canonical order (siderolabs/image-factory pkg/schematic/schematic.go): a type, or the
# fields below. The factory refuses any other.
_FIELDS: dict[str, Any] = {
    "owner": str,
    "overlay": {"image": str, "name": str, "options": dict},
    "customization": {
        "embeddedMachineConfiguration": str,
        "extraKernelArgs": [str],
        "meta": [{"key": int, "value": str}],
        "systemExtensions": {"officialExtensions": [str]},
        "bootloader": str,
        "secureboot": {"enrollKeys": str, "includeWellKnownCertificates": bool},
        "diskImage": {"sectorSize": int},
    },
}
_PLAIN = re.compile(r"^[A-Za-z][A-Za-z0-9._/=,+:-]*[A-Za-z0-9]$")
# Aliases that the factory resolves to -lts at build time; they give another ID and hide the branch.
_ALIASES: dict[str, str] = {name: f"siderolabs/{name}-lts" for name in (*drivers.KMOD.values(), drivers.TOOLKIT)}


def canonical(document: Mapping[str, Any]) -> str:
    """The text that the factory hashes; refuses what it would refuse."""
    ordered = _ordered(document, _FIELDS, "schematic")
    ordered.setdefault("customization", {})
    return yaml_text.dump({name: ordered[name] for name in _FIELDS if name in ordered})


def identifier(document: Mapping[str, Any]) -> str:
    """The schematic ID as this collection computes it."""
    return hashlib.sha256(canonical(document).encode()).hexdigest()


def is_certain(document: Mapping[str, Any]) -> bool:
    """Whether the local ID is beyond doubt: plain arguments and extension names only. Else the factory's answer counts."""
    custom = document.get("customization") or {}
    if document.get("overlay") or document.get("owner") or set(custom) - {"extraKernelArgs", "systemExtensions"}:
        return False
    texts = [*(custom.get("extraKernelArgs") or []), *((custom.get("systemExtensions") or {}).get("officialExtensions") or [])]
    return all(_PLAIN.match(text) and yaml_text.scalar(text) == text for text in texts)


def _ordered(value: Any, fields: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise MotleyError(f"{where} is not a mapping", hint="see the schematic reference of the Image Factory")
    unknown = sorted(set(value) - set(fields))
    if unknown:
        raise MotleyError(f"field {unknown[0]} not found in {where}", hint=f"known are {', '.join(fields)}")
    out: dict[str, Any] = {}
    for name, kind in fields.items():
        if name in value:
            item = _typed(value[name], kind, f"{where}.{name}")
            if item not in ({}, [], "", None) and item is not False:
                out[name] = item
    return out


def _typed(value: Any, kind: Any, where: str) -> Any:
    if value is None:
        return None
    if isinstance(kind, Mapping):
        return _ordered(value, kind, where)
    if isinstance(kind, list):
        if not isinstance(value, list):
            raise MotleyError(f"{where} is not a list", hint="write it as a list")
        return [_typed(item, kind[0], f"{where}[{index}]") for index, item in enumerate(value)]
    if kind is dict:
        return _sorted(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise MotleyError(f"{where} is not {kind.__name__}", hint="put quotes around it" if kind is str else "")
    return value


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _sorted(value[name]) for name in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Image:
    """What one node boots, and why."""

    document: dict[str, Any]
    id: str
    certain: bool
    version: str
    arch: str
    secureboot: bool
    extensions: tuple[str, ...]
    kernel_args: tuple[str, ...]
    driver: drivers.Driver | None
    warnings: tuple[str, ...]

    @property
    def yaml(self) -> str:
        """Canonical text."""
        return canonical(self.document)

    def installer(self, factory_url: str, *, schematic: str | None = None) -> str:
        """Reference of the installer image; the index holds every architecture, so the reference names none."""
        name = "metal-installer-secureboot" if self.secureboot else "metal-installer"
        return f"{registry_host(factory_url)}/{name}/{schematic or self.id}:{self.version}"

    def iso(self, factory_url: str, *, schematic: str | None = None, secureboot: bool | None = None) -> str:
        """Address of the ISO; this one is made for an architecture."""
        secure = self.secureboot if secureboot is None else secureboot
        name = f"metal-{self.arch}{'-secureboot' if secure else ''}.iso"
        return f"{factory_url.rstrip('/')}/image/{schematic or self.id}/{self.version}/{name}"


def registry_host(factory_url: str) -> str:
    """Host (and port) under which the factory's registry answers."""
    parts = urlsplit(factory_url if "://" in factory_url else f"https://{factory_url}")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise MotleyError(f"motley_factory_url {factory_url!r} is no HTTP address", hint=f"for example {FACTORY}")
    return parts.netloc + parts.path.rstrip("/")


def check_extensions(names: Sequence[str], *, node: str | None = None) -> list[str]:
    """Full names; a bare NVIDIA name, two kernel module flavours or two branches are refused with the name to use."""
    full = []
    for name in names:
        short = name.removeprefix("siderolabs/")
        if short in _ALIASES:
            raise MotleyError(
                f"the extension name {name} hides its driver branch: the factory takes it for -lts, under another schematic ID",
                hint=f"write {_ALIASES[short]} (or …-production)",
                node=node,
            )
        full.append(name if "/" in name else f"siderolabs/{name}")
    kmods = [name for name in full if any(name.startswith(f"siderolabs/{kmod}-") for kmod in drivers.KMOD.values())]
    if len(set(kmods)) > 1:
        raise MotleyError(
            f"one image holds one NVIDIA kernel module flavour, not {' and '.join(sorted(set(kmods)))}", hint="keep one of them", node=node
        )
    branches = {name.rsplit("-", 1)[1] for name in full if name.startswith(f"siderolabs/{drivers.TOOLKIT}-")} | {
        name.rsplit("-", 1)[1] for name in kmods
    }
    if len(branches) > 1:
        raise MotleyError(
            "NVIDIA kernel modules and container toolkit are of different branches (lts, production)",
            hint="give both the same ending",
            node=node,
        )
    return full


def for_node(
    accelerators: Sequence[str],
    version: str,
    *,
    arch: str | None = None,
    flavour: str | None = None,
    branch: Branch | None = None,
    kernel_args: Sequence[str] = (),
    extensions: Sequence[str] = (),
    secureboot: bool = False,
    overlay: Mapping[str, Any] | None = None,
    accepted: Sequence[str] = (),
    node: str | None = None,
) -> Image:
    """The image of one node: driver of its accelerators, then what the operator adds, in that order."""
    chosen = drivers.driver(accelerators, version, flavour=flavour, branch=branch, node=node)
    if chosen and arch and arch != chosen.arch:
        raise MotleyError(
            f"{', '.join(accelerators)} is in {chosen.arch} machines, not in {arch}",
            hint="check motley_accelerators and the address",
            node=node,
        )
    warnings = drivers.refuse_broken(chosen, version, accepted=accepted, node=node) if chosen else []
    extra = [name for name in check_extensions(extensions, node=node) if not (chosen and name in (chosen.kmod, chosen.toolkit))]
    names = check_extensions([*([chosen.kmod, chosen.toolkit] if chosen else []), *extra], node=node)
    arguments = [*(chosen.kernel_args if chosen else ()), *kernel_args]
    arguments = list(dict.fromkeys(arguments))
    custom: dict[str, Any] = {}
    if arguments:
        custom["extraKernelArgs"] = arguments
    if names:
        custom["systemExtensions"] = {"officialExtensions": names}
    document: dict[str, Any] = {"customization": custom}
    if overlay:
        document = {"overlay": dict(overlay), **document}
    return Image(
        document=document,
        id=identifier(document),
        certain=is_certain(document),
        version=version if version.startswith("v") else f"v{version}",
        arch=chosen.arch if chosen else arch or "amd64",
        secureboot=secureboot,
        extensions=tuple(names),
        kernel_args=tuple(arguments),
        driver=chosen,
        warnings=tuple(warnings),
    )


def check_offered(image: Image, offered: Sequence[Mapping[str, Any]], *, node: str | None = None) -> dict[str, str]:
    """Compare with the factory's list for this release; returns the version of each extension.

    Registering a schematic checks no name: a wrong one would only show when the installer is pulled.
    """
    tags = {str(item.get("name", "")): str(item.get("ref", "")).rpartition(":")[2] for item in offered}
    missing = [name for name in image.extensions if name not in tags]
    if missing:
        near = [name for name in tags if any(part in name for part in missing[0].removeprefix("siderolabs/").split("-")[:2])]
        raise MotleyError(
            f"official extension {missing[0]} is not available for Talos {image.version}",
            hint=f"names that come near: {', '.join(sorted(near)[:4])}" if near else "see the factory's list for this release",
            node=node,
        )
    versions = {name: tags[name] for name in image.extensions}
    if image.driver:
        kmod, toolkit = (drivers.driver_version(versions[name]) for name in (image.driver.kmod, image.driver.toolkit))
        if kmod != toolkit:
            raise MotleyError(
                f"the factory pairs kernel modules {kmod} with userland {toolkit} for Talos {image.version}",
                hint="choose another release or branch",
                node=node,
            )
    return versions
