# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes: where a hostPath lies, what the read-only root refuses, the layout of ConfigMaps, mount arguments."""

from __future__ import annotations

import asyncio
import base64
import pathlib
from typing import Any

import pytest
from motley_lab.kubelet.volumes import DEFAULT_SHM, MountError, RuntimeRefusal, Volume, Volumes, arguments, host_path, node_path, write_files


@pytest.mark.parametrize(("path", "wanted"), [
    ("/var/lib/hf-cache", "VAR/lib/hf-cache"), ("/var", "VAR"), ("/var/../srv", None), ("/srv/x", None), ("/variable", None), ("/sys/class", "/sys/class"),
    ("/opt", None),
])
def test_node_path(tmp_path: pathlib.Path, path: str, wanted: str | None) -> None:
    found = node_path(tmp_path, path)
    assert (None if found is None else str(found)) == (wanted.replace("VAR", str(tmp_path)) if wanted else None)


@pytest.mark.parametrize("kind", ["", "DirectoryOrCreate"])
def test_outside_var_the_runtime_refuses(tmp_path: pathlib.Path, kind: str) -> None:
    volume = host_path("v", {"path": "/srv/hf-cache", "type": kind}, tmp_path)
    assert volume.refusal == 'failed to generate container spec: failed to mkdir "/srv/hf-cache": mkdir /srv: read-only file system'
    with pytest.raises(RuntimeRefusal, match="read-only file system"):
        arguments({"volumeMounts": [{"name": "v", "mountPath": "/x"}]}, {"v": volume})


def test_inside_var_a_folder_is_made_or_missed(tmp_path: pathlib.Path) -> None:
    assert host_path("v", {"path": "/var/lib/a", "type": "DirectoryOrCreate"}, tmp_path).path == tmp_path / "lib/a"
    assert (tmp_path / "lib/a").is_dir()
    with pytest.raises(MountError) as caught:
        host_path("v", {"path": "/var/lib/b", "type": "Directory"}, tmp_path)
    assert str(caught.value) == 'MountVolume.SetUp failed for volume "v" : hostPath type check failed: /var/lib/b is not a directory'


def test_layout_of_written_files(tmp_path: pathlib.Path) -> None:
    write_files(tmp_path, {"a.txt": (b"one", 0o644), "sub/b": (b"two", 0o400)})
    assert (tmp_path / "..data").is_symlink() and (tmp_path / "a.txt").readlink() == pathlib.Path("..data/a.txt")
    assert (tmp_path / "sub/b").read_bytes() == b"two" and (tmp_path / "sub/b").stat().st_mode & 0o777 == 0o400


def make(volumes: list[dict[str, Any]], tmp_path: pathlib.Path) -> dict[str, Volume]:
    objects = {("ConfigMap", "c"): {"kind": "ConfigMap", "data": {"k": "v", "other": "w"}},
               ("Secret", "s"): {"kind": "Secret", "data": {"t": base64.b64encode(b"x").decode()}}}

    async def fetch(kind: str, name: str) -> dict[str, Any] | None:
        return objects.get((kind, name))

    pod = {"metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"a": "1"}}, "spec": {"nodeName": "x", "containers": [], "volumes": volumes}}
    return asyncio.run(Volumes(pod, tmp_path, var=tmp_path / "var", fetch=fetch, host_ip="", pod_ip="", allocatable={"memory": "1Gi"}).make())


def test_kinds_of_volumes(tmp_path: pathlib.Path) -> None:
    made = make([
        {"name": "c", "configMap": {"name": "c", "items": [{"key": "k", "path": "deep/k"}]}}, {"name": "s", "secret": {"secretName": "s", "defaultMode": 0o400}},
        {"name": "none", "secret": {"secretName": "absent", "optional": True}}, {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
        {"name": "all", "projected": {"sources": [{"secret": {"name": "s"}}, {"downwardAPI": {"items": [
            {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}}]}},
    ], tmp_path)

    def listing(name: str) -> set[str]:
        folder = made[name].path
        assert folder is not None
        return {entry.name for entry in folder.iterdir() if not entry.name.startswith("..")}

    assert {name: listing(name) for name in ("c", "s", "none", "all")} == {"c": {"deep"}, "s": {"t"}, "none": set(), "all": {"t", "name"}}
    assert made["shm"].size == 64 * 2**20 and made["c"].read_only


@pytest.mark.parametrize(("volume", "message"), [
    ({"configMap": {"name": "absent"}}, 'MountVolume.SetUp failed for volume "v" : configmap "absent" not found'),
    ({"configMap": {"name": "c", "items": [{"key": "z", "path": "z"}]}}, 'MountVolume.SetUp failed for volume "v" : references non-existent config key: z'),
    ({"nfs": {"server": "x"}}, 'MountVolume.SetUp failed for volume "v" : volume type nfs is not supported by the lab\'s kubelet'),
])
def test_what_cannot_be_mounted(tmp_path: pathlib.Path, volume: dict[str, Any], message: str) -> None:
    with pytest.raises(MountError) as caught:
        make([{"name": "v", **volume}], tmp_path)
    assert str(caught.value) == message


def test_mount_arguments(tmp_path: pathlib.Path) -> None:
    volumes = {"shm": Volume(tmp_path, size=100), "d": Volume(tmp_path), "c": Volume(tmp_path, read_only=True)}
    made = arguments({"name": "x", "volumeMounts": [
        {"name": "d", "mountPath": "/a/b/c", "subPath": "new"}, {"name": "c", "mountPath": "/a"}, {"name": "d", "mountPath": "/r/o", "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"}]}, volumes)  # fmt: skip
    assert made == ["--ro-bind", str(tmp_path), "/a", "--ro-bind", str(tmp_path), "/r/o", "--size", "100", "--tmpfs", "/dev/shm",
                    "--bind", str(tmp_path / "new"), "/a/b/c"]
    assert (tmp_path / "new").is_dir()
    assert arguments({"name": "x"}, {}) == ["--size", str(DEFAULT_SHM), "--tmpfs", "/dev/shm"]
