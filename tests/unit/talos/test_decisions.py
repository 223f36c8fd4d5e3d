# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.talos import checks, media, members, releases, schematic, upgrade
from ansible_collections.motley.inference.plugins.module_utils.talos.resources import Extensions

A, B = "a" * 64, "b" * 64


def _decide(**changes: Any) -> upgrade.Decision:
    values = {
        "running_version": "v1.13.9",
        "wanted_version": "v1.13.9",
        "running_schematic": A,
        "wanted_schematic": A,
        "serving": "",
        "allow_reboot": False,
    }
    return upgrade.decide(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "action"),
    [
        ({}, "none"),
        ({"serving": "motley/ray-head"}, "none"),
        ({"wanted_schematic": B}, "upgrade"),
        ({"wanted_version": "v1.14.1"}, "upgrade"),
        ({"wanted_version": "v1.13.8"}, "upgrade"),
        ({"running_schematic": ""}, "upgrade"),
        ({"wanted_schematic": B, "serving": "motley/ray-head", "allow_reboot": True}, "upgrade"),
    ],
    ids=["same", "same and serving", "schematic", "minor", "patch down", "no factory image", "serving and allowed"],
)
def test_decision(changes: dict[str, Any], action: str) -> None:
    assert _decide(**changes).action == action


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"wanted_schematic": B, "serving": "motley/ray-head"}, "motley_allow_reboot=true"),
        ({"running_version": "v1.12.11", "wanted_version": "v1.14.1"}, "v1.13"),
        ({"running_version": "v1.14.1", "wanted_version": "v1.13.9"}, "motley_talos_version: v1.14.1"),
    ],
    ids=["serving", "two minors", "minor down"],
)
def test_refusals(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(MotleyError) as caught:
        _decide(**changes)
    assert words in caught.value.hint


def test_a_node_that_fell_back_is_named_with_what_it_runs() -> None:
    error = upgrade.rolled_back(
        running_version="v1.13.9", wanted_version="v1.14.1", running_schematic=A, wanted_schematic=A, node="spark-01"
    )
    assert "node runs Talos v1.13.9, wanted v1.14.1" in error.message


@pytest.mark.parametrize(("powercycle", "mode"), [(True, "powercycle"), (False, "default")])
def test_upgrade_arguments(powercycle: bool, mode: str) -> None:
    arguments = upgrade.arguments("f/metal-installer/x:v1.14.1", powercycle=powercycle, timeout=60)
    assert arguments[arguments.index("--reboot-mode") + 1] == mode
    assert "--drain=false" in arguments
    assert arguments[arguments.index("--image") + 1] == "f/metal-installer/x:v1.14.1"


@pytest.mark.parametrize(
    ("version", "contract", "documents", "kubernetes"),
    [
        ("v1.12.11", "v1.12", False, "1.35.4"),
        ("v1.13.9", "v1.13", False, "1.36.3"),
        ("v1.14.1", "v1.14", True, "1.36.1"),
        ("v1.14.7", "v1.14", True, "1.36.1"),
        ("v1.12.3", "v1.12", False, "1.35.0"),
    ],
)
def test_releases(version: str, contract: str, documents: bool, kubernetes: str) -> None:
    found = releases.contract(version)
    assert (found.name, found.documents) == (contract, documents)
    assert releases.kubernetes_default(version) == kubernetes


@pytest.mark.parametrize("version", ["v1.11.5", "v1.15.0", "v2.0.0", "latest", "1.14"])
def test_releases_that_are_not_known_are_refused(version: str) -> None:
    with pytest.raises(MotleyError):
        releases.contract(version)


def test_releases_sort() -> None:
    ordered = ["v1.12.11", "v1.13.9", "v1.14.0-alpha.2", "v1.14.0-rc.1", "v1.14.0-rc.2", "v1.14.0-rc.10", "v1.14.0", "v1.14.1"]
    assert sorted(ordered, key=releases.parse) == ordered
    assert [str(releases.parse(item)) for item in ordered] == ordered


@pytest.mark.parametrize(
    ("talos", "kubernetes", "good"),
    [("v1.13.9", "1.36.3", True), ("v1.13.9", "v1.31.0", True), ("v1.13.9", "1.37.0", False), ("v1.14.1", "1.31.0", False)],
)
def test_kubernetes_has_to_go_with_talos(talos: str, kubernetes: str, good: bool) -> None:
    if good:
        assert releases.check_kubernetes(talos, kubernetes) == kubernetes.removeprefix("v")
    else:
        with pytest.raises(MotleyError, match="does not go with"):
            releases.check_kubernetes(talos, kubernetes)


@pytest.mark.parametrize(
    ("version", "driver"), [("v1.13.0", "580.126.20"), ("v1.13.3", "580.159.04"), ("v1.13.9", "580.178.04"), ("v1.14.1", "580.178.04")]
)
def test_driver_table(version: str, driver: str) -> None:
    row = releases.release(version)
    assert row and row.drivers and row.drivers.branch("lts") == driver
    assert row.source


GOOD: dict[str, Any] = {
    "wanted_version": "v1.14.1", "wanted_schematic": A, "wanted_extensions": ["siderolabs/nonfree-kmod-nvidia-lts", "siderolabs/nvidia-container-toolkit-lts"],
    "wanted_args": ["arm64.nobti"], "wanted_arch": "arm64", "driver": "580.178.04", "gpu": True, "version": "v1.14.1", "arch": "arm64",
    "extensions": Extensions({"nonfree-kmod-nvidia-lts": "580.178.04-v1.14.1", "nvidia-container-toolkit-lts": "580.178.04-v1.19.1"}, A),
    "modules": {"nvidia", "nvidia_uvm", "nvidia_drm", "nvidia_modeset", "mlx5_core"}, "cmdline": ["talos.platform=metal", "arm64.nobti"],
}  # fmt: skip


def _with(**versions: str) -> Extensions:
    return Extensions({name.replace("_", "-"): value for name, value in versions.items()}, A)


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({}, []),
        ({"version": "v1.13.9"}, ["version"]),
        ({"arch": "amd64"}, ["architecture"]),
        ({"cmdline": ["talos.platform=metal", "arm64.nobtix"]}, ["cmdline"]),
        ({"modules": {"nvidia"}}, ["modules"]),
        ({"extensions": Extensions(GOOD["extensions"].versions, B)}, ["schematic"]),
        ({"extensions": Extensions({}, A)}, ["extensions", "driver"]),
        ({"extensions": _with(nonfree_kmod_nvidia_lts="580.178.04-v1.14.1", nvidia_container_toolkit_lts="595.91.07-v1.19.1")}, ["driver"]),
        ({"extensions": _with(nonfree_kmod_nvidia_lts="580.1.1-v1", nvidia_container_toolkit_lts="580.1.1-v1")}, ["driver"]),
        (
            {"extensions": _with(nvidia_open_gpu_kernel_modules_lts="580.178.04-v1", nvidia_container_toolkit_lts="580.178.04-v1")},
            ["extensions", "driver"],
        ),
        ({"gpu": False, "modules": (), "wanted_extensions": [], "driver": ""}, []),
    ],
    ids=["good", "version", "arch", "argument", "modules", "schematic", "none", "pair", "driver", "flavour", "no accelerator"],
)
def test_image_checks(changes: dict[str, Any], failed: list[str]) -> None:
    found = checks.image_checks(**{**GOOD, **changes})
    assert [item.id for item in checks.failed(found)] == failed
    assert all(item.remedy for item in checks.failed(found))


def _kube(name: str, *, arch: str = "amd64", ready: str = "True", unschedulable: bool = False) -> dict[str, Any]:
    return {
        "metadata": {"name": name}, "spec": {"unschedulable": unschedulable},
        "status": {"nodeInfo": {"architecture": arch, "kubeletVersion": "v1.36.1"}, "conditions": [{"type": "Ready", "status": ready, "message": "cni"}]},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([_kube("x86-01"), _kube("spark-01", arch="arm64")], []),
        ([_kube("x86-01")], ["spark-01 has not joined"]),
        ([_kube("x86-01"), _kube("talos-abc-def", arch="arm64")], ["talos-abc-def"]),
        ([_kube("x86-01"), _kube("spark-01")], ["planned was arm64"]),
        ([_kube("x86-01", ready="False"), _kube("spark-01", arch="arm64")], ["not Ready: cni"]),
        ([_kube("x86-01", unschedulable=True), _kube("spark-01", arch="arm64")], ["uncordon"]),
    ],
    ids=["good", "missing", "other name", "arch", "not ready", "cordoned"],
)
def test_members(nodes: list[dict[str, Any]], words: list[str]) -> None:
    found = members.problems([members.read(item) for item in nodes], {"x86-01": "amd64", "spark-01": "arm64"})
    assert len(found) == len(words)
    assert all(word in line for word, line in zip(words, found, strict=True))


def test_media_say_what_to_do_before() -> None:
    image = schematic.for_node(["gb10"], "v1.14.1")
    found = media.medium(
        "spark-01", image, factory_url="https://f", schematic=image.id, address="10.0.0.10", disk="/dev/nvme0n1", accelerators=["gb10"]
    )
    text = media.text([found], version="v1.14.1")
    for words in (
        f"https://f/image/{image.id}/v1.14.1/metal-arm64.iso",
        "metal-arm64-secureboot.iso",
        "DGX OS",
        "firmware",
        "Secure Boot",
        "boot order",
        "motley_install_wipe",
        "USB",
    ):
        assert words in text
