# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From inventory, plan and facts to what each node's Pod needs."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.serving import layout

from . import builders
from .builders import cluster, node, places, plan, worker


def test_the_engine_node_comes_first_and_each_node_gets_its_own() -> None:
    found = places()
    assert (found.head.name, [m.name for m in found.workers], found.world_size, found.plan) == ("x86-01", ["spark-01"], 3, "0123456789ab")
    spark = found.workers[0]
    assert (found.head.gpus, found.head.limit, found.head.unified, found.head.arch) == (2, 2, False, "amd64")
    assert (spark.gpus, spark.unified, spark.arch, spark.pod) == (1, True, "arm64", "ray-worker-spark-01")
    assert found.head.env["NCCL_SOCKET_IFNAME"] == "=enp3s0"
    assert (spark.env["NCCL_SOCKET_IFNAME"], spark.env["GLOO_SOCKET_IFNAME"], spark.env["VLLM_HOST_IP"]) == ("=enP7s7", "enP7s7", "10.0.0.10")
    assert found.pod_of("x86-01") == "ray-head"
    assert found.head.budget_gib == (21.6, 21.6)


def test_with_the_engine_on_the_spark_the_spark_is_the_head() -> None:
    made = plan(worker(0, "spark-01", 0, "gb10"), worker(1, "x86-01", 0, "rtx4090"))
    found = places(plan=made)
    assert found.head.name == "spark-01"
    assert found.workers[0].gpus == found.workers[0].limit == 1, "an unused card stays free for others"
    assert found.workers[0].visible is None


@pytest.mark.parametrize(
    ("accelerators", "used", "limit", "visible"),
    [
        (["rtx4090", "rtx4090"], [0, 1], 2, None),
        (["rtx4090", "rtx4090"], [1], 1, None),
        (["rtx4090", "rtx5090"], [1], 2, "1"),
        (["rtx4090", "rtx5090"], [0, 1], 2, None),
        (["rtx4090", "rtx5090", "rtx5090"], [0, 2], 3, "0,2"),
    ],
)
def test_equal_cards_are_interchangeable_and_unequal_ones_are_not(accelerators: list[str], used: list[int], limit: int, visible: str | None) -> None:
    inventory = cluster(nodes=[node("x86-01", "10.0.0.20", accelerators)])
    made = plan(*[worker(i, "x86-01", d, accelerators[d]) for i, d in enumerate(used)])
    head = places(cluster=inventory, plan=made).head
    assert (head.gpus, head.limit, head.visible) == (len(used), limit, visible)


def test_cards_of_different_memory_are_unequal() -> None:
    nodes = [node("x86-01", "10.0.0.20", ["rtx4090", "rtx4090"])]
    nodes[0]["devices"][1]["memory_gib"] = 20
    head = places(cluster=cluster(nodes=nodes), plan=plan(worker(0, "x86-01", 1, "rtx4090"))).head
    assert (head.limit, head.visible) == (2, "1")


def test_a_node_without_stages_has_no_pod() -> None:
    assert places(plan=plan(worker(0, "spark-01", 0, "gb10"))).workers == ()


def test_without_an_interface_there_is_no_layout_but_in_check_mode() -> None:
    with pytest.raises(MotleyError, match="network interface of x86-01 is not known") as caught:
        places(facts={})
    assert "--tags nccl_interface" in caught.value.hint
    assert places(facts={}, check_mode=True).head.env["GLOO_SOCKET_IFNAME"] == layout.AT_RUN_TIME


def test_the_plan_of_another_inventory_is_refused() -> None:
    with pytest.raises(MotleyError, match="uses gone-01, which is no node"):
        places(plan=plan(worker(0, "gone-01", 0, "rtx4090")))
    with pytest.raises(MotleyError, match="nothing fits"):
        places(plan={"feasible": False, "stages": []})


@pytest.mark.parametrize("name", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "VLLM_HOST_IP", "VLLM_PP_LAYER_PARTITION", "HF_TOKEN", "VLLM_API_KEY"])
def test_what_motley_finds_out_may_not_be_set_by_hand(name: str) -> None:
    inventory = cluster()
    inventory["nodes"][0]["nccl_env"] = {name: "x"}
    with pytest.raises(MotleyError, match=f"motley_nccl_env sets {name}"):
        places(cluster=inventory)
    inventory = cluster()
    inventory["engine"]["env"] = {name: "x"}
    with pytest.raises(MotleyError, match=f"motley_engine_env sets {name}"):
        places(cluster=inventory)


def test_variables_of_the_node_reach_it() -> None:
    inventory = cluster()
    inventory["nodes"][1]["nccl_env"] = {"NCCL_IB_HCA": "rocep1s0f1", "NCCL_DEBUG": "INFO"}
    made = plan()
    made["engine"]["node_env"] = {"spark-01": {"RAY_memory_monitor_refresh_ms": "0", "VLLM_HOST_IP": "1.1.1.1", "CUDA_VISIBLE_DEVICES": "1", "X": 1}}
    spark = places(cluster=inventory, plan=made).workers[0]
    assert spark.env == {
        "X": "1", "NCCL_IB_HCA": "rocep1s0f1", "NCCL_DEBUG": "INFO",
        "NCCL_SOCKET_IFNAME": "=enP7s7", "GLOO_SOCKET_IFNAME": "enP7s7", "VLLM_HOST_IP": "10.0.0.10",
    }  # fmt: skip
    assert "NCCL_IB_HCA" not in places(cluster=inventory, plan=made).head.env


@pytest.mark.parametrize("path", ["/var/lib/hf-cache", "/var/mnt/models", "/var/lib/../lib/x"])
def test_paths_below_var(path: str) -> None:
    assert layout.check_host_path(path, platform="talos", node="n").startswith("/var/")


@pytest.mark.parametrize("path", ["/srv/hf-cache", "/variable/x", "/opt/models", "/var/../srv", "/var", "var/lib"])
def test_other_paths_are_refused_on_talos(path: str) -> None:
    with pytest.raises(MotleyError) as caught:
        layout.check_host_path(path, platform="talos", node="spark-01")
    assert "/var/lib/hf-cache" in caught.value.hint
    inventory = cluster()
    inventory["nodes"][0]["cache_path"] = path
    with pytest.raises(MotleyError, match=r"absolute|only below /var"):
        places(cluster=inventory)


def test_elsewhere_they_are_the_operators_choice() -> None:
    assert layout.check_host_path("/srv/hf-cache/", platform="k3s", node="n") == "/srv/hf-cache"


def test_a_user_volume_is_mounted_as_it_is() -> None:
    assert layout.mount_type("/var/mnt/hf-cache") == "Directory"
    assert layout.mount_type("/var/lib/hf-cache") == "DirectoryOrCreate"


@pytest.mark.parametrize(("text", "size"), [("1Gi", 2**30), ("512Mi", 2**29), ("1.5Gi", 3 * 2**29), ("300M", 300_000_000), ("1073741824", 2**30)])
def test_sizes(text: str, size: int) -> None:
    assert layout.shm_bytes(text) == size


@pytest.mark.parametrize("text", ["64Mi", "lots", "1 GB", "-1Gi", ""])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(MotleyError, match="motley_shm_size") as caught:
        layout.shm_bytes(text)
    assert "1Gi" in caught.value.hint


@pytest.mark.parametrize("shm", [256 * 2**20, 2**30, 16 * 2**30])
def test_the_object_store_leaves_room_in_shm(shm: int) -> None:
    assert 80_000_000 <= layout.object_store_bytes(shm) <= min(shm // 2, 2**30)


def test_builders_are_fresh() -> None:
    first: Any = builders.cluster()
    first["nodes"][0]["name"] = "changed"
    assert builders.cluster()["nodes"][0]["name"] == "x86-01"
