# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Talos refuses in a machine configuration that it could decode."""

from __future__ import annotations

import ipaddress
import json
import re
from typing import Any

from motley_lab.talos.config import Config, Document

MODES = ("metal", "cloud", "container")
_CEL = {
    "disk": "size io_size sector_size readonly cdrom model serial modalias wwid bus_path sub_system transport rotational dev_path "
    "pretty_size secondary_disks uuid symlinks",
    "volume": "size sector_size io_size name type label uuid partition_uuid partition_type partition_label partition_index dev_path "
    "parent_dev_path parent disk_size block_size filesystem_block_size probed_size offset pretty_size dev_links",
    "link": "name kind type mtu hardware_addr permanent_addr driver bus_path pciid port speed_mbit alias index link_index flags "
    "link_state operational_state product vendor firmware_version driver_version",
}
_CONTROL_ONLY = (
    "KubeAPIServerConfig", "KubeAdmissionControlConfig", "KubeAggregatorCAConfig", "KubeAuditPolicyConfig",
    "KubeAuthenticationConfig", "KubeAuthorizerConfig", "KubeControllerManagerConfig", "KubeCoreDNSConfig",
    "KubeEtcdEncryptionConfig", "KubeExternalManifestConfig", "KubeFlannelCNIConfig", "KubeInlineManifestConfig", "KubeProxyConfig",
    "KubeSchedulerConfig", "KubeServiceAccountConfig", "KubeTalosAPIAccessConfig",
)  # fmt: skip
# document kind -> what of the classic document it clashes with: path, text (a path alone gives "PATH is already set ...")
_CLASHES: dict[str, tuple[tuple[str, str], ...]] = {
    "UnattendedInstallConfig": (("machine.install", "UnattendedInstallConfig config is incompatible with v1alpha1 config (.machine.install)"),),
    "HostnameConfig": (("machine.network.hostname", "static hostname is already set in v1alpha1 config"),
                       ("machine.features.stableHostname", "stable hostname is already set in v1alpha1 config")),
    "KubeNodeConfig": (("machine.kubelet.nodeIP", ""), ("machine.kubelet.registerWithFQDN", ""),
                       ("machine.kubelet.skipNodeRegistration", ""), ("machine.nodeLabels", ""), ("machine.nodeAnnotations", ""),
                       ("machine.nodeTaints", ""), ("cluster.allowSchedulingOnControlPlanes", "")),
    "KubeletConfig": (("machine.kubelet", "kubelet config is already set in v1alpha1 config (.machine.kubelet)"),),
    "ResolverConfig": (("machine.network.searchDomains", ""), ("machine.network.nameservers", ""),
                       ("machine.network.disableSearchDomain", ""),
                       ("machine.features.hostDNS", "")),
    "KubeCoreDNSConfig": (("cluster.coreDNS", "CoreDNS config is already set in v1alpha1 config (.cluster.coreDNS)"),),
    "KubeClusterConfig": (("cluster.clusterName", ""), ("cluster.controlPlane", "")),
    "KubeNetworkConfig": (("cluster.network", ""),),
    "KubePrismConfig": (("machine.features.kubePrism", ""),),
    "KubeAPIServerConfig": (("cluster.apiServer", ""),),
    "KubeControllerManagerConfig": (("cluster.controllerManager", ""),),
    "KubeProxyConfig": (("cluster.proxy", ""),),
    "DiscoveryIdentityConfig": (("cluster.id", ""), ("cluster.secret", "")),
    "DiscoveryServiceConfig": (("cluster.discovery", ""),),
    "TimeSyncConfig": (("machine.time", "time sync is already configured in v1alpha1 config"),),
    "VolumeConfig": (("machine.systemDiskEncryption", "system disk encryption is already configured in v1alpha1 config"),),
}  # fmt: skip


class Errors(Exception):
    """Several errors in the form of Go's multierror."""

    def __init__(self, errors: list[str]) -> None:
        self.errors = errors
        super().__init__(multi(errors))


def multi(errors: list[str]) -> str:
    head = "1 error" if len(errors) == 1 else f"{len(errors)} errors"
    return f"{head} occurred:\n\t* " + "\n\t* ".join(errors) + "\n\n"


def q(text: Any) -> str:
    return json.dumps(str(text), ensure_ascii=False)


def validate(config: Config, mode: str, *, strict: bool = False, installed: bool = False) -> list[str]:
    """Check a configuration for a mode; return warnings, raise Errors.

    installed: as a node that runs already does it, which skips the rules for an installation.
    """
    warnings: list[str] = []
    errors: list[str] = []
    if config.v1alpha1 is not None:
        found: list[str] = []
        _classic(config, mode, found, warnings, installed=installed)
        if strict:
            found += [f"warning: {text}" for text in warnings]
            warnings = []
        if found:
            errors.append(f"v1alpha1.Config: {multi(found)}")
    for document in config.documents:
        if document.kind != "v1alpha1":
            for text in _document(document):
                errors.append(f"{document.kind}{f'/{document.name}' if 'name' in document.data or document.name or _named(document) else ''}: {text}")
    if config.v1alpha1 is not None:
        errors += _clashes(config)
    errors += _whole(config, mode)
    if errors:
        raise Errors(errors)
    return warnings


def _named(document: Document) -> bool:
    from motley_lab.talos import schema

    shaped = schema.shape(document.kind, "1.14")
    return bool(shaped and "name" in shaped.fields)


def _clashes(config: Config) -> list[str]:
    errors = []
    for document in config.documents:
        for path, text in _CLASHES.get(document.kind, ()):
            value = config.get(path)
            if value in (None, "", [], False) or (value == {} and path not in ("machine.kubelet", "machine.install")):
                continue
            errors.append(text or f".{path} is already set in v1alpha1 config")
            if document.kind != "KubeNodeConfig":
                break
    return errors


def _whole(config: Config, mode: str) -> list[str]:
    """Rules that look at all documents together."""
    errors: list[str] = []
    classic = config.get("machine.features.hostDNS") or (config.find("ResolverConfig") or {}).get("hostDNS")
    if mode == "container":
        if classic is None:
            errors.append("hostDNS config is required in container mode")
        else:
            errors += [] if classic.get("enabled") else ["hostDNS must be enabled in container mode"]
            errors += [] if classic.get("forwardKubeDNSToHost") else ["forwardKubeDNSToHost must be enabled in container mode"]
    control = config.get("machine.type") in ("controlplane", "init")
    if config.contract != "1.13" and config.v1alpha1 is not None:
        secrets = any(config.get(f"cluster.{key}EncryptionSecret") for key in ("secretbox", "aescbc"))
        if control and not secrets and config.find("KubeEtcdEncryptionConfig") is None:
            errors.append("etcd encryption config is required for control plane machines")
    kinds = sorted({document.kind for document in config.documents if document.kind in _CONTROL_ONLY})
    if kinds and not control:
        errors.append(f"the following document kinds are only allowed on control plane machines: [{' '.join(kinds)}]")
    return errors


def _classic(config: Config, mode: str, errors: list[str], warnings: list[str], *, installed: bool) -> None:
    old = config.contract == "1.13"
    machine = config.get("machine")
    if machine is None:
        errors.append("machine instructions are required")
        return
    if not old and machine.get("files"):
        warnings.append(".machine.files is deprecated; use dedicated configuration documents instead")
    if not old and machine.get("baseRuntimeSpecOverrides"):
        warnings.append(".machine.baseRuntimeSpecOverrides is deprecated; use a CRIBaseRuntimeSpecConfig document instead")
    control = machine.get("type") in ("controlplane", "init")
    _cluster(config, errors, control=control)
    install = machine.get("install")
    if mode == "metal" and not installed:
        if install is None and old:
            errors.append('install instructions are required in "metal" mode')
        if install is not None:
            if not install.get("disk") and not install.get("diskSelector"):
                errors.append("either install disk or diskSelector should be defined")
            if install.get("extraKernelArgs") and install.get("grubUseUKICmdline"):
                errors.append("install.extraKernelArgs and install.grubUseUKICmdline can't be used together")
    dns = config.get("machine.features.hostDNS") or {}
    if dns.get("forwardKubeDNSToHost") and not dns.get("enabled"):
        errors.append("feature hostDNS.forwardKubeDNSToHost requires hostDNS.enabled to be true (.machine.features.hostDNS)")
    _role(config, machine, errors, warnings)
    _network(machine, errors, warnings)
    _details(config, machine, errors, warnings, control=control)


def _role(config: Config, machine: dict[str, Any], errors: list[str], warnings: list[str]) -> None:
    ca, role = machine.get("ca") or {}, machine.get("type")
    if role == "join":
        warnings.append('use "worker" instead of "join" for machine type')
        role = "worker"
    if not ca and not machine.get("acceptedCAs"):
        errors.append("issuing CA or some accepted CAs are required (.machine.ca, machine.acceptedCAs)")
    if role in ("controlplane", "init"):
        if config.get("cluster.network") is not None:
            _cni(config.get("cluster.network.cni") or {"name": "flannel"}, errors, warnings)
        if not ca:
            errors.append("issuing CA is required (.machine.ca)")
        elif not ca.get("key"):
            errors.append("issuing CA key is required for controlplane nodes (.machine.ca.key)")
    elif role == "worker":
        if ca.get("key"):
            errors.append("issuing Talos API CA key is not allowed on non-controlplane nodes (.machine.ca)")
        if ca and not ca.get("crt") and not machine.get("acceptedCAs"):
            errors.append("trusted CA certificates are required on non-controlplane nodes (.machine.ca.crt, .machine.acceptedCAs)")
        if (config.get("cluster.ca") or {}).get("key"):
            errors.append("issuing Kubernetes API CA key is not allowed on non-controlplane nodes (.cluster.ca)")
    else:
        errors.append(f"unknown machine type {q(role or '')}")


def _cluster(config: Config, errors: list[str], *, control: bool) -> None:
    cluster = config.get("cluster")
    if cluster is None:
        errors.append("cluster instructions are required")
        return
    plane = cluster.get("controlPlane")
    if plane is not None or config.contract == "1.13":
        endpoint = (plane or {}).get("endpoint")
        if endpoint is None:
            errors.append("cluster controlplane endpoint is required")
            return
        if not re.match(r"https?://", endpoint):
            errors.append(f"invalid controlplane endpoint: no scheme specified for the cluster endpoint URL\ntry: {q('https://' + endpoint)}")
    domain = (cluster.get("network") or {}).get("dnsDomain")
    if domain and not re.fullmatch(r"([a-zA-Z0-9_][a-zA-Z0-9_-]{0,62})(\.[a-zA-Z0-9_][a-zA-Z0-9_-]{0,62})*[._]?", domain):
        errors.append(f"{q(domain)} is not a valid DNS name")
    provider = cluster.get("externalCloudProvider") or {}
    if provider.get("manifests") and not provider.get("enabled"):
        errors.append("external cloud provider is disabled, but manifests are provided")
    etcd = cluster.get("etcd")
    if etcd is not None and not control:
        errors.append("etcd config is only allowed on control plane machines")
    if etcd is not None and control:
        if not etcd.get("ca"):
            errors.append("key/cert combination should not be empty")
        if etcd.get("subnet") and etcd.get("advertisedSubnets"):
            errors.append("etcd subnet can't be set when advertisedSubnets are set")
    if (cluster.get("ca") or {}).get("key") and not control:
        errors.append("cluster CA key is not allowed on non-controlplane nodes (.cluster.ca)")
    names: list[str] = []
    for manifest in cluster.get("inlineManifests") or []:
        name = str(manifest.get("name") or "")
        errors += ["inline manifest name can't be empty"] if not name.strip() else []
        errors += [f"inline manifest name {q(name)} is duplicate"] if name in names else []
        names.append(name)
    discovery = cluster.get("discovery") or {}
    service = (discovery.get("registries") or {}).get("service") or {}
    if discovery.get("enabled") and not service.get("disabled"):
        errors += ["cluster discovery service requires .cluster.id"] if not cluster.get("id") else []
        errors += ["cluster discovery service requires .cluster.secret"] if not cluster.get("secret") else []


def _cni(cni: dict[str, Any], errors: list[str], warnings: list[str]) -> None:
    name, urls = cni.get("name") or "flannel", cni.get("urls") or []
    if name not in ("flannel", "custom", "none"):
        errors.append('cni name should be one of ["flannel", "custom", "none"]')
    elif name == "custom":
        warnings += [] if urls else ['"urls" field should not be empty for "custom" CNI']
    elif urls:
        errors.append(f'"urls" field should be empty for {q(name)} CNI')
    if name in ("custom", "none"):
        flannel = cni.get("flannel") or {}
        if flannel.get("extraArgs"):
            errors.append(f'"flanneldExtraArgs" field should be empty for {q(name)} CNI')
        if flannel.get("kubeNetworkPoliciesEnabled"):
            errors.append(f'"flannelKubeNetworkPoliciesEnabled" should not be enabled for {q(name)} CNI')


def _address_problem(text: str) -> str:
    try:
        if "/" in text:
            ipaddress.ip_interface(text)
        else:
            ipaddress.ip_address(text)
    except ValueError:
        return f"invalid CIDR address: {text}" if "/" in text else f"failed to parse IP address {q(text)}"
    return ""


def _network(machine: dict[str, Any], errors: list[str], warnings: list[str]) -> None:
    devices = (machine.get("network") or {}).get("interfaces") or []
    for device in devices:
        name, selector = device.get("interface") or "", device.get("deviceSelector")
        if device.get("ignore"):
            continue
        both = "[networking.os.device.interface], [networking.os.device.deviceSelector]"
        if not name and selector is None:
            errors.append(f"{both}: required either config section to be set")
        elif name and selector is not None:
            errors.append(f"{both}: config sections are mutually exclusive")
        if selector == {}:
            errors.append("[networking.os.device.deviceSelector]: config section should contain at least one field")
        if device.get("cidr"):
            if device.get("addresses"):
                errors.append(f"[networking.os.device] {q(name)}: interface can't have both .cidr and .addresses set")
            warnings.append(f"{q(name)}: machine.network.interface.cidr is deprecated, please use machine.network.interface.addresses")
        for address in device.get("addresses") or []:
            problem = _address_problem(address)
            errors += [f"[networking.os.device.addresses] {q(name)}: {problem}"] if problem else []
        if device.get("vip") and machine.get("type") == "worker":
            errors.append("virtual (shared) IP is not allowed on non-controlplane nodes")


def _details(config: Config, machine: dict[str, Any], errors: list[str], warnings: list[str], *, control: bool) -> None:
    for disk in machine.get("disks") or []:
        partitions = disk.get("partitions") or []
        for index, partition in enumerate(partitions):
            if not partition.get("size") and index != len(partitions) - 1:
                device = q(disk.get("device"))
                errors.append(f"partition for disk {device} is set to occupy full disk, but it's not the last partition in the list")
    for subnet in (config.get("machine.kubelet.nodeIP.validSubnets")) or []:
        if _address_problem(subnet.removeprefix("!")):
            errors.append(f"nodeIP subnet is not valid: {q(subnet)}")
    images = [item.get("image") for item in (machine.get("install") or {}).get("extensions") or []]
    for index, image in enumerate(images):
        if image in images[:index]:
            errors.append(f"duplicate system extension {q(image)}")
    if images:
        warnings.append(
            ".machine.install.extensions is deprecated, please see "
            "https://docs.siderolabs.com/talos/latest/platform-specific-installations/boot-assets"
        )
    _labels(machine, errors)
    access = config.get("machine.features.kubernetesTalosAPIAccess") or {}
    if access.get("enabled") and not control:
        errors.append("feature Kubernetes Talos API Access can only be enabled on control plane machines")
    if (config.v1alpha1 or {}).get("persist") is False:
        errors.append(".persist should be enabled")


def _labels(machine: dict[str, Any], errors: list[str]) -> None:
    part = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
    found = []
    for key, value in sorted((machine.get("nodeLabels") or {}).items()):
        prefix, _, name = key.rpartition("/")
        if not re.fullmatch(part, name) or (prefix and not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", prefix)):
            kind = "name" if not re.fullmatch(part, name) else "prefix"
            found.append(f"{kind} {q(name if kind == 'name' else prefix)} is invalid")
        elif value and not re.fullmatch(part, str(value)):
            found.append(f"label value {q(value)} is invalid")
        elif len(name) > 63 or len(str(value or "")) > 63:
            found.append(f"label value length exceeds limit of 63: {q(value)}" if len(name) <= 63 else f"name is too long: {len(name)} (limit is 63)")
    if found:
        errors.append(f"invalid machine node labels: {multi(found)}")


def cel_problem(expression: str) -> str:
    """The compiler's complaint about a selector, as far as names go."""
    for match in re.finditer(r"\b(disk|volume|link)(\.)([A-Za-z_]\w*)", expression):
        if match[3] not in _CEL[match[1]].split():
            column = match.start(2)
            return f"ERROR: <input>:1:{column + 1}: undefined field '{match[3]}'\n | {expression}\n | {'.' * column}^"
    bare = re.sub(r'"[^"]*"', lambda m: " " * len(m[0]), expression)
    for match in re.finditer(r"(?<![\w.])([A-Za-z_]\w*)(?!\w|\s*\()", bare):
        if match[1] not in ("disk", "volume", "link", "system_disk", "true", "false", "in", "u", "GB", "GiB", "MB", "MiB", "TB", "TiB", "KB", "KiB"):
            column = match.start()
            return (
                f"ERROR: <input>:1:{column + 1}: undeclared reference to '{match[1]}' (in container '')\n | {expression}\n | "
                f"{'.' * column}^"
            )
    return ""


def _document(document: Document) -> list[str]:
    """Rules of a single document."""
    data, kind, errors = document.data, document.kind, []
    if kind == "HostnameConfig":
        hostname, auto = data.get("hostname") or "", data.get("auto") or ""
        if auto not in ("", "off") and hostname:
            errors.append("'auto' and 'hostname' cannot be set at the same time")
        elif not auto and not hostname:
            errors.append("either 'auto' or 'hostname' must be set")
        host, _, domain = hostname.partition(".")
        if hostname and (not 0 < len(host) <= 63 or len(domain) > 190):
            errors.append(f"invalid hostname {q(hostname)}")
    elif _named(document) and kind not in ("VolumeConfig",):
        name = document.name or data.get("name") or ""
        if not name:
            errors.append("name is required" if kind not in ("KmsgLogConfig",) else "name is required")
    if kind in ("UserVolumeConfig", "RawVolumeConfig", "SwapVolumeConfig", "ExistingVolumeConfig", "ExternalVolumeConfig"):
        errors += _volume(document)
    if kind == "VolumeConfig" and document.name not in ("EPHEMERAL", "STATE", "IMAGECACHE", "CRI", "KUBELET", "LOG", "ETCD"):
        errors.append(f'only ["STATE" "EPHEMERAL" "IMAGE-CACHE"] volumes are supported, got {q(document.name)}')
    for holder in ("provisioning", "selector"):
        section = data.get(holder) or {}
        expression = (section.get("diskSelector") or {}).get("match") or (section.get("match") if holder == "selector" else None)
        problem = cel_problem(expression) if expression else ""
        if problem:
            errors.append(f"{'disk selector' if holder == 'provisioning' else 'link selector'} is invalid: {problem}")
    if kind == "NetworkRuleConfig":
        selector = data.get("portSelector") or {}
        errors += [] if selector.get("ports") else ["portSelector.ports is required"]
    if kind == "WatchdogTimerConfig" and not data.get("device"):
        errors.append("watchdog device is required")
    return errors


def _volume(document: Document) -> list[str]:
    data, name, errors = document.data, document.name, []
    if not name:
        return []
    if len(name) > 34:
        errors.append("name must be between 1 and 34 characters long")
    if not re.fullmatch(r"[A-Za-z0-9-]+", name):
        errors.append("name can only contain lowercase and uppercase ASCII letters, digits, and hyphens")
    provisioning, kind = data.get("provisioning") or {}, data.get("volumeType") or "partition"
    if document.kind == "UserVolumeConfig" and kind == "directory" and provisioning:
        errors.append("provisioning config is not allowed for directory volumes")
    elif document.kind in ("UserVolumeConfig", "RawVolumeConfig", "SwapVolumeConfig") and kind in ("partition", "disk"):
        if not (provisioning.get("diskSelector") or {}).get("match"):
            errors.append("disk selector is required")
        if kind == "partition" and not provisioning.get("minSize") and not provisioning.get("maxSize"):
            errors.append("min size or max size is required")
    return errors
