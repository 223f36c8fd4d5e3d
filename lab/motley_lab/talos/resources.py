# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The resources of a machine (`talosctl get`), made from its state and its hardware.

`tables/resources.txt` names the kinds (aliases, type, namespace, owner, columns), `tables/specs.json` what never changes.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from motley_lab.talos.schema import TABLES

if TYPE_CHECKING:
    from motley_lab.talos.machine import Machine

SECRET = "MachineConfigs.config.talos.dev"
Rows = Iterator[tuple[Any, ...]]  # id, spec and, where they are not 1 and the boot, version and time of the last change


@dataclass(frozen=True)
class Kind:
    type: str
    namespace: str
    owner: str
    columns: tuple[tuple[str, str], ...]

    @property
    def short(self) -> str:
        name = self.type.split(".")[0]
        return name[:-2] if name.endswith("ses") else name.removesuffix("s")


class UnknownKind(Exception):
    """A name that no resource has, or several have: gRPC code and text."""


@cache
def _fixed() -> Any:
    return json.loads((TABLES / "specs.json").read_text(encoding="utf-8"))


@cache
def _kinds() -> dict[str, Kind]:
    found: dict[str, Kind] = {}
    for line in (TABLES / "resources.txt").read_text(encoding="utf-8").splitlines():
        aliases, kind, namespace, owner, columns = line.split("|")
        cells = tuple((cell.split("=")[0].replace("~", " "), cell.split("=")[1]) for cell in columns.split())
        parts = kind.lower().split(".")
        for alias in [*aliases.split(), *(".".join(parts[:count]) for count in range(1, len(parts) + 1))]:
            found[alias] = Kind(kind, namespace, owner, cells)
    return found


def kind(name: str) -> Kind:
    low = name.lower()
    if low in _fixed()["ambiguous"]:
        raise UnknownKind("InvalidArgument", f'resource type "{name}" is ambiguous: [{_fixed()["ambiguous"][low]}]')
    if low not in _kinds():
        raise UnknownKind("NotFound", f'resource "{name}" is not registered')
    return _kinds()[low]


def kernel(machine: Machine) -> str:
    return str(_fixed()["kernels"].get(machine.contract_of_release(), "6.18.51-talos"))


def pretty(size: int) -> str:
    """A size in decimal units, with one digit below ten."""
    value, unit = float(size), "B"
    for name in ("kB", "MB", "GB", "TB", "PB"):
        if value < 1000:
            break
        value, unit = value / 1000, name
    return f"{value:.1f} {unit}" if unit != "B" and value < 10 else f"{value:.0f} {unit}"


def _stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def listed(machine: Machine, wanted: Kind) -> list[dict[str, Any]]:
    """All objects of a kind, by id."""
    result = []
    for key, spec, *rest in _MAKERS[wanted.type](machine):
        made = machine.state["booted_at"]
        metadata: dict[str, Any] = {
            "created": _stamp(made), "id": int(key) if key.isdigit() else key, "namespace": wanted.namespace, "owner": wanted.owner,
            "phase": "running", "type": wanted.type, "updated": _stamp(rest[1] if len(rest) > 1 else made),
            "version": rest[0] if rest else 1,
        }  # fmt: skip
        if wanted.type == SECRET:
            metadata["annotations"] = {"talos.dev/yaml-spec": "1"}
        result.append({"metadata": metadata, "spec": spec})
    return result


def _links(machine: Machine) -> Rows:
    fixed, rows = _fixed(), {}
    for index, link in enumerate(machine.hardware["links"], 2):
        vendor, _, product = str(link["pci_id"]).lower().partition(":")
        up = _carrier(link["name"], bool(link.get("up")))
        spec = {**fixed["link"], **fixed["up" if up else "down"], "queueDisc": "mq"}
        speed = link.get("speed_mbit", 4294967295) if up else 4294967295
        spec |= {"busPath": link["bus_path"], "driver": link["driver"], "driverVersion": kernel(machine), "speedMbit": speed,
                 "duplex": "Full" if up else "Unknown", "hardwareAddr": link["mac"], "index": index, "pciID": link["pci_id"],
                 "permanentAddr": link["mac"], "port": link["port"] if up else "Other", "product": link["product"],
                 "productID": f"0x{product}", "vendor": link["vendor"], "vendorID": f"0x{vendor}"}  # fmt: skip
        rows[link["name"]] = spec
    tail = machine.hardware["links"][0]["mac"][-5:]
    for row in fixed["virtual"]:
        if row.get("pods") and not machine.kubelet_runs():
            continue
        own = {key: value for key, value in row.items() if key not in ("name", "up", "pods")}
        address = f"02:00:5e:{row['index']:02x}:{tail}"
        rows[row["name"]] = {**fixed["link"], **fixed["up" if row.get("up") else "down"], "hardwareAddr": address, **own}
    yield from sorted(rows.items())


def _carrier(name: str, default: bool) -> bool:
    """The real state of the namespace's interface, if it is there."""
    folder = Path(f"/sys/class/net/{name}")
    try:
        return (folder / "carrier").read_text(encoding="ascii").strip() == "1"
    except OSError:  # an interface that is down has no carrier to read
        return default and not folder.exists()


def _addresses(machine: Machine) -> Rows:
    first, mac = machine.hardware["links"][0]["name"], machine.hardware["links"][0]["mac"].split(":")
    local = f"fe80::5eff:fe{mac[3]}:{int(mac[4] + mac[5], 16):x}/64"
    for link, index, address, family, scope in (
        (first, 2, f"{machine.address}/24", "inet4", "global"), (first, 2, local, "inet6", "link"),
        ("lo", 1, "127.0.0.1/8", "inet4", "host"), ("lo", 1, "::1/128", "inet6", "host"),
    ):  # fmt: skip
        flags = "permanent,noprefixroute" if address == "::1/128" else "permanent"
        yield f"{link}/{address}", {"address": address, "family": family, "flags": flags, "linkIndex": index, "linkName": link, "priority": 0,
                                    "scope": scope}  # fmt: skip


def _routes(machine: Machine) -> Rows:
    stem = ".".join(machine.address.split(".")[:3])
    base = {**_fixed()["route"], "outLinkName": machine.hardware["links"][0]["name"]}
    yield f"inet4//{stem}.0/24/1024", {**base, "dst": f"{stem}.0/24", "gateway": "", "protocol": "kernel", "scope": "link", "src": machine.address}
    yield f"inet4/{stem}.1//1024", {**base, "dst": "", "gateway": f"{stem}.1", "protocol": "dhcp", "scope": "global", "src": ""}


def _disks(machine: Machine) -> Rows:
    yield "loop0", _fixed()["loop"]
    for disk in machine.hardware["disks"]:
        name = disk["path"].removeprefix("/dev/")
        yield name, {**_fixed()["disk"], "bus_path": f"/pci0000:00/0000:00:1d.0/0000:04:00.0/{name}", "dev_path": disk["path"],
                     "model": disk.get("model", "Lab disk"), "pretty_size": pretty(disk["size"]), "serial": f"LAB{machine.name.upper()}",
                     "size": disk["size"], "transport": "nvme" if name.startswith("nvme") else "sata",
                     "wwid": f"eui.0025380000{len(name):06d}"}  # fmt: skip


def _volumes(machine: Machine) -> Rows:
    for disk in machine.hardware["disks"]:
        name, parts = disk["path"].removeprefix("/dev/"), machine.partitions(disk)
        base = {"sectorSize": 512, "ioSize": 512}
        yield name, {**base, "devPath": disk["path"], "devicePath": f"/devices/{name}", "parent": "", "parentDevPath": "", "type": "disk",
                     "size": disk["size"], "prettySize": pretty(disk["size"]), "name": "gpt" if parts else "", "label": ""}  # fmt: skip
        for number, part in enumerate(parts, 1):
            key = f"{name}{'p' if name[-1].isdigit() else ''}{number}"
            label = part.get("label") or ""
            yield key, {**base, "devPath": f"/dev/{key}", "devicePath": f"/devices/{name}/{key}", "parent": name, "parentDevPath": disk["path"],
                        "type": "partition", "size": part["size"], "prettySize": pretty(part["size"]), "name": part.get("filesystem") or "",
                        "label": label, "partitionLabel": part.get("partition_label") or label, "partitionIndex": number}  # fmt: skip


def _extensions(machine: Machine) -> Rows:
    slot, rows = machine.running(), []
    minor = re.sub(r"\.\d+(-.*)?$", ".0", slot["version"])
    for item in slot["extensions"]:
        metadata = {"author": item.get("author", "Sidero Labs"), "compatibility": {"talos": {"version": f">= {minor}"}},
                    "description": str(item.get("description", "")).strip(), "name": item["name"].split("/")[-1], "version": item["tag"]}  # fmt: skip
        rows.append((f"ghcr.io-{item['name'].replace('/', '-')}-{item['tag']}", metadata))
    rows.append(("schematic", {**_fixed()["schematic"], "extraInfo": slot["schematic_text"], "version": slot["schematic"]}))
    rows.append(("modules.dep", {**_fixed()["modules.dep"], "version": kernel(machine)}))
    for number, (image, metadata) in enumerate(rows):
        yield str(number), {"image": f"{number:03d}.{image}.sqsh", "metadata": metadata}


def _status(machine: Machine) -> Rows:
    ready, unmet = machine.readiness()
    spec = {"stage": machine.state["stage"], "status": {"ready": ready, "unmetConditions": [{"name": n, "reason": r} for n, r in unmet]}}
    yield "machine", spec, machine.state.get("stage_version", 1), machine.state.get("stage_since", machine.state["booted_at"])


def _modules(machine: Machine) -> Rows:
    loaded = machine.loaded_modules() if machine.config else []
    users = {"nvidia": ["nvidia_uvm", "nvidia_modeset"], "nvidia_modeset": ["nvidia_drm"]}
    for name in loaded:
        used = [user for user in users.get(name, []) if user in loaded]
        spec = {"address": "0x0000000000000000", "referenceCount": len(used), "size": 131072, "state": "Live"}
        yield name, {**spec, "dependencies": used} if used else spec


def _members(machine: Machine) -> Rows:
    for other in sorted(machine.members() if machine.config else [], key=lambda item: item["hostname"]):
        spec: dict[str, Any] = {"addresses": [other["address"]], "hostname": other["hostname"], "machineType": other["type"], "nodeId": other["id"],
                                "operatingSystem": f"Talos ({other['version']})"}  # fmt: skip
        yield other["hostname"], {**spec, "controlPlane": {"port": 6443}} if other["type"] == "controlplane" else spec


def _configs(machine: Machine) -> Rows:
    if machine.config is not None:
        yield "persistent", machine.state.get("staged") or machine.state["config"], machine.state["config_version"]
        yield "v1alpha1", machine.state["config"], machine.state["config_version"]


def _system_disk(machine: Machine) -> Rows:
    if machine.state["installed"]:
        path = machine.state["system_disk"]
        yield "system-disk", {"devPath": path, "diskID": path.removeprefix("/dev/")}


def _volume_status(machine: Machine) -> Rows:
    for disk in machine.hardware["disks"] if machine.state["installed"] else []:
        for number, part in enumerate(machine.partitions(disk), 1):
            if part.get("partition_label") in ("META", "STATE", "EPHEMERAL"):
                yield part["partition_label"], {"type": "partition", "phase": "ready", "location": f"{disk['path']}p{number}",
                                                "size": part["size"], "prettySize": pretty(part["size"])}  # fmt: skip


def _nodename(machine: Machine) -> Rows:
    if machine.config:
        yield "nodename", {"hostnameVersion": "1", "nodename": machine.hostname, "skipNodeRegistration": False}


def _addressed(machine: Machine) -> Rows:
    for key in ("accumulative", "current", "default", "routed"):
        yield key, {"addresses": [f"{machine.address}/24"], "sortAlgorithm": "v1"}


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
    "SecurityStates.talos.dev": lambda m: [("securitystate", _fixed()["security"])],
    "MetaKeys.runtime.talos.dev": lambda m: [],
    "Members.cluster.talos.dev": _members,
    "Nodenames.kubernetes.talos.dev": _nodename,
    "MachineTypes.config.talos.dev": lambda m: [("machine-type", m.role)] if m.config else [],
    SECRET: _configs,
}
