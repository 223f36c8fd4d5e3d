# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Talos refuses in a machine configuration that it could decode.

`tables/clashes.txt` says which document does not go with which key of the classic one (a row without a text reads
"PATH is already set ..."), and which names a disk or link selector may use.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable
from functools import cache
from typing import Any

from motley_lab.talos import schema
from motley_lab.talos.config import Config, Document

MODES = ("metal", "cloud", "container")
LABEL = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
EXTENSIONS_OLD = (
    ".machine.install.extensions is deprecated, please see "
    "https://docs.siderolabs.com/talos/latest/platform-specific-installations/boot-assets"
)
_CONTROL_ONLY = re.compile(
    r"Kube(APIServer|AdmissionControl|AggregatorCA|AuditPolicy|Authentication|Authorizer|ControllerManager|CoreDNS|EtcdEncryption|"
    r"ExternalManifest|FlannelCNI|InlineManifest|Proxy|Scheduler|ServiceAccount|TalosAPIAccess)Config"
)
_NOT_NAMES = {"disk", "volume", "link", "system_disk", "true", "false", "in", "u", *(x + y for x in "KMGT" for y in ("B", "iB"))}


class Errors(Exception):
    """Several errors in the form of Go's multierror, with the warnings that go before them."""

    def __init__(self, errors: list[str], warnings: list[str]) -> None:
        self.warnings = warnings
        super().__init__(multi(errors))


def multi(errors: list[str]) -> str:
    head = "1 error" if len(errors) == 1 else f"{len(errors)} errors"
    return f"{head} occurred:\n\t* " + "\n\t* ".join(errors) + "\n\n"


def q(text: Any) -> str:
    return json.dumps(str(text), ensure_ascii=False)


def _broken(rules: Iterable[tuple[Any, str]]) -> list[str]:
    return [text for broken, text in rules if broken]


@cache
def _table() -> list[list[str]]:
    return [line.split("|") for line in (schema.TABLES / "clashes.txt").read_text(encoding="utf-8").splitlines()]


def validate(config: Config, mode: str, *, strict: bool = False, installed: bool = False) -> list[str]:
    """Check a configuration for a mode; return warnings, raise Errors.

    installed: as a node that runs already does it, which skips the rules for an installation.
    """
    warnings: list[str] = []
    errors: list[str] = []
    if config.v1alpha1 is not None:
        found = _classic(config, warnings, install=mode == "metal" and not installed)
        if strict:
            found += [f"warning: {text}" for text in warnings]
            warnings = []
        errors += [f"v1alpha1.Config: {multi(found)}"] if found else []
    for document in config.documents:
        if document.kind != "v1alpha1":
            shown = f"{document.kind}/{document.name}" if _named(document) else document.kind
            errors += [f"{shown}: {text}" for text in _document(document)]
    if config.v1alpha1 is not None:
        errors += _clashes(config)
    errors += _whole(config, mode)
    if errors:
        raise Errors(errors, warnings)
    return warnings


def _named(document: Document) -> bool:
    shaped = schema.shape(document.kind, "1.14")
    return bool(shaped and "name" in shaped.fields)


def _clashes(config: Config) -> list[str]:
    errors = []
    for document in config.documents:
        for kind, path, text in _table():
            value = config.get(path) if kind == document.kind else None
            if value in (None, "", [], False) or (value == {} and path not in ("machine.kubelet", "machine.install")):
                continue
            errors.append(text or f".{path} is already set in v1alpha1 config")
            if kind != "KubeNodeConfig":
                break
    return errors


def _whole(config: Config, mode: str) -> list[str]:
    """Rules that look at all documents together."""
    control = config.get("machine.type") in ("controlplane", "init")
    dns = config.get("machine.features.hostDNS") or (config.find("ResolverConfig") or {}).get("hostDNS")
    box = mode == "container"
    encrypted = config.get("cluster.secretboxEncryptionSecret") or config.get("cluster.aescbcEncryptionSecret")
    kinds = sorted({document.kind for document in config.documents if _CONTROL_ONLY.fullmatch(document.kind)})
    return _broken([
        (box and dns is None, "hostDNS config is required in container mode"),
        (box and dns is not None and not dns.get("enabled"), "hostDNS must be enabled in container mode"),
        (box and dns is not None and not dns.get("forwardKubeDNSToHost"), "forwardKubeDNSToHost must be enabled in container mode"),
        (config.contract != "1.13" and control and not encrypted and config.find("KubeEtcdEncryptionConfig") is None,
         "etcd encryption config is required for control plane machines"),
        (kinds and not control, f"the following document kinds are only allowed on control plane machines: [{' '.join(kinds)}]"),
    ])  # fmt: skip


def _classic(config: Config, warnings: list[str], *, install: bool) -> list[str]:
    """Rules of the classic document, in the order of the real ones."""
    machine = config.get("machine")
    if machine is None:
        return ["machine instructions are required"]
    old, control, role = config.contract == "1.13", machine.get("type") in ("controlplane", "init"), machine.get("type")
    section, dns = machine.get("install"), config.get("machine.features.hostDNS") or {}
    images = [item.get("image") for item in (section or {}).get("extensions") or []]
    warnings += _broken([
        (not old and machine.get("files"), ".machine.files is deprecated; use dedicated configuration documents instead"),
        (not old and machine.get("baseRuntimeSpecOverrides"),
         ".machine.baseRuntimeSpecOverrides is deprecated; use a CRIBaseRuntimeSpecConfig document instead"),
        (role == "join", 'use "worker" instead of "join" for machine type'),
        (images, EXTENSIONS_OLD),
    ])  # fmt: skip
    disk = section is not None and (section.get("disk") or section.get("diskSelector"))
    both = section is not None and section.get("extraKernelArgs") and section.get("grubUseUKICmdline")
    errors = _cluster(config, control=control) + _broken([
        (install and section is None and old, 'install instructions are required in "metal" mode'),
        (install and section is not None and not disk, "either install disk or diskSelector should be defined"),
        (install and both, "install.extraKernelArgs and install.grubUseUKICmdline can't be used together"),
        (dns.get("forwardKubeDNSToHost") and not dns.get("enabled"),
         "feature hostDNS.forwardKubeDNSToHost requires hostDNS.enabled to be true (.machine.features.hostDNS)"),
    ])  # fmt: skip
    errors += _role(config, machine, warnings) + _network(machine, warnings)
    access = config.get("machine.features.kubernetesTalosAPIAccess.enabled")
    return errors + _broken([
        *((_address_problem(net.removeprefix("!")), f"nodeIP subnet is not valid: {q(net)}")
          for net in config.get("machine.kubelet.nodeIP.validSubnets") or []),
        *((image in images[:index], f"duplicate system extension {q(image)}") for index, image in enumerate(images)),
        *((True, f"invalid machine node labels: {multi(found)}") for found in [_labels(machine)] if found),
        (access and not control, "feature Kubernetes Talos API Access can only be enabled on control plane machines"),
        ((config.v1alpha1 or {}).get("persist") is False, ".persist should be enabled"),
    ])  # fmt: skip


def _cluster(config: Config, *, control: bool) -> list[str]:
    cluster = config.get("cluster")
    if cluster is None:
        return ["cluster instructions are required"]
    endpoint, plane = config.get("cluster.controlPlane.endpoint"), cluster.get("controlPlane")
    if endpoint is None and (plane is not None or config.contract == "1.13"):
        return ["cluster controlplane endpoint is required"]
    domain = config.get("cluster.network.dnsDomain") or "x"
    provider, etcd, discovery = cluster.get("externalCloudProvider") or {}, cluster.get("etcd"), cluster.get("discovery") or {}
    service = discovery.get("enabled") and not config.get("cluster.discovery.registries.service.disabled")
    names = [str(manifest.get("name") or "") for manifest in cluster.get("inlineManifests") or []]
    return _broken([
        (endpoint and "://" not in endpoint,
         f"invalid controlplane endpoint: no scheme specified for the cluster endpoint URL\ntry: {q(f'https://{endpoint}')}"),
        (not re.fullmatch(r"([a-zA-Z0-9_][\w-]{0,62})(\.[a-zA-Z0-9_][\w-]{0,62})*[._]?", domain), f"{q(domain)} is not a valid DNS name"),
        (provider.get("manifests") and not provider.get("enabled"), "external cloud provider is disabled, but manifests are provided"),
        (etcd is not None and not control, "etcd config is only allowed on control plane machines"),
        (etcd is not None and control and not etcd.get("ca"), "key/cert combination should not be empty"),
        (config.get("cluster.ca.key") and not control, "cluster CA key is not allowed on non-controlplane nodes (.cluster.ca)"),
        *((not name.strip(), "inline manifest name can't be empty") for name in names),
        *((name in names[:index], f"inline manifest name {q(name)} is duplicate") for index, name in enumerate(names)),
        (service and not cluster.get("id"), "cluster discovery service requires .cluster.id"),
        (service and not cluster.get("secret"), "cluster discovery service requires .cluster.secret"),
    ])  # fmt: skip


def _role(config: Config, machine: dict[str, Any], warnings: list[str]) -> list[str]:
    ca, role, accepted = machine.get("ca") or {}, machine.get("type"), machine.get("acceptedCAs")
    control, worker = role in ("controlplane", "init"), role in ("worker", "join")
    errors = ["issuing CA or some accepted CAs are required (.machine.ca, machine.acceptedCAs)"] if not ca and not accepted else []
    if control and config.get("cluster.network") is not None:
        errors += _cni(config.get("cluster.network.cni") or {}, warnings)
    vip = any(device.get("vip") for device in (machine.get("network") or {}).get("interfaces") or [])
    return errors + _broken([
        (control and not ca, "issuing CA is required (.machine.ca)"),
        (control and ca and not ca.get("key"), "issuing CA key is required for controlplane nodes (.machine.ca.key)"),
        (worker and vip, "virtual (shared) IP is not allowed on non-controlplane nodes"),
        (worker and ca.get("key"), "issuing Talos API CA key is not allowed on non-controlplane nodes (.machine.ca)"),
        (worker and ca and not ca.get("crt") and not accepted,
         "trusted CA certificates are required on non-controlplane nodes (.machine.ca.crt, .machine.acceptedCAs)"),
        (worker and config.get("cluster.ca.key"), "issuing Kubernetes API CA key is not allowed on non-controlplane nodes (.cluster.ca)"),
        (not control and not worker, f"unknown machine type {q(role or '')}"),
    ])  # fmt: skip


def _cni(cni: dict[str, Any], warnings: list[str]) -> list[str]:
    name, urls, flannel = cni.get("name") or "flannel", cni.get("urls") or [], cni.get("flannel") or {}
    if name == "custom" and not urls:
        warnings.append('"urls" field should not be empty for "custom" CNI')
    other = name in ("custom", "none")
    return _broken([
        (name not in ("flannel", "custom", "none"), 'cni name should be one of ["flannel", "custom", "none"]'),
        (name in ("flannel", "none") and urls, f'"urls" field should be empty for {q(name)} CNI'),
        (other and flannel.get("extraArgs"), f'"flanneldExtraArgs" field should be empty for {q(name)} CNI'),
        (other and flannel.get("kubeNetworkPoliciesEnabled"), f'"flannelKubeNetworkPoliciesEnabled" should not be enabled for {q(name)} CNI'),
    ])  # fmt: skip


def _address_problem(text: str) -> str:
    try:
        ipaddress.ip_interface(text)
    except ValueError:
        return f"invalid CIDR address: {text}" if "/" in text else f"failed to parse IP address {q(text)}"
    return ""


def _network(machine: dict[str, Any], warnings: list[str]) -> list[str]:
    errors: list[str] = []
    both = "[networking.os.device.interface], [networking.os.device.deviceSelector]"
    for device in (machine.get("network") or {}).get("interfaces") or []:
        name, selector, addresses = device.get("interface") or "", device.get("deviceSelector"), device.get("addresses") or []
        if device.get("ignore"):
            continue
        if device.get("cidr"):
            warnings.append(f"{q(name)}: machine.network.interface.cidr is deprecated, please use machine.network.interface.addresses")
        errors += _broken([
            (not name and selector is None, f"{both}: required either config section to be set"),
            (name and selector is not None, f"{both}: config sections are mutually exclusive"),
            (selector == {}, "[networking.os.device.deviceSelector]: config section should contain at least one field"),
            (device.get("cidr") and addresses, f"[networking.os.device] {q(name)}: interface can't have both .cidr and .addresses set"),
            *((_address_problem(item), f"[networking.os.device.addresses] {q(name)}: {_address_problem(item)}") for item in addresses),
        ])  # fmt: skip
    for disk in machine.get("disks") or []:
        wrong = any(not part.get("size") for part in (disk.get("partitions") or [])[:-1])
        text = f"partition for disk {q(disk.get('device'))} is set to occupy full disk, but it's not the last partition in the list"
        errors += [text] if wrong else []
    return errors


def _labels(machine: dict[str, Any]) -> list[str]:
    found = []
    for key, value in sorted((machine.get("nodeLabels") or {}).items()):
        prefix, _, name = key.rpartition("/")
        text = str(value or "")
        rules = _broken([
            (not re.fullmatch(LABEL, name), f"name {q(name)} is invalid"),
            (prefix and not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", prefix), f"prefix {q(prefix)} is invalid"),
            (text and not re.fullmatch(LABEL, text), f"label value {q(text)} is invalid"),
            (len(text) > 63, f"label value length exceeds limit of 63: {q(text)}"),
        ])  # fmt: skip
        found += rules[:1]
    return found


def cel_problem(expression: str) -> str:
    """The compiler's complaint about a selector, as far as names go."""
    known = {kind.removeprefix("cel "): names.split() for kind, names, _ in _table() if kind.startswith("cel ")}
    for match in re.finditer(r"\b(disk|volume|link)(\.)([A-Za-z_]\w*)", expression):
        if match[3] not in known[match[1]]:
            return _cel_error(expression, match.start(2), f"undefined field '{match[3]}'")
    bare = re.sub(r'"[^"]*"', lambda match: " " * len(match[0]), expression)
    for match in re.finditer(r"(?<![\w.])([A-Za-z_]\w*)(?!\w|\s*\()", bare):
        if match[1] not in _NOT_NAMES:
            return _cel_error(expression, match.start(), f"undeclared reference to '{match[1]}' (in container '')")
    return ""


def _cel_error(expression: str, column: int, text: str) -> str:
    return f"ERROR: <input>:1:{column + 1}: {text}\n | {expression}\n | {'.' * column}^"


def _document(document: Document) -> list[str]:
    """Rules of a single document."""
    data, kind, name = document.data, document.kind, document.name
    hostname, auto = data.get("hostname") or "", data.get("auto") or ""
    host, _, domain = hostname.partition(".")
    errors = _broken([
        (kind == "HostnameConfig" and hostname and auto not in ("", "off"), "'auto' and 'hostname' cannot be set at the same time"),
        (kind == "HostnameConfig" and not hostname and not auto, "either 'auto' or 'hostname' must be set"),
        (hostname and kind == "HostnameConfig" and (not 0 < len(host) <= 63 or len(domain) > 190), f"invalid hostname {q(hostname)}"),
        (_named(document) and not name, "name is required"),
        (kind == "WatchdogTimerConfig" and not data.get("device"), "watchdog device is required"),
        (kind == "NetworkRuleConfig" and not (data.get("portSelector") or {}).get("ports"), "portSelector.ports is required"),
    ])  # fmt: skip
    if kind in ("UserVolumeConfig", "RawVolumeConfig", "SwapVolumeConfig") and name:
        errors += _volume(data, name)
    for holder, what in (("provisioning", "disk"), ("selector", "link")):
        section = data.get(holder) or {}
        expression = (section.get("diskSelector") or section).get("match")
        problem = cel_problem(expression) if expression else ""
        errors += [f"{what} selector is invalid: {problem}"] if problem else []
    return errors


def _volume(data: dict[str, Any], name: str) -> list[str]:
    section, kind = data.get("provisioning") or {}, data.get("volumeType") or "partition"
    made = kind in ("partition", "disk")
    return _broken([
        (len(name) > 34, "name must be between 1 and 34 characters long"),
        (not re.fullmatch(r"[A-Za-z0-9-]+", name), "name can only contain lowercase and uppercase ASCII letters, digits, and hyphens"),
        (kind == "directory" and section, "provisioning config is not allowed for directory volumes"),
        (made and not (section.get("diskSelector") or {}).get("match"), "disk selector is required"),
        (kind == "partition" and not section.get("minSize") and not section.get("maxSize"), "min size or max size is required"),
    ])  # fmt: skip
