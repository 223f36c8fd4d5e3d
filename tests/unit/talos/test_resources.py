# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.talos import resources

ANSWERS: dict[str, Any] = json.loads((Path(__file__).parent / "fixtures" / "answers.json").read_text())


def _stream(name: str) -> str:
    """As talosctl prints it: objects one after another."""
    return "\n".join(json.dumps(item, indent=4) for item in ANSWERS[name]) + "\n"


def test_a_stream_is_not_a_list_and_ids_are_text() -> None:
    found = resources.stream(_stream("get_extensions_json_two"))
    assert len(found) > 2
    assert all(isinstance(item["metadata"]["id"], str) for item in found)
    assert resources.stream("") == resources.stream("\n") == []
    with pytest.raises(MotleyError, match="no JSON"):
        resources.stream(_stream("maint_get_ms") + "NODE   NAMESPACE")


def test_machine_status() -> None:
    waiting = resources.machine_status(resources.stream(_stream("maint_get_ms")))
    assert waiting and (waiting.stage, waiting.ready, waiting.unmet) == ("maintenance", True, ())
    booting = resources.machine_status(resources.stream(_stream("installed_booting")))
    assert booting and (booting.stage, booting.ready) == ("booting", False)
    assert resources.machine_status([]) is None
    unmet = {
        "spec": {"stage": "running", "status": {"ready": False, "unmetConditions": [{"name": "services", "reason": "kubelet not healthy"}]}}
    }
    found = resources.machine_status([unmet])
    assert found and found.unmet == ("services: kubelet not healthy",)


def test_extensions_without_their_pseudo_entries() -> None:
    found = resources.extensions(item for item in ANSWERS["get_extensions_json_two"] if item["node"] == "127.0.0.10")
    assert set(found.versions) == {"nonfree-kmod-nvidia-lts", "nvidia-container-toolkit-lts"}
    assert found.schematic == "bc668cd34c1b046652bf89b476b33178418e343d51d4e2e3e0b5335d4e40e7ad"
    assert "arm64.nobti" in found.schematic_yaml
    assert found.driver("nonfree-kmod-nvidia-lts") == found.driver("nvidia-container-toolkit-lts") == "580.178.04"
    assert found.driver("nonfree-kmod-nvidia") == ""


def test_version_text() -> None:
    found = resources.versions(ANSWERS["version_two"])
    assert [(item.node, item.tag, item.arch) for item in found] == [("127.0.0.20", "v1.13.9", "amd64"), ("127.0.0.10", "v1.13.9", "arm64")]
    assert resources.versions(ANSWERS["maint_version_i"])[0].arch == "arm64"
    assert resources.versions(ANSWERS["version_client"]) == []
    assert resources.client_version(ANSWERS["version_client"]) == resources.client_version(ANSWERS["version_client_short"]) == "v1.13.9"
    assert resources.client_version("nothing") == ""


def test_command_line_and_modules() -> None:
    spark = [item for item in ANSWERS["get_cmdline_json_two"] if item["node"] == "127.0.0.10"]
    assert "arm64.nobti" in resources.cmdline(spark)
    assert resources.cmdline([]) == []
    modules = resources.modules(ANSWERS["get_modules_json_two"])
    assert {"nvidia", "nvidia_uvm", "nvidia_drm", "nvidia_modeset"} <= modules
    assert resources.modules([{"metadata": {"id": "nvidia"}, "spec": {"state": "Loading"}}]) == set()


def test_disks_and_the_system_disk() -> None:
    assert resources.system_disk(ANSWERS["get_systemdisk_json_two"]) == "/dev/nvme0n1"
    assert resources.system_disk(ANSWERS["maint_get_systemdisk"]) == ""
    found = resources.disks(ANSWERS["maint_get_disks_json"])
    assert [item.path for item in found] == ["/dev/nvme0n1"]
    assert "4.0 TB" in found[0].text


def _volume(identifier: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"id": identifier}, "spec": {"devPath": f"/dev/{identifier}", **spec}}


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        ([_volume("nvme0n1", type="disk", name="", size=4_000_000_000_000)], []),
        ([_volume("nvme0n1", type="disk", name="gpt", size=4_000_000_000_000)], []),
        ([_volume("nvme0n1", type="disk", name="ext4", size=1_000_000_000, label="data")], ["/dev/nvme0n1 1.0 GB ext4 (data)"]),
        (
            [
                _volume("nvme0n1p2", type="partition", parentDevPath="/dev/nvme0n1", name="ext4", size=3_999_000_000_000, partitionIndex=2),
                _volume(
                    "nvme0n1p1", type="partition", parent="nvme0n1", name="vfat", size=536_870_912, partitionLabel="EFI", partitionIndex=1
                ),
                _volume("sda1", type="partition", parentDevPath="/dev/sda", name="ext4", size=1),
            ],
            ["/dev/nvme0n1p1 537 MB vfat (EFI)", "/dev/nvme0n1p2 4.0 TB ext4"],
        ),
    ],
    ids=["empty", "only a table", "a file system over all", "partitions"],
)
def test_what_is_on_a_disk(objects: list[dict[str, Any]], expected: list[str]) -> None:
    assert resources.volumes_on(objects, "/dev/nvme0n1") == expected


def test_the_link_of_an_address() -> None:
    objects = [{"spec": {"address": "10.0.0.1/24", "linkName": "lo1"}}, {"spec": {"address": "10.0.0.10/24", "linkName": "enP7s7"}}]
    assert resources.interface_of(objects, "10.0.0.10") == "enP7s7"
    assert resources.interface_of(objects, "10.0.0.11") == ""
