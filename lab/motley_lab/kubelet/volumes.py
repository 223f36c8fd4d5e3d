# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Pod's volumes: where each lies on this machine, and the bubblewrap arguments that mount them into a container."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import secrets
import typing

from .environment import Fetch, content, field, quantity, resource

JSON = dict[str, typing.Any]
DEFAULT_SHM = 64 * 2**20
# What a Talos node has outside /var that a container may want to see; its root is read-only, so nothing else can be made.
_SYSTEM = ("/sys", "/proc", "/dev", "/etc", "/lib/modules", "/usr", "/run")


class MountError(Exception):
    """The message of a FailedMount event, after `MountVolume.SetUp failed for volume "x" : `."""

    def __init__(self, volume: str, message: str) -> None:
        super().__init__(f'MountVolume.SetUp failed for volume "{volume}" : {message}')


class RuntimeRefusal(Exception):
    """The container runtime refuses to make the container (CreateContainerError)."""


@dataclasses.dataclass(frozen=True)
class Volume:
    path: pathlib.Path | None  # None: a tmpfs of `size` bytes
    size: int = 0
    read_only: bool = False
    refusal: str = ""


def node_path(var: pathlib.Path, path: str) -> pathlib.Path | None:
    """Where a path of the node lies on this machine; None outside what the node has."""
    clean = os.path.normpath(path)
    if clean == "/var" or clean.startswith("/var/"):
        return var / clean.removeprefix("/var").lstrip("/")
    return pathlib.Path(clean) if any(clean == base or clean.startswith(base + "/") for base in _SYSTEM) else None


def host_path(name: str, source: JSON, var: pathlib.Path) -> Volume:
    wanted, kind = os.path.normpath(source["path"]), source.get("type") or ""
    place = node_path(var, wanted)
    inside_var = wanted == "/var" or wanted.startswith("/var/")
    if place is None or not (place.exists() or (inside_var and kind in ("", "DirectoryOrCreate", "FileOrCreate"))):
        if kind in ("", "DirectoryOrCreate"):
            top = "/" + wanted.split("/")[1]
            return Volume(None, refusal=f'failed to generate container spec: failed to mkdir "{wanted}": mkdir {top}: read-only file system')
        what = {"Directory": "a directory", "File": "a file", "Socket": "a socket file", "CharDevice": "a character device",
                "BlockDevice": "a block device", "FileOrCreate": "a file"}[kind]
        raise MountError(name, f"hostPath type check failed: {wanted} is not {what}")
    if not place.exists():
        if kind == "FileOrCreate":
            place.touch()
        else:
            place.mkdir(parents=True)
    if kind in ("Directory", "DirectoryOrCreate") and not place.is_dir():
        raise MountError(name, f"hostPath type check failed: {wanted} is not a directory")
    if kind in ("File", "FileOrCreate") and not place.is_file():
        raise MountError(name, f"hostPath type check failed: {wanted} is not a file")
    return Volume(place, read_only=not inside_var)


def write_files(folder: pathlib.Path, files: dict[str, tuple[bytes, int]]) -> None:
    """The kubelet's layout: a dated folder, `..data` that points at it, and a link per name."""
    folder.mkdir(parents=True, exist_ok=True)
    dated = folder / f"..motley_{secrets.token_hex(5)}"
    for name, (data, mode) in files.items():
        path = dated / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(mode)
    dated.mkdir(exist_ok=True)
    for link, target in {"..data": dated.name, **{name.split("/")[0]: f"..data/{name.split('/')[0]}" for name in files}}.items():
        fresh = folder / f"{link}.new"
        fresh.symlink_to(target)
        fresh.replace(folder / link)


class Volumes:
    """Makes the volumes of one Pod below its folder."""

    def __init__(self, pod: JSON, folder: pathlib.Path, *, var: pathlib.Path, fetch: Fetch, host_ip: str, pod_ip: str, allocatable: JSON) -> None:
        self._pod, self._folder, self._var, self._fetch = pod, folder, var, fetch
        self._host_ip, self._pod_ip, self._allocatable = host_ip, pod_ip, allocatable

    async def make(self) -> dict[str, Volume]:
        return {entry["name"]: await self._one(entry) for entry in self._pod["spec"].get("volumes") or []}

    async def _one(self, entry: JSON) -> Volume:
        name = entry["name"]
        folder = self._folder / "volumes" / name
        if "hostPath" in entry:
            return host_path(name, entry["hostPath"], self._var)
        if "emptyDir" in entry:
            source = entry["emptyDir"] or {}
            size = int(quantity(source.get("sizeLimit") or self._allocatable.get("memory", "1Gi")))
            folder.mkdir(parents=True, exist_ok=True)
            return Volume(folder, size=size if source.get("medium") == "Memory" else 0)
        for kind in ("configMap", "secret", "downwardAPI", "projected"):
            if kind in entry:
                sources: list[JSON] = entry[kind]["sources"] if kind == "projected" else [{kind: entry[kind]}]
                mode, files = entry[kind].get("defaultMode", 0o644), dict[str, tuple[bytes, int]]()
                for source in sources:
                    files |= await self._files(name, source, mode)
                write_files(folder, files)
                return Volume(folder, read_only=True)
        raise MountError(name, f"volume type {', '.join(key for key in entry if key != 'name')} is not supported by the lab's kubelet")

    async def _files(self, volume: str, source: JSON, mode: int) -> dict[str, tuple[bytes, int]]:
        (kind, spec), *_ = source.items()
        if kind == "serviceAccountToken":
            return {spec["path"]: (b"a token of the lab opens nothing\n", mode)}
        if kind == "downwardAPI":
            return {item["path"]: (self._downward(item).encode(), item.get("mode") or mode) for item in spec.get("items") or []}
        name, word = spec.get("secretName") or spec.get("name"), {"configMap": "ConfigMap", "secret": "Secret"}[kind]
        found = await self._fetch(word, name)
        if found is None:
            if spec.get("optional"):
                return {}
            raise MountError(volume, f'{word.lower()} "{name}" not found')
        data = content(found)
        if not spec.get("items"):
            return {key: (value, mode) for key, value in data.items()}
        missing = [item["key"] for item in spec["items"] if item["key"] not in data]
        if missing and not spec.get("optional"):
            raise MountError(volume, "references non-existent {} key: {}".format("config" if kind == "configMap" else "secret", missing[0]))
        return {item["path"]: (data[item["key"]], item.get("mode") or mode) for item in spec["items"] if item["key"] in data}

    def _downward(self, item: JSON) -> str:
        if "resourceFieldRef" in item:
            reference = item["resourceFieldRef"]
            container = next(c for c in self._pod["spec"]["containers"] if c["name"] == reference.get("containerName"))
            return resource(container, reference, self._allocatable)
        return field(self._pod, item["fieldRef"]["fieldPath"], host_ip=self._host_ip, pod_ip=self._pod_ip)


def arguments(container: JSON, volumes: dict[str, Volume]) -> list[str]:
    """Mounts in the order of their depth; a memory volume is a tmpfs of its size, `/dev/shm` has 64 MiB without one."""
    made, paths = [], set()
    for mount in sorted(container.get("volumeMounts") or [], key=lambda mount: os.path.normpath(mount["mountPath"]).count("/")):
        volume, target = volumes[mount["name"]], os.path.normpath(mount["mountPath"])
        paths.add(target)
        if volume.refusal or volume.path is None:
            raise RuntimeRefusal(volume.refusal)
        if volume.size and target == "/dev/shm":
            made += ["--size", str(volume.size), "--tmpfs", target]
            continue
        source = volume.path
        if mount.get("subPath"):
            source = source / mount["subPath"]
            if not source.exists():
                if volume.read_only:
                    raise RuntimeRefusal(f'failed to prepare subPath for volumeMount "{mount["name"]}" of container "{container["name"]}"')
                source.mkdir(parents=True)
        made += ["--ro-bind" if volume.read_only or mount.get("readOnly") else "--bind", str(source), target]
    return made if "/dev/shm" in paths else ["--size", str(DEFAULT_SHM), "--tmpfs", "/dev/shm", *made]
