# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The objects of launcher ray, workload pod."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.motley.inference.plugins.module_utils.kube import objects
from ansible_collections.motley.inference.plugins.module_utils.serving import layout, manifests

from .builders import cluster, node, places, plan, settings, worker


def pods(**more: Any) -> dict[str, dict[str, Any]]:
    chosen = more.pop("settings", settings())
    return {p["metadata"]["name"]: p for p in manifests.pods(places(**more), chosen)}


def env(pod: dict[str, Any]) -> dict[str, Any]:
    return {row["name"]: row.get("value", row.get("valueFrom")) for row in pod["spec"]["containers"][0]["env"]}


def flags(pod: dict[str, Any]) -> dict[str, str]:
    return dict(word.removeprefix("--").split("=", 1) for word in pod["spec"]["containers"][0]["command"] if "=" in word)


def test_the_namespace_is_privileged_in_all_three_ways() -> None:
    labels = manifests.namespace()["metadata"]["labels"]
    assert {labels[f"pod-security.kubernetes.io/{mode}"] for mode in ("enforce", "audit", "warn")} == {"privileged"}


def test_pods_are_bound_to_their_nodes() -> None:
    made = pods()
    assert list(made) == ["ray-head", "ray-worker-spark-01"]
    assert made["ray-head"]["spec"]["nodeSelector"] == {"kubernetes.io/hostname": "x86-01", "kubernetes.io/arch": "amd64"}
    assert made["ray-worker-spark-01"]["spec"]["nodeSelector"] == {"kubernetes.io/hostname": "spark-01", "kubernetes.io/arch": "arm64"}
    for pod in made.values():
        spec = pod["spec"]
        assert (spec["hostNetwork"], spec["dnsPolicy"], spec["runtimeClassName"]) == (True, "ClusterFirstWithHostNet", "nvidia")
        assert (spec["enableServiceLinks"], spec["automountServiceAccountToken"], spec["restartPolicy"]) == (False, False, "Always")
        assert spec["containers"][0]["image"].endswith("@sha256:ab")


def test_ray_offers_exactly_the_planned_gpus() -> None:
    made = pods()
    assert (flags(made["ray-head"])["num-gpus"], flags(made["ray-worker-spark-01"])["num-gpus"]) == ("2", "1")
    for name, number in (("ray-head", "2"), ("ray-worker-spark-01", "1")):
        resources = made[name]["spec"]["containers"][0]["resources"]
        assert resources["limits"]["nvidia.com/gpu"] == resources["requests"]["nvidia.com/gpu"] == number


def test_of_unequal_cards_the_planned_one_is_seen() -> None:
    inventory = cluster(nodes=[node("x86-01", "10.0.0.20", ["rtx4090", "rtx5090"])])
    head = pods(cluster=inventory, plan=plan(worker(0, "x86-01", 1, "rtx5090")))["ray-head"]
    assert head["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert (env(head)["CUDA_VISIBLE_DEVICES"], flags(head)["num-gpus"]) == ("1", "1")
    assert "CUDA_VISIBLE_DEVICES" not in env(pods()["ray-head"])


def test_ports_are_fixed_and_the_dashboard_is_on_loopback() -> None:
    made = pods()
    head, worker_flags = flags(made["ray-head"]), flags(made["ray-worker-spark-01"])
    assert (head["port"], head["dashboard-host"], head["dashboard-port"]) == ("6379", "127.0.0.1", "8265")
    assert worker_flags["address"] == "10.0.0.20:6379"
    names = ("node-manager-port", "object-manager-port", "runtime-env-agent-port", "dashboard-agent-grpc-port", "dashboard-agent-listen-port",
             "metrics-export-port", "min-worker-port", "max-worker-port")  # fmt: skip
    assert [head[n] for n in names] == [worker_flags[n] for n in names] == ["6380", "6381", "6382", "6383", "52365", "8090", "11002", "11100"]
    assert (head["node-ip-address"], worker_flags["node-ip-address"]) == ("10.0.0.20", "10.0.0.10")
    for port in made["ray-head"]["spec"]["containers"][0]["ports"]:
        assert port.get("hostPort", port["containerPort"]) == port["containerPort"]


def test_each_nodes_own_interface_and_the_memory_monitor_off_on_unified_memory_only() -> None:
    made = pods()
    head, spark = env(made["ray-head"]), env(made["ray-worker-spark-01"])
    assert (head["NCCL_SOCKET_IFNAME"], spark["NCCL_SOCKET_IFNAME"]) == ("=enp3s0", "=enP7s7")
    assert (head["GLOO_SOCKET_IFNAME"], spark["GLOO_SOCKET_IFNAME"]) == ("enp3s0", "enP7s7")
    assert "RAY_memory_monitor_refresh_ms" not in head
    assert spark["RAY_memory_monitor_refresh_ms"] == "0"


def test_every_value_is_text() -> None:
    for pod in pods().values():
        for row in pod["spec"]["containers"][0]["env"]:
            assert isinstance(row.get("value", ""), str)


def test_the_partition_is_no_variable_of_a_pod() -> None:
    for pod in pods().values():
        assert "VLLM_PP_LAYER_PARTITION" not in env(pod), "a stale value on a node would win over the job's"


def test_shm_and_cache() -> None:
    volumes = {v["name"]: v for v in pods()["ray-head"]["spec"]["volumes"]}
    assert volumes["model-cache"]["hostPath"] == {"path": "/var/lib/hf-cache", "type": "DirectoryOrCreate"}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": str(2**30)}
    store = int(flags(pods()["ray-head"])["object-store-memory"])
    assert store < 2**30
    assert pods()["ray-head"]["spec"]["containers"][0]["resources"]["requests"]["memory"] == str(2**30)


def test_files_keep_their_folders() -> None:
    layout_, chosen = places(), settings()
    data = manifests.config_map(layout_, chosen)["data"]
    (volume,) = [v for v in pods()["ray-head"]["spec"]["volumes"] if v["name"] == "config"]
    items = {item["path"]: item["key"] for item in volume["configMap"]["items"]}
    assert set(items.values()) == set(data)
    assert data[items["stage_reporter/m.dist-info/METADATA"]] == "Name: m\n"
    assert all("/" not in key for key in data)
    assert env(pods()["ray-head"])["PYTHONPATH"] == "/opt/motley/stage_reporter:/opt/motley/ray_start"


def test_the_images_own_path_stays() -> None:
    assert env(pods(settings=settings(pythonpath="/opt/own"))["ray-head"])["PYTHONPATH"].endswith(":/opt/own")


def test_without_reporter_there_is_no_trace_of_it() -> None:
    made = pods(settings=settings(files={}))["ray-head"]
    assert "PYTHONPATH" not in env(made)
    assert "RAY_START_HOOK" not in env(made)


def test_names_that_must_not_travel() -> None:
    inventory = cluster()
    inventory["nodes"][1]["nccl_env"] = {"NCCL_IB_TC": "106"}
    names = json.loads(manifests.files(places(cluster=inventory), settings())[manifests.EXCLUSION_FILE])
    wanted = {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA", "UCX_NET_DEVICES", "NCCL_IB_TC", "VLLM_HOST_IP", "VLLM_API_KEY", "HF_TOKEN"}
    assert wanted <= set(names)
    assert env(pods()["ray-head"])["VLLM_CONFIG_ROOT"] == "/opt/motley/vllm"


def test_secrets_are_only_in_secrets() -> None:
    made = manifests.secrets(ray_token="tok-1", api_key="key-2", hf_token="hf-3")
    assert [s["metadata"]["name"] for s in made] == ["motley-ray", "motley-api-key", "motley-hf"]
    assert len(manifests.secrets(ray_token="tok-1", api_key="key-2", hf_token=None)) == 2
    rendered = json.dumps([*objects.render(made), *pods().values(), manifests.config_map(places(), settings())])
    assert not [text for text in ("tok-1", "key-2", "hf-3") if text in rendered]
    head = env(pods()["ray-head"])
    assert (head["RAY_AUTH_MODE"], head["RAY_AUTH_TOKEN_PATH"]) == ("token", "/etc/motley/ray/token")
    assert head["VLLM_API_KEY"] == {"secretKeyRef": {"name": "motley-api-key", "key": "api-key"}}
    assert head["HF_TOKEN"]["secretKeyRef"]["optional"] is True


def test_probes() -> None:
    made = pods()
    head, peer = made["ray-head"]["spec"]["containers"][0], made["ray-worker-spark-01"]["spec"]["containers"][0]
    assert head["livenessProbe"]["httpGet"] == {"path": "/api/gcs_healthz", "port": 8265, "scheme": "HTTP", "host": "127.0.0.1"}
    assert head["readinessProbe"]["httpGet"]["path"] == "/health"
    assert peer["livenessProbe"]["httpGet"]["port"] == 52365


def test_the_service_follows_the_head() -> None:
    service = manifests.service(places(), 8000)
    labels = pods()["ray-head"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert not service["spec"]["selector"].items() <= pods()["ray-worker-spark-01"]["metadata"]["labels"].items()
    assert service["metadata"]["name"] != "vllm", "its variables would reach vLLM"


def live(pod: dict[str, Any], phase: str = "Running", **metadata: Any) -> dict[str, Any]:
    return {**pod, "metadata": {**pod["metadata"], **metadata}, "status": {"phase": phase}}


def test_a_pod_that_is_as_wanted_stays() -> None:
    wanted = pods()["ray-head"]
    assert manifests.outdated(wanted, live(wanted)) == ""
    assert manifests.outdated(wanted, None) == ""


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"image": "vllm/vllm-openai:v0.17.1@sha256:cd"}, "specification differs"),
        ({"shm_bytes": 2**31}, "specification differs"),
        ({"secrets": "s2"}, "files or secrets"),
        ({"files": {"stage_reporter/motley_stage_reporter.py": "x = 2\n", "stage_reporter/m.dist-info/METADATA": "Name: m\n",
                    "ray_start/motley_ray_start.py": "y = 2\n"}}, "files or secrets"),
    ],
)  # fmt: skip
def test_what_makes_a_pod_outdated(change: dict[str, Any], word: str) -> None:
    assert word in manifests.outdated(pods(settings=settings(**change))["ray-head"], live(pods()["ray-head"]))


def test_ended_and_deleted_pods_are_outdated() -> None:
    wanted = pods()["ray-head"]
    assert "ended" in manifests.outdated(wanted, live(wanted, "Failed"))
    assert "deleted" in manifests.outdated(wanted, live(wanted, deletionTimestamp="2026-01-01T00:00:00Z"))


def test_another_plan_with_the_same_pods_keeps_them() -> None:
    other = pods(plan=plan(inputs_sha256="f" * 64))["ray-head"]
    assert manifests.outdated(other, live(pods()["ray-head"])) == ""
    assert other["metadata"]["labels"]["motley.dev/plan"] == "f" * 12
    assert layout.NAMESPACE == other["metadata"]["namespace"]
