# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The machine configuration of a node as patches on what `talosctl gen config` writes, by contract.

The whole is generated each time from the secrets and these documents: patching a configuration that has the value
already would append list items a second time.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.talos import drivers
from ansible_collections.motley.inference.plugins.module_utils.talos.releases import Contract, parse

_LABEL = re.compile(r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
_CONTROL_PLANE_TAINT = "node-role.kubernetes.io/control-plane"


@dataclass(frozen=True)
class NodeConfig:
    """What the configuration of one node says beyond the cluster's secrets."""

    name: str
    role: str
    address: str
    install_disk: str
    installer: str
    talos_version: str
    kubernetes_version: str
    install_wipe: bool = False
    gpu: bool = False
    interface: str = ""
    static_address: str = ""  # with its prefix length; DHCP gives one otherwise
    gateway: str = ""
    nameservers: tuple[str, ...] = ()
    timeservers: tuple[str, ...] = ()
    registry_mirrors: Mapping[str, str | Sequence[str]] = field(default_factory=dict)

    @property
    def control_plane(self) -> bool:
        """Whether it runs the Kubernetes API and etcd."""
        return self.role == "controlplane"


def check(node: NodeConfig) -> None:
    """Refuse names and addresses that Talos would take and Kubernetes would not."""
    if len(node.name) > 253 or not all(_LABEL.match(part) for part in node.name.split(".")):
        raise MotleyError(
            f"{node.name!r} cannot be a node name in Kubernetes (lower case letters, digits, hyphens)",
            hint="rename the host in the inventory",
            node=node.name,
        )
    for what, value in (
        ("motley_address", node.address),
        ("motley_gateway", node.gateway),
        *(("motley_nameservers", item) for item in node.nameservers),
    ):
        if value and not _is_address(value):
            raise MotleyError(f"{what} {value!r} is no IP address", hint="give the address itself, not a name", node=node.name)
    if not node.install_disk.startswith("/dev/"):
        raise MotleyError(
            f"motley_install_disk is {node.install_disk!r}" if node.install_disk else "motley_install_disk is not set",
            hint="name the disk that Talos may take, for example /dev/nvme0n1",
            node=node.name,
        )
    if node.static_address:
        _check_static(node)
    if node.static_address and not node.interface:
        raise MotleyError(
            "a static address needs the name of the network interface, and the node does not say which it is",
            hint="set motley_interface on this host",
            node=node.name,
        )


def _check_static(node: NodeConfig) -> None:
    try:
        ipaddress.ip_interface(node.static_address)
    except ValueError as error:
        raise MotleyError(
            f"motley_static_address {node.static_address!r} is no address with prefix length",
            hint="for example 10.0.0.20/24",
            node=node.name,
        ) from error
    if "/" not in node.static_address:
        raise MotleyError(
            f"motley_static_address {node.static_address} has no prefix length", hint=f"write {node.static_address}/24", node=node.name
        )


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def documents(node: NodeConfig, contract: Contract) -> list[dict[str, Any]]:
    """Patch documents in the order in which they are written."""
    check(node)
    made = _by_documents(node) if contract.documents else _by_keys(node)
    return [*made, *_common(node)]


def _host_prefix(address: str) -> str:
    return f"{address}/{ipaddress.ip_address(address).max_prefixlen}"


def _by_keys(node: NodeConfig) -> list[dict[str, Any]]:
    """1.12 and 1.13: everything about the machine and Kubernetes is in the document without kind."""
    machine: dict[str, Any] = {"kubelet": {"nodeIP": {"validSubnets": [_host_prefix(node.address)]}}}
    if node.install_wipe:
        machine["install"] = {"wipe": True}
    if node.gpu:
        machine["kernel"] = {"modules": [{"name": name} for name in drivers.MODULES]}
    values = sysctls(node)
    if values:
        machine["sysctls"] = values
    document: dict[str, Any] = {"machine": machine}
    if node.control_plane:
        document["cluster"] = {"allowSchedulingOnControlPlanes": True, "etcd": {"advertisedSubnets": [_host_prefix(node.address)]}}
    return [document]


def _by_documents(node: NodeConfig) -> list[dict[str, Any]]:
    """1.14: a document for each thing; a second one of a kind that is there already merges into it."""
    made: list[dict[str, Any]] = []
    if node.control_plane:
        made.append({"cluster": {"etcd": {"advertisedSubnets": [_host_prefix(node.address)]}}})
    kube = _document("KubeNodeConfig", nodeIP={"validSubnets": [_host_prefix(node.address)]})
    if node.control_plane:
        kube["taints"] = {_CONTROL_PLANE_TAINT: {"$patch": "delete"}}
    made.append(kube)
    if node.install_wipe:
        made.append(_document("UnattendedInstallConfig", provisioning={"wipe": True}))
    if node.gpu:
        made += [_document("KernelModuleConfig", name=name) for name in drivers.MODULES]
    values = sysctls(node)
    if values:
        made.append(_document("SysctlConfig", params=values))
    return made


def _common(node: NodeConfig) -> list[dict[str, Any]]:
    """Documents that every contract since 1.12 knows."""
    made = [_document("HostnameConfig", hostname=node.name, auto="off")]
    if node.static_address:
        link = _document("LinkConfig", name=node.interface, up=True, addresses=[{"address": node.static_address}])
        if node.gateway:
            link["routes"] = [{"gateway": node.gateway}]
        made.append(link)
    if node.nameservers:
        made.append(_document("ResolverConfig", nameservers=[{"address": item} for item in node.nameservers]))
    if node.timeservers:
        made.append(_document("TimeSyncConfig", ntp={"servers": list(node.timeservers)}))
    return [*made, *registry_documents(node.registry_mirrors)]


def _document(kind: str, **keys: Any) -> dict[str, Any]:
    return {"apiVersion": "v1alpha1", "kind": kind, **keys}


def sysctls(node: NodeConfig) -> dict[str, str]:
    """Kernel settings that the driver needs: up to 1.12 its container hook needed the BPF JIT unhardened."""
    if node.gpu and parse(node.talos_version).minor_pair <= (1, 12):
        return {"net.core.bpf_jit_harden": "1"}
    return {}


def registry_documents(mirrors: Mapping[str, str | Sequence[str]]) -> list[dict[str, Any]]:
    """A mirror document for each registry, and one for each plain-HTTP registry itself: containerd assumes HTTPS."""
    endpoints: dict[str, list[str]] = {}
    for name, urls in mirrors.items():
        endpoints[str(name)] = [urls] if isinstance(urls, str) else [str(url) for url in urls]
    for urls in list(endpoints.values()):
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.netloc:
                raise MotleyError(
                    f"motley_registry_mirrors names {url!r}, which is no HTTP address", hint="for example http://10.0.0.1:5000"
                )
            if parts.scheme == "http":
                endpoints.setdefault(parts.netloc, [f"http://{parts.netloc}"])
    return [_document("RegistryMirrorConfig", name=name, endpoints=[{"url": url} for url in endpoints[name]]) for name in sorted(endpoints)]


def with_factory(mirrors: Mapping[str, Any], factory_url: str) -> dict[str, Any]:
    """The mirrors, and the factory's registry where that speaks plain HTTP: the installer image comes from it."""
    parts = urlsplit(factory_url)
    if parts.scheme != "http":
        return dict(mirrors)
    return {parts.netloc: f"http://{parts.netloc}", **mirrors}


def generate(
    node: NodeConfig, contract: Contract, *, cluster: str, endpoint: str, secrets: str, patches: Sequence[str], output: str
) -> list[str]:
    """Arguments of `talosctl gen config` for this node."""
    arguments = [
        "gen", "config", cluster, endpoint,
        "--with-secrets", secrets,
        "--talos-version", contract.name,
        "--kubernetes-version", node.kubernetes_version,
        "--install-disk", node.install_disk,
        "--install-image", node.installer,
        "--with-docs=false", "--with-examples=false",
        "--output-types", "controlplane" if node.control_plane else "worker",
        "--output", output, "--force",
    ]  # fmt: skip
    for patch in patches:
        arguments += ["--config-patch", f"@{patch}"]
    return arguments


@dataclass(frozen=True)
class DryRun:
    """What `apply-config --dry-run` says: whether anything would change, whether that takes a reboot, and the diff."""

    changed: bool
    reboot: bool
    diff: str


def dry_run(text: str) -> DryRun:
    """Read the summary; text is the error output, where it is printed."""
    head, found, diff = text.partition("Config diff:")
    diff = diff.strip("\n")
    if not found:
        raise MotleyError(
            "apply-config --dry-run printed no summary", hint="check that motley_talosctl is of the release in motley_talos_version"
        )
    return DryRun(changed="No changes." not in diff.splitlines(), reboot="with a reboot" in head, diff=diff)
