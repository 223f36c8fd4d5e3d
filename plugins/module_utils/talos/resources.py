# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Readers for what talosctl prints: streams of JSON objects, the version text, disks and extensions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.talos.drivers import driver_version

# Entries of the extension list that are no extensions.
_PSEUDO = ("schematic", "modules.dep")
RUNNING_STAGES = ("booting", "running")


def stream(text: str) -> list[dict[str, Any]]:
    """Objects of `get -o json`: one after another, no list, no separators; ids are made text."""
    decoder = json.JSONDecoder()
    objects: list[dict[str, Any]] = []
    at = 0
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        if at >= len(text):
            return objects
        try:
            item, at = decoder.raw_decode(text, at)
        except ValueError as error:
            raise MotleyError(f"talosctl printed no JSON: {text[at : at + 80]!r}", hint="check motley_talosctl and its version") from error
        if isinstance(item, dict):
            metadata = item.get("metadata")
            if isinstance(metadata, dict) and "id" in metadata:
                metadata["id"] = str(metadata["id"])
            objects.append(item)


def ids(objects: Iterable[Mapping[str, Any]]) -> set[str]:
    """Ids of the objects."""
    return {str(item.get("metadata", {}).get("id", "")) for item in objects}


def _spec(item: Mapping[str, Any]) -> Mapping[str, Any]:
    spec = item.get("spec")
    return spec if isinstance(spec, Mapping) else {}


@dataclass(frozen=True)
class MachineStatus:
    """Machine stage of a node, and what it still waits for. boot tells two boots apart."""

    stage: str
    ready: bool
    unmet: tuple[str, ...] = ()
    boot: str = ""


def machine_status(objects: Iterable[Mapping[str, Any]]) -> MachineStatus | None:
    """The one machinestatus object; None when there is none yet."""
    for item in objects:
        spec = _spec(item)
        status = spec.get("status") or {}
        unmet = tuple(f"{entry.get('name', '')}: {entry.get('reason', '')}" for entry in status.get("unmetConditions") or ())
        return MachineStatus(
            str(spec.get("stage", "unknown")), bool(status.get("ready")), unmet, str(item.get("metadata", {}).get("created", ""))
        )
    return None


@dataclass(frozen=True)
class Extensions:
    """Extensions of the running image: version by name, and the schematic it was built from (empty without one)."""

    versions: dict[str, str]
    schematic: str = ""
    schematic_yaml: str = ""

    def driver(self, name: str) -> str:
        """Driver version of an NVIDIA extension; empty when it is not there."""
        return driver_version(self.versions[name]) if name in self.versions else ""


def extensions(objects: Iterable[Mapping[str, Any]]) -> Extensions:
    """Extension list of a node, without its pseudo entries."""
    versions: dict[str, str] = {}
    schematic, text = "", ""
    for item in objects:
        metadata = _spec(item).get("metadata") or {}
        name = str(metadata.get("name", ""))
        if name == "schematic":
            schematic, text = str(metadata.get("version", "")), str(metadata.get("extraInfo", ""))
        if name and name not in _PSEUDO:
            versions[name] = str(metadata.get("version", ""))
    return Extensions(versions, schematic, text)


@dataclass(frozen=True)
class ServerVersion:
    """Talos release and architecture of one node."""

    node: str
    tag: str
    arch: str


def versions(text: str) -> list[ServerVersion]:
    """Server blocks of `talosctl version`."""
    found: list[ServerVersion] = []
    node, tag, server = "", "", False
    for line in text.splitlines():
        key, _colon, value = line.strip().partition(":")
        value = value.strip()
        match key:
            case "Server":
                server = True
            case "NODE" if server:
                node, tag = value, ""
            case "Tag" if server:
                tag = value
            case "OS/Arch" if server:
                found.append(ServerVersion(node, tag, value.partition("/")[2]))
    return found


def client_version(text: str) -> str:
    """Release of talosctl itself out of `version --client --short` or the long form; empty when it is not there."""
    found = re.search(r"(?:Tag:\s*|Talos\s+|Client\s+)(v\d+\.\d+\.\d+\S*)", text)
    return found[1] if found else ""


def cmdline(objects: Iterable[Mapping[str, Any]]) -> list[str]:
    """Arguments of the running kernel."""
    for item in objects:
        return str(_spec(item).get("cmdline", "")).split()
    return []


def modules(objects: Iterable[Mapping[str, Any]]) -> set[str]:
    """Names of kernel modules that are loaded and live."""
    return {str(item["metadata"]["id"]) for item in objects if str(_spec(item).get("state", "Live")) == "Live"}


def system_disk(objects: Iterable[Mapping[str, Any]]) -> str:
    """Device that Talos is installed on; empty before the installation."""
    for item in objects:
        return str(_spec(item).get("devPath", ""))
    return ""


@dataclass(frozen=True)
class Disk:
    """A disk that Talos could be installed on."""

    path: str
    size: int
    text: str
    links: tuple[str, ...] = ()


def disks(objects: Iterable[Mapping[str, Any]]) -> list[Disk]:
    """Writable disks of a node; loop devices, CD drives and read-only media are left out."""
    found = []
    for item in objects:
        spec = _spec(item)
        path = str(spec.get("dev_path", ""))
        if not path or spec.get("readonly") or spec.get("cdrom") or path.startswith(("/dev/loop", "/dev/zram")):
            continue
        words = [str(spec.get("pretty_size", "")), str(spec.get("model", "")), str(spec.get("transport", ""))]
        found.append(
            Disk(
                path,
                int(spec.get("size") or 0),
                " ".join(word for word in words if word),
                tuple(str(link) for link in spec.get("symlinks") or ()),
            )
        )
    return found


def volumes_on(objects: Iterable[Mapping[str, Any]], disk: str) -> list[str]:
    """What is on a disk, a line each: its partitions, or the file system that fills it."""
    whole: list[str] = []
    parts: list[tuple[int, str]] = []
    for item in objects:
        spec = _spec(item)
        path = str(spec.get("devPath") or f"/dev/{item.get('metadata', {}).get('id', '')}")
        parent = str(spec.get("parentDevPath") or (f"/dev/{spec['parent']}" if spec.get("parent") else ""))
        kind, name = str(spec.get("type", "")), str(spec.get("name", ""))
        label = str(spec.get("partitionLabel") or spec.get("label") or "")
        words = " ".join(word for word in (path, pretty(int(spec.get("size") or 0)), name, f"({label})" if label else "") if word)
        if kind == "partition" and parent == disk:
            parts.append((int(spec.get("partitionIndex") or 0), words))
        elif path == disk and name and name != "gpt":
            whole.append(words)
    return whole + [words for _index, words in sorted(parts)]


def pretty(size: int) -> str:
    """Decimal size as a person reads it."""
    value, unit = float(size), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit in ("B", "kB", "MB") else f"{value:.1f} {unit}"


def interface_of(objects: Iterable[Mapping[str, Any]], address: str) -> str:
    """Link that owns an address, out of `get addresses`; empty when none does."""
    for item in objects:
        spec = _spec(item)
        if str(spec.get("address", "")).partition("/")[0] == address:
            return str(spec.get("linkName", ""))
    return ""


def prefix_of(objects: Iterable[Mapping[str, Any]], address: str) -> str:
    """The address with its prefix length, as the node has it; empty when none does."""
    for item in objects:
        full = str(_spec(item).get("address", ""))
        if full.partition("/")[0] == address:
            return full
    return ""
