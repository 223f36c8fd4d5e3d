# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The resources of a machine (`talosctl get`), made from its state and its hardware."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from motley_lab.talos.machine import Machine

KERNELS = {"1.12": "6.18.42-talos", "1.13": "6.18.44-talos", "1.14": "6.18.51-talos"}
_AMBIGUOUS = {
    "ms": "machinestatuses.runtime.talos.dev manifeststatuses.kubernetes.talos.dev memorystats.perf.talos.dev mountstatuses.block.talos.dev",
    "ss": "secretstatuses.kubernetes.talos.dev securitystates.talos.dev siderolinkstatuses.siderolink.talos.dev swapstatuses.block.talos.dev",
}
SECRET = ("MachineConfigs.config.talos.dev",)


@dataclass(frozen=True)
class Kind:
    type: str
    namespace: str
    owner: str
    columns: tuple[tuple[str, str], ...]

    @property
    def short(self) -> str:
        name = self.type.split(".")[0]
        return name[:-2] if name.endswith(("ses", "sses")) and not name.endswith("Nodenames") else name.removesuffix("s")


class UnknownKind(Exception):
    """A name that no resource has, or several have: gRPC code and text."""


@cache
def _kinds() -> dict[str, Kind]:
    found: dict[str, Kind] = {}
    for line in (Path(__file__).parent / "tables" / "resources.txt").read_text(encoding="utf-8").splitlines():
        aliases, kind, namespace, owner, columns = line.split("|")
        cells = tuple((cell.split("=")[0].replace("~", " "), cell.split("=")[1]) for cell in columns.split())
        row = Kind(kind, namespace, owner, cells)
        parts = kind.lower().split(".")
        for alias in [*aliases.split(), *(".".join(parts[:count]) for count in range(1, len(parts) + 1))]:
            found[alias] = row
    return found


def kind(name: str) -> Kind:
    low = name.lower()
    if low in _AMBIGUOUS:
        raise UnknownKind("InvalidArgument", f'resource type "{name}" is ambiguous: [{_AMBIGUOUS[low]}]')
    if low not in _kinds():
        raise UnknownKind("NotFound", f'resource "{name}" is not registered')
    return _kinds()[low]


def kernel(machine: Machine) -> str:
    return KERNELS.get(machine.contract_of_release(), KERNELS["1.14"])


def pretty(size: int) -> str:
    """A size in decimal units, with one digit below ten."""
    units, value, unit = ("kB", "MB", "GB", "TB", "PB"), float(size), "B"
    for name in units:
        if value < 1000:
            break
        value, unit = value / 1000, name
    return f"{value:.1f} {unit}" if unit != "B" and value < 10 else f"{value:.0f} {unit}"


def stamp(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def listed(machine: Machine, wanted: Kind) -> list[dict[str, Any]]:
    """All objects of a kind, by id."""
    rows = _MAKERS[wanted.type](machine)
    result = []
    for key, spec, *rest in rows:
        version = rest[0] if rest else 1
        made = machine.state["booted_at"]
        metadata: dict[str, Any] = {
            "created": stamp(made), "id": int(key) if key.isdigit() else key, "namespace": wanted.namespace, "owner": wanted.owner,
            "phase": "running", "type": wanted.type, "updated": stamp(rest[1] if len(rest) > 1 else made), "version": version,
        }  # fmt: skip
        if wanted.type in SECRET:
            metadata["annotations"] = {"talos.dev/yaml-spec": "1"}
        result.append({"metadata": metadata, "spec": spec})
    return result


def _links(machine: Machine) -> list[tuple[Any, ...]]:
    running = kernel(machine)
    rows: list[tuple[Any, ...]] = []
    for index, link in enumerate(machine.hardware["links"], 2):
        vendor, _, product = str(link["pci_id"]).partition(":")
        up = _carrier(link["name"], bool(link.get("up")))
        flags = "UP,BROADCAST,RUNNING,MULTICAST,LOWER_UP" if up else "UP,BROADCAST,MULTICAST"
        spec: dict[str, Any] = {
            "broadcastAddr": "ff:ff:ff:ff:ff:ff", "busPath": link["bus_path"], "driver": link["driver"], "driverVersion": running,
            "duplex": "Full" if up else "Unknown", "flags": flags, "hardwareAddr": link["mac"], "index": index, "kind": "",
            "linkIndex": 0, "linkState": up, "mtu": 1500, "operationalState": "up" if up else "down", "pciID": link["pci_id"],
            "permanentAddr": link["mac"], "port": link["port"] if up else "Other", "product": link["product"],
            "productID": f"0x{product.lower()}", "queueDisc": "mq", "slaveKind": "",
            "speedMbit": link.get("speed_mbit", 4294967295) if up else 4294967295, "type": "ether", "vendor": link["vendor"],
            "vendorID": f"0x{vendor.lower()}",
        }  # fmt: skip
        rows.append((link["name"], spec))
    base = {"duplex": "Unknown", "linkIndex": 0, "port": "Other", "slaveKind": "", "permanentAddr": "", "broadcastAddr": "ff:ff:ff:ff:ff:ff"}
    down = {**base, "flags": "BROADCAST,MULTICAST", "linkState": False, "operationalState": "down", "queueDisc": "noop", "mtu": 1500}
    up_ = {**base, "flags": "UP,BROADCAST,RUNNING,MULTICAST,LOWER_UP", "linkState": True, "operationalState": "up", "queueDisc": "noqueue"}
    tail = machine.hardware["links"][0]["mac"][-5:]
    rows += [
        ("lo", {**up_, "flags": "UP,LOOPBACK,RUNNING,LOWER_UP", "hardwareAddr": "00:00:00:00:00:00", "index": 1, "kind": "", "mtu": 65536,
                "broadcastAddr": "00:00:00:00:00:00", "operationalState": "unknown", "type": "loopback"}),
        ("bond0", {**down, "hardwareAddr": f"02:00:5e:aa:{tail}", "index": 20, "kind": "bond", "type": "ether",
                   "bondMaster": {"mode": "balance-rr", "xmitHashPolicy": "layer2", "lacpRate": "slow"}}),
        ("dummy0", {**down, "hardwareAddr": f"02:00:5e:ab:{tail}", "index": 21, "kind": "dummy", "type": "ether"}),
        ("sit0", {**down, "hardwareAddr": "00:00:00:00", "index": 22, "kind": "sit", "type": "sit", "mtu": 1480}),
        ("tunl0", {**down, "hardwareAddr": "00:00:00:00", "index": 23, "kind": "ipip", "type": "ipip", "mtu": 1480}),
    ]  # fmt: skip
    if machine.kubelet_runs():
        rows += [
            ("cni0", {**up_, "hardwareAddr": f"02:00:5e:ac:{tail}", "index": 30, "kind": "bridge", "type": "ether", "mtu": 1450}),
            ("flannel.1", {**up_, "hardwareAddr": f"02:00:5e:ad:{tail}", "index": 31, "kind": "vxlan", "type": "ether", "mtu": 1450,
                           "operationalState": "unknown"}),
        ]  # fmt: skip
    return sorted(rows, key=lambda row: row[0])


def _carrier(name: str, default: bool) -> bool:
    """The real state of the namespace's interface, if it is there."""
    try:
        return Path(f"/sys/class/net/{name}/carrier").read_text(encoding="ascii").strip() == "1"
    except OSError:
        return default if not Path(f"/sys/class/net/{name}").exists() else False


def _addresses(machine: Machine) -> list[tuple[Any, ...]]:
    first, last = machine.hardware["links"][0]["name"], machine.hardware["links"][0]["mac"].split(":")
    local = f"fe80::5eff:fe{last[3]}:{int(last[4] + last[5], 16):x}/64"
    rows = [(first, 2, f"{machine.address}/24", "inet4", "global"), (first, 2, local, "inet6", "link"),
            ("lo", 1, "127.0.0.1/8", "inet4", "host"), ("lo", 1, "::1/128", "inet6", "host")]  # fmt: skip
    return [
        (f"{link}/{address}", {"address": address, "family": family, "flags": "permanent" + (",noprefixroute" if address == "::1/128" else ""),
                               "linkIndex": index, "linkName": link, "priority": 0, "scope": scope})
        for link, index, address, family, scope in rows
    ]  # fmt: skip


def _routes(machine: Machine) -> list[tuple[Any, ...]]:
    first = machine.hardware["links"][0]["name"]
    network = ".".join(machine.address.split(".")[:3]) + ".0/24"
    gateway = machine.facts.get("gateway") or ".".join(machine.address.split(".")[:3]) + ".1"
    base = {"family": "inet4", "flags": "", "outLinkIndex": 2, "outLinkName": first, "priority": 1024, "table": "main", "type": "unicast"}
    return [
        (f"inet4//{network}/1024", {**base, "dst": network, "gateway": "", "protocol": "kernel", "scope": "link", "src": machine.address}),
        (f"inet4/{gateway}//1024", {**base, "dst": "", "gateway": gateway, "protocol": "dhcp", "scope": "global", "src": ""}),
    ]


def _disks(machine: Machine) -> list[tuple[Any, ...]]:
    loop = {"bus_path": "/virtual", "cdrom": False, "dev_path": "/dev/loop0", "io_size": 512, "pretty_size": "74 kB", "readonly": True,
            "sector_size": 512, "size": 73728, "sub_system": "/sys/class/block"}  # fmt: skip
    rows: list[tuple[Any, ...]] = [("loop0", loop)]
    for disk in machine.hardware["disks"]:
        name = disk["path"].removeprefix("/dev/")
        kind_ = "nvme" if name.startswith("nvme") else "sata"
        spec = {"bus_path": f"/pci0000:00/0000:00:1d.0/0000:04:00.0/nvme/{name[:5]}/{name}", "cdrom": False, "dev_path": disk["path"],
                "io_size": 512, "model": disk.get("model", "Lab disk"), "pretty_size": pretty(disk["size"]), "readonly": False,
                "sector_size": 512, "serial": f"LAB{machine.name.upper()}", "size": disk["size"], "sub_system": "/sys/class/block",
                "transport": kind_, "wwid": f"eui.0025380000{len(machine.name):06d}"}  # fmt: skip
        rows.append((name, spec))
    return rows


def _volumes(machine: Machine) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for disk in machine.hardware["disks"]:
        name, path = disk["path"].removeprefix("/dev/"), disk["path"]
        parts = machine.partitions(disk)
        whole = {"devPath": path, "devicePath": f"/devices/{name}", "parent": "", "parentDevPath": "", "type": "disk", "size": disk["size"],
                 "prettySize": pretty(disk["size"]), "sectorSize": 512, "ioSize": 512, "name": "gpt" if parts else "", "label": ""}  # fmt: skip
        rows.append((name, whole))
        for number, part in enumerate(parts, 1):
            key = f"{name}{'p' if name[-1].isdigit() else ''}{number}"
            label = part.get("partition_label") or part.get("label") or ""
            rows.append((key, {
                "devPath": f"/dev/{key}", "devicePath": f"/devices/{name}/{key}", "parent": name, "parentDevPath": path, "type": "partition",
                "size": part["size"], "prettySize": pretty(part["size"]), "sectorSize": 512, "ioSize": 512,
                "name": part.get("filesystem") or part.get("name") or "", "label": part.get("label") or "", "partitionLabel": label,
                "partitionIndex": number,
            }))  # fmt: skip
    return rows


def _extensions(machine: Machine) -> list[tuple[Any, ...]]:
    slot = machine.running()
    release = slot["version"]
    rows: list[tuple[Any, ...]] = []

    def add(image: str, metadata: dict[str, Any]) -> None:
        number = len(rows)
        rows.append((str(number), {"image": f"{number:03d}.{image}.sqsh", "metadata": metadata}))

    minor = re.sub(r"\.\d+(-.*)?$", ".0", release)
    for item in slot["extensions"]:
        short = item["name"].split("/")[-1]
        add(f"ghcr.io-{item['name'].replace('/', '-')}-{item['tag']}", {
            "author": item.get("author", "Sidero Labs"), "compatibility": {"talos": {"version": f">= {minor}"}},
            "description": str(item.get("description", "")).strip(), "name": short, "version": item["tag"],
        })  # fmt: skip
    add("schematic", {
        "author": "Image Factory (https://factory.talos.dev/)", "compatibility": {"talos": {"version": ">= 1.0.0"}},
        "description": "Virtual extension which specifies the schematic of the image built with schematic.",
        "extraInfo": slot["schematic_text"], "name": "schematic", "version": slot["schematic"],
    })  # fmt: skip
    add("modules.dep", {
        "author": "Talos Machinery", "compatibility": {"talos": {"version": ""}}, "description": "Combined modules.dep for all extensions",
        "name": "modules.dep", "version": kernel(machine),
    })  # fmt: skip
    return rows


def _status(machine: Machine) -> list[tuple[Any, ...]]:
    ready, unmet = machine.readiness()
    conditions = [{"name": name, "reason": reason} for name, reason in unmet]
    spec = {"stage": machine.state["stage"], "status": {"ready": ready, "unmetConditions": conditions}}
    return [("machine", spec, machine.state.get("stage_version", 1), machine.state.get("stage_since", machine.state["booted_at"]))]


def _modules(machine: Machine) -> list[tuple[Any, ...]]:
    if machine.state["stage"] == "maintenance":
        return []
    needs = {"nvidia": ["nvidia_uvm", "nvidia_modeset"], "nvidia_modeset": ["nvidia_drm"]}
    rows: list[tuple[Any, ...]] = []
    for name in sorted(machine.loaded_modules()):
        spec: dict[str, Any] = {"address": "0x0000000000000000", "referenceCount": 0, "size": 131072, "state": "Live"}
        users = [user for user in needs.get(name, []) if user in machine.loaded_modules()]
        rows.append((name, {**spec, "dependencies": users, "referenceCount": len(users)} if users else spec))
    return rows


def _members(machine: Machine) -> list[tuple[Any, ...]]:
    if machine.state["stage"] not in ("running", "booting"):
        return []
    rows = []
    for other in machine.members():
        spec: dict[str, Any] = {
            "addresses": [other["address"]], "hostname": other["hostname"], "machineType": other["type"], "nodeId": other["id"],
            "operatingSystem": f"Talos ({other['version']})",
        }  # fmt: skip
        rows.append((other["hostname"], {**spec, "controlPlane": {"port": 6443}} if other["type"] == "controlplane" else spec))
    return sorted(rows, key=lambda row: row[0])


def _configs(machine: Machine) -> list[tuple[Any, ...]]:
    if machine.config is None:
        return []
    kept = machine.state.get("staged") or machine.state["config"]
    version = machine.state.get("config_version", 1)
    return [("persistent", kept, version), ("v1alpha1", machine.state["config"], version)]


def _system_disk(machine: Machine) -> list[tuple[Any, ...]]:
    path = machine.state.get("system_disk") if machine.state["installed"] else None
    return [("system-disk", {"devPath": path, "diskID": path.removeprefix("/dev/")})] if path else []


def _volume_status(machine: Machine) -> list[tuple[Any, ...]]:
    if not machine.state["installed"]:
        return []
    disk = next(d for d in machine.hardware["disks"] if d["path"] == machine.state["system_disk"])
    return [
        (part["partition_label"], {"type": "partition", "phase": "ready", "location": f"{disk['path']}p{number}", "size": part["size"],
                                   "prettySize": pretty(part["size"])})
        for number, part in enumerate(machine.partitions(disk), 1)
        if part["partition_label"] in ("META", "STATE", "EPHEMERAL")
    ]  # fmt: skip


def _addressed(machine: Machine) -> list[tuple[Any, ...]]:
    spec = {"addresses": [f"{machine.address}/24"], "sortAlgorithm": "v1"}
    return [(key, spec) for key in ("accumulative", "current", "default", "routed")]


_SECURITY = {"bootedWithUKI": True, "moduleSignatureEnforced": True, "secureBoot": False, "selinuxState": "enabled, permissive"}
_MAKERS: dict[str, Any] = {
    "LinkStatuses.net.talos.dev": _links,
    "AddressStatuses.net.talos.dev": _addresses,
    "RouteStatuses.net.talos.dev": _routes,
    "NodeAddresses.net.talos.dev": _addressed,
    "HostnameStatuses.net.talos.dev": lambda m: [("hostname", {"domainname": "", "hostname": m.hostname})],
    "Disks.block.talos.dev": _disks,
    "SystemDisks.block.talos.dev": _system_disk,
    "DiscoveredVolumes.block.talos.dev": _volumes,
    "VolumeStatuses.block.talos.dev": _volume_status,
    "ExtensionStatuses.runtime.talos.dev": _extensions,
    "MachineStatuses.runtime.talos.dev": _status,
    "KernelCmdlines.runtime.talos.dev": lambda m: [("cmdline", {"cmdline": m.cmdline()})],
    "LoadedKernelModules.runtime.talos.dev": _modules,
    "SecurityStates.talos.dev": lambda m: [("securitystate", _SECURITY)],
    "MetaKeys.runtime.talos.dev": lambda m: [],
    "Members.cluster.talos.dev": _members,
    "Nodenames.kubernetes.talos.dev": lambda m: [
        ("nodename", {"hostnameVersion": "1", "nodename": m.hostname, "skipNodeRegistration": False})
    ] if m.config else [],
    "MachineTypes.config.talos.dev": lambda m: [("machine-type", m.role)] if m.config else [],
    "MachineConfigs.config.talos.dev": _configs,
}  # fmt: skip
