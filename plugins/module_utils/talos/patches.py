# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the patches that an operator brings (motley_talos_patches), before talosctl sees them.

What cannot work is refused with what to write instead; talosctl would refuse some of it without a hint, and ignore the
rest in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.talos.drivers import MODULES
from ansible_collections.motley.inference.plugins.module_utils.talos.releases import Contract

_TO_SCHEMATIC = (
    "kernel arguments are part of the image: put them into motley_talos_image_kernel_args of this host and run --tags talos_image "
    "(arm64.nobti for a GB10 is there already)"
)


@dataclass(frozen=True)
class Rule:
    """A path in a v1alpha1 document that is refused, for which contracts, why and what to write."""

    path: tuple[str, ...]
    why: str
    fix: str
    documents: bool | None = None  # None: every contract


# Sources: siderolabs/talos v1alpha1 KernelConfig (modules is its only key), talos#10519, docs upgrading-talos 1.14;
# clashes of the 1.14 documents as talosctl validate prints them.
RULES: tuple[Rule, ...] = (
    Rule(
        ("machine", "kernel", "args"),
        "machine.kernel has one key, modules; Talos has no kernel arguments in its configuration",
        _TO_SCHEMATIC,
    ),
    Rule(
        ("machine", "install", "extraKernelArgs"),
        "with systemd-boot the command line is inside the signed image, so Talos ignores install.extraKernelArgs",
        _TO_SCHEMATIC,
    ),
    Rule(
        ("machine", "install", "extensions"),
        "install.extensions is deprecated and takes nothing from the Image Factory",
        "put the extension's full name into motley_talos_image_extensions of this host and run --tags talos_image",
    ),
    Rule(
        ("machine", "install", "image"),
        "the installer image follows from the schematic",
        "use motley_talos_version and motley_talos_image_extensions",
    ),
    Rule(("machine", "install", "disk"), "the install disk has its own variable", "set motley_install_disk on this host"),
    Rule(
        ("machine", "install", "wipe"),
        "wiping has its own variable, so that it is never inherited",
        "set motley_install_wipe: true on this host",
    ),
    Rule(
        ("machine", "network", "hostname"),
        "the host name is set by a HostnameConfig document, and two places clash",
        "rename the host in the inventory",
    ),
    Rule(
        ("machine", "install"),
        "machine.install is incompatible with UnattendedInstallConfig",
        "patch the document UnattendedInstallConfig",
        True,
    ),
    Rule(("machine", "nodeLabels"), ".machine.nodeLabels clashes with KubeNodeConfig", "patch KubeNodeConfig.labels", True),
    Rule(("machine", "nodeTaints"), ".machine.nodeTaints clashes with KubeNodeConfig", "patch KubeNodeConfig.taints", True),
    Rule(("machine", "nodeAnnotations"), ".machine.nodeAnnotations clashes with KubeNodeConfig", "patch KubeNodeConfig.annotations", True),
    Rule(("machine", "kubelet"), "kubelet settings are in documents of this contract", "patch KubeletConfig or KubeNodeConfig", True),
    Rule(
        ("cluster", "allowSchedulingOnControlPlanes"),
        "scheduling is a taint of KubeNodeConfig in this contract; Motley lifts it already",
        "remove it",
        True,
    ),
)
# Documents that only the 1.14 contract and later know.
_NEW_KINDS = (
    "KernelModuleConfig",
    "SysctlConfig",
    "KubeNodeConfig",
    "KubeletConfig",
    "UnattendedInstallConfig",
    "KubeAdmissionControlConfig",
    "CRICustomizationConfig",
    "SecurityProfileConfig",
    "KubeAPIServerConfig",
    "UdevRulesConfig",
    "SysfsConfig",
)
_UNPATCHABLE = ("KernelArgs", "KernelArgsConfig")


def check(documents: Sequence[Any], contract: Contract, *, node: str | None = None) -> list[str]:
    """Refuse what cannot work; returns warnings. Documents are the parsed patches, in order."""
    warnings: list[str] = []
    for document in documents:
        if isinstance(document, Sequence) and not isinstance(document, str):
            raise MotleyError(
                "motley_talos_patches holds a JSON 6902 patch (a list), which Talos does not take for configurations of several documents",
                hint="write it as a partial configuration (strategic merge)",
                node=node,
            )
        if not isinstance(document, Mapping):
            raise MotleyError(
                f"motley_talos_patches holds {document!r}, which is no part of a configuration",
                hint="write a mapping, or YAML text with one",
                node=node,
            )
        warnings += _document(document, contract, node)
    return warnings


def _document(document: Mapping[str, Any], contract: Contract, node: str | None) -> list[str]:
    kind = str(document.get("kind", "") or "")
    if kind in _UNPATCHABLE:
        raise MotleyError(f"Talos has no document {kind}", hint=_TO_SCHEMATIC, node=node)
    if bool(kind) != ("apiVersion" in document):
        raise MotleyError(
            "a patch document needs both apiVersion and kind, or neither", hint="write apiVersion: v1alpha1 beside kind", node=node
        )
    if kind:
        return _named(document, kind, contract, node)
    for rule in RULES:
        if rule.documents in (None, contract.documents) and _has(document, rule.path):
            raise MotleyError(f"motley_talos_patches sets {'.'.join(rule.path)}: {rule.why}", hint=rule.fix, node=node)
    twice = [name for name in _module_names(document) if name in MODULES]
    if twice:
        return [
            f"motley_talos_patches lists the kernel modules {', '.join(twice)}, which Motley lists already; they will stand there twice"
        ]
    return []


def _named(document: Mapping[str, Any], kind: str, contract: Contract, node: str | None) -> list[str]:
    if kind in _NEW_KINDS and not contract.documents:
        raise MotleyError(
            f"the document {kind} is not registered in the {contract.name} contract", hint="it comes with Talos 1.14", node=node
        )
    if kind == "HostnameConfig":
        raise MotleyError(
            "motley_talos_patches sets HostnameConfig: the host name is the name in the inventory", hint="rename the host", node=node
        )
    if kind == "UnattendedInstallConfig" and (_has(document, ("installer", "image")) or _has(document, ("provisioning", "wipe"))):
        raise MotleyError(
            "motley_talos_patches sets the installer image or wipe",
            hint="use motley_talos_image_extensions, motley_install_wipe",
            node=node,
        )
    return []


def _has(document: Mapping[str, Any], path: Sequence[str]) -> bool:
    value: Any = document
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            return False
        value = value[name]
    return True


def _module_names(document: Mapping[str, Any]) -> list[str]:
    kernel = (document.get("machine") or {}).get("kernel") if isinstance(document.get("machine"), Mapping) else None
    modules = kernel.get("modules") if isinstance(kernel, Mapping) else None
    return [str(item.get("name", "")) for item in modules or [] if isinstance(item, Mapping)]


def unlearn_booleans(document: Any) -> Any:
    """`auto: off` of an inventory arrives as False, for Ansible reads YAML 1.1; Talos wants the word."""
    fixes: dict[str, Callable[[Any], Any]] = {
        "auto": lambda value: {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value
    }
    if isinstance(document, Mapping):
        return {name: fixes.get(str(name), lambda value: value)(unlearn_booleans(item)) for name, item in document.items()}
    if isinstance(document, list):
        return [unlearn_booleans(item) for item in document]
    return document
