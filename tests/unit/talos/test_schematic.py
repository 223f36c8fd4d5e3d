# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.talos import drivers, schematic, yaml_text

VECTORS = json.loads((Path(__file__).parent / "fixtures" / "schematics.json").read_text())
SPARK = "bc668cd34c1b046652bf89b476b33178418e343d51d4e2e3e0b5335d4e40e7ad"
X86_OPEN = "40b13a8d4f3202c7d7c95f0cc0fa5cecea2d480ea9f1f1dd3122395cd68f6e9d"


@pytest.mark.parametrize("vector", [item for item in VECTORS if "id" in item], ids=lambda item: item["name"])
def test_text_and_id_equal_the_factorys(vector: dict[str, Any]) -> None:
    document = next(iter(yaml.safe_load_all(vector["input"]))) or {}
    assert schematic.canonical(document) == vector["canonical"]
    assert schematic.identifier(document) == vector["id"]


@pytest.mark.parametrize("vector", [item for item in VECTORS if "error" in item], ids=lambda item: item["name"])
def test_what_the_factory_refuses_is_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(MotleyError):
        schematic.canonical(yaml.safe_load(vector["input"]))


@pytest.mark.parametrize(
    ("document", "certain"),
    [
        ({"customization": {"extraKernelArgs": ["arm64.nobti", "pci=pcie_bus_safe"]}}, True),
        ({"customization": {"systemExtensions": {"officialExtensions": ["siderolabs/gvisor"]}}}, True),
        ({"customization": {"extraKernelArgs": ['foo="bar baz"']}}, False),
        ({"customization": {"extraKernelArgs": ["12"]}}, False),
        ({"customization": {"extraKernelArgs": ["on"]}}, False),
        ({"customization": {"meta": [{"key": 10, "value": "x"}]}}, False),
        ({"overlay": {"name": "rpi_generic"}, "customization": {}}, False),
    ],
)
def test_only_plain_schematics_are_certain(document: dict[str, Any], certain: bool) -> None:
    assert schematic.is_certain(document) is certain


@pytest.mark.parametrize(
    ("accelerators", "version", "expected"),
    [
        (["gb10"], "v1.14.1", SPARK),
        (["rtx4090", "rtx4090"], "v1.14.1", X86_OPEN),
        (["rtx5090"], "v1.13.9", X86_OPEN),
        (["v100-32"], "v1.13.9", "af8eb82417d3deaa94d2ef19c3b590b0dac1b2549d0b9b35b3da2bc325de75f7"),
        ([], "v1.14.1", "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"),
    ],
    ids=["spark", "ada", "blackwell", "volta", "no accelerator"],
)
def test_a_node_gets_the_image_of_its_accelerators(accelerators: list[str], version: str, expected: str) -> None:
    assert schematic.for_node(accelerators, version).id == expected


def test_the_operators_arguments_and_extensions_come_after_the_drivers() -> None:
    image = schematic.for_node(["gb10"], "v1.14.1", kernel_args=["pci=pcie_bus_safe", "arm64.nobti"], extensions=["iscsi-tools"])
    assert image.kernel_args == ("arm64.nobti", "pci=pcie_bus_safe")
    assert image.extensions == (
        "siderolabs/nonfree-kmod-nvidia-lts",
        "siderolabs/nvidia-container-toolkit-lts",
        "siderolabs/iscsi-tools",
    )


@pytest.mark.parametrize("version", ["v1.12.11"])
def test_the_argument_is_left_out_where_the_kernel_has_no_bti(version: str) -> None:
    assert schematic.for_node(["gb10"], version, accepted=["gb10-sva"]).kernel_args == ()


@pytest.mark.parametrize(
    "name", ["nonfree-kmod-nvidia", "siderolabs/nvidia-open-gpu-kernel-modules", "siderolabs/nvidia-container-toolkit"]
)
def test_plain_names_are_refused_with_the_full_name(name: str) -> None:
    with pytest.raises(MotleyError) as caught:
        schematic.check_extensions([name])
    assert f"siderolabs/{name.removeprefix('siderolabs/')}-lts" in caught.value.hint


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["nonfree-kmod-nvidia-lts", "nvidia-open-gpu-kernel-modules-lts"], "one NVIDIA kernel module flavour"),
        (["nonfree-kmod-nvidia-lts", "nvidia-container-toolkit-production"], "different branches"),
    ],
)
def test_pairs_that_do_not_fit_are_refused(names: list[str], words: str) -> None:
    with pytest.raises(MotleyError, match=words):
        schematic.check_extensions(names)


@pytest.mark.parametrize(
    ("accelerators", "version", "options", "words"),
    [
        (["gb10"], "v1.13.9", {}, "gb10-sva"),
        (["gb10"], "v1.14.0", {}, "gb10-sva"),
        (["gb10"], "v1.14.1", {"flavour": "open"}, "gb10-open-stall"),
        (["gb10"], "v1.12.11", {"branch": "production", "accepted": ["gb10-sva"]}, "gb10-570"),
        (["v100-16"], "v1.13.9", {"branch": "production"}, "volta-595"),
        (["rtx5090"], "v1.14.1", {"flavour": "nonfree"}, "use open"),
        (["v100-16"], "v1.14.1", {"flavour": "open"}, "use nonfree"),
        (["rtx5090", "v100-16"], "v1.14.1", {}, "different nodes"),
        (["gb10", "rtx4090"], "v1.14.1", {"flavour": "nonfree"}, "one architecture"),
        (["gb10"], "v1.14.1", {"arch": "amd64"}, "motley_accelerators"),
        (["jetson-thor"], "v1.14.1", {}, "motley_platform"),
        (["unheard-of"], "v1.14.1", {}, "known are"),
    ],
)
def test_known_bad_combinations_are_refused(accelerators: list[str], version: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(MotleyError) as caught:
        schematic.for_node(accelerators, version, **options)
    assert words in caught.value.text()


def test_a_broken_combination_can_be_accepted_by_its_id() -> None:
    image = schematic.for_node(["gb10"], "v1.13.9", accepted=["gb10-sva"])
    assert image.id == SPARK
    assert any("cuInit" in text for text in image.warnings)


def test_references_follow_from_factory_and_schematic() -> None:
    image = schematic.for_node(["gb10"], "v1.14.1")
    assert image.installer("https://factory.talos.dev") == f"factory.talos.dev/metal-installer/{SPARK}:v1.14.1"
    assert image.installer("http://10.0.0.1:8080/") == f"10.0.0.1:8080/metal-installer/{SPARK}:v1.14.1"
    assert image.iso("https://factory.talos.dev") == f"https://factory.talos.dev/image/{SPARK}/v1.14.1/metal-arm64.iso"
    secure = schematic.for_node(["rtx4090"], "v1.14.1", secureboot=True)
    assert "/metal-installer-secureboot/" in secure.installer("https://factory.talos.dev")
    assert secure.iso("https://factory.talos.dev").endswith("/metal-amd64-secureboot.iso")
    assert secure.id == X86_OPEN


def _offer(kmod: str = "580.178.04-v1.14.1", toolkit: str = "580.178.04-v1.19.1") -> list[dict[str, str]]:
    return [
        {"name": "siderolabs/nonfree-kmod-nvidia-lts", "ref": f"ghcr.io/siderolabs/nonfree-kmod-nvidia-lts:{kmod}"},
        {"name": "siderolabs/nvidia-container-toolkit-lts", "ref": f"ghcr.io/siderolabs/nvidia-container-toolkit-lts:{toolkit}"},
    ]


def test_names_are_compared_with_the_factorys_list() -> None:
    image = schematic.for_node(["gb10"], "v1.14.1")
    assert schematic.check_offered(image, _offer())["siderolabs/nonfree-kmod-nvidia-lts"] == "580.178.04-v1.14.1"
    with pytest.raises(MotleyError, match="is not available for Talos v1.14.1"):
        schematic.check_offered(image, _offer()[:1])
    with pytest.raises(MotleyError, match="pairs kernel modules 595"):
        schematic.check_offered(image, _offer(kmod="595.91.07-v1.14.1"))


def test_only_gb10_is_power_cycled() -> None:
    spark, box = drivers.driver(["gb10"], "v1.14.1"), drivers.driver(["rtx4090"], "v1.14.1")
    assert spark and box
    assert (spark.powercycle, box.powercycle) == (True, False)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"auto": "off"}, "auto: 'off'\n"),
        ({"a": {"b": [1, True, None, "1"]}}, 'a:\n    b:\n        - 1\n        - true\n        - null\n        - "1"\n'),
        ({"a": [{"b": "x", "c": []}]}, "a:\n    - b: x\n      c: []\n"),
        ({"a": "x\ny\n"}, "a: |\n    x\n    y\n"),
    ],
)
def test_yaml_text(value: Any, text: str) -> None:
    assert yaml_text.dump(value) == text
    assert yaml.safe_load(text) == value
