# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A cluster and its plan as the inventory and the planner make them, for tests that need both."""

from __future__ import annotations

from typing import Any

from ansible_collections.motley.inference.plugins.module_utils.serving import layout, manifests

DIGEST = "0123456789abcdef" * 4
FACTS: dict[str, dict[str, Any]] = {
    "x86-01": {"architecture": "amd64", "interface": {"name": "enp3s0"}},
    "spark-01": {"architecture": "arm64", "interface": {"name": "enP7s7"}},
}


def node(name: str, address: str, accelerators: list[str], **more: Any) -> dict[str, Any]:
    devices = [{"accelerator": a} for a in accelerators]
    return {"name": name, "address": address, "accelerators": accelerators, "devices": devices, "arch": "amd64", "nccl_env": {}, "cache_path": "/var/lib/hf-cache", **more}


def cluster(**more: Any) -> dict[str, Any]:
    return {
        "platform": "talos",
        "launcher": "ray",
        "workload": "pod",
        "model": {"name": "Qwen/Qwen2.5-72B-Instruct-AWQ"},
        "engine": {"env": {}, "args": [], "image": None, "version": None, "port": 8000, "stage_reporter": True},
        "storage": {"cache_path": "/var/lib/hf-cache", "shm_size": "1Gi"},
        "nodes": [node("x86-01", "10.0.0.20", ["rtx4090", "rtx4090"]), node("spark-01", "10.0.0.10", ["gb10"], arch="arm64")],
        **more,
    }


def worker(rank: int, where: str, device: int, accelerator: str, **more: Any) -> dict[str, Any]:
    sizes = {"weights_gib": 10.0, "reserve_gib": 2.0, "budget_gib": 21.6, "kv_gib": 9.6}
    return {"rank": rank, "tensor_rank": 0, "node": where, "device": device, "accelerator": accelerator, **sizes, **more}


def plan(*workers: dict[str, Any], **more: Any) -> dict[str, Any]:
    chosen = workers or (worker(0, "x86-01", 0, "rtx4090"), worker(1, "x86-01", 1, "rtx4090"), worker(2, "spark-01", 0, "gb10", budget_gib=108.0))
    stages = [{"rank": i, "layers": 10, "workers": [w]} for i, w in enumerate(chosen)]
    engine = {"version": "0.17.1", "args": ["--port", "8000"], "env": {"VLLM_PP_LAYER_PARTITION": "22,20,38"}, "node_env": {}, "ray_gpus": {}}
    return {"feasible": True, "inputs_sha256": DIGEST, "stages": stages, "engine": engine, "gpu_memory_utilization": 0.9, **more}


def places(**more: Any) -> layout.Layout:
    return layout.build(more.pop("cluster", cluster()), more.pop("plan", plan()), more.pop("facts", FACTS), **more)


def settings(**more: Any) -> manifests.Settings:
    files = {"stage_reporter/motley_stage_reporter.py": "x = 1\n", "stage_reporter/m.dist-info/METADATA": "Name: m\n", "ray_start/motley_ray_start.py": "y = 2\n"}
    return manifests.Settings(**{"image": "vllm/vllm-openai:v0.17.1@sha256:ab", "shm_bytes": 2**30, "port": 8000, "files": files, "secrets": "s1", **more})
