# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The search finds what trying everything finds."""

from __future__ import annotations

import random
from typing import Any

import planner_brute
import pytest
from ansible_collections.motley.inference.plugins.module_utils.planner import plan
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ACCELERATORS = ("rtx4090", "gb10", "rtx5090")
LINKS = ("1gbe", "10gbe-tcp", "cx7-200g-roce-single-rail")
OBJECTIVES = ("balanced", "latency", "throughput", "capacity")


def instance(seed: int, devices: int = 4, layers: int = 7) -> dict[str, Any]:
    """A random small request: a model of a few hundred kilobytes on up to that many devices."""
    r = random.Random(seed)
    n = r.randint(1, layers)
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": r.choice([96, 192, 256]), "num_hidden_layers": n,
        "num_attention_heads": r.choice([3, 4, 8]), "num_key_value_heads": 1, "head_dim": 16, "vocab_size": r.choice([128, 256, 1024]),
        "max_position_embeddings": 2048, "tie_word_embeddings": r.random() < 0.4,
    }  # fmt: skip
    config["num_key_value_heads"] = r.choice([k for k in (1, 2, 4) if config["num_attention_heads"] % k == 0])
    kind = r.random()
    if kind < 0.25:
        config.update(
            architectures=["Qwen3MoeForCausalLM"],
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=48,
            mlp_only_layers=sorted(r.sample(range(n), r.randint(0, n - 1))) if n > 1 else [],
        )
    elif kind < 0.45:
        config.update(sliding_window=200, layer_types=[r.choice(["sliding_attention", "full_attention"]) for _ in range(n)])
    nodes: list[dict[str, Any]] = []
    left = r.randint(1, devices)
    size = sum(planner_brute.Model(config).load(i, 1) for i in range(n)) / planner_brute.GIB + 0.0012
    low, high = r.choice([(0.3, 1.6), (0.12, 0.7)])
    while left:
        count = min(left, r.choice([1, 1, 2, 3]))
        cards = []
        for _ in range(count):
            card = {"accelerator": r.choice(ACCELERATORS), "memory_gib": size * r.uniform(low, high), "reserve_gib": r.choice([0.0, 0.0001])}
            if r.random() < 0.2:
                card["bandwidth_gbs"] = r.choice([100.0, 500.0])
            cards.append(card)
        if r.random() < 0.5:
            cards = [dict(cards[0]) for _ in cards]
        nodes.append({"name": f"n{len(nodes)}", "address": f"10.0.0.{r.randint(1, 99)}{len(nodes)}", "devices": cards})
        left -= count
    if r.random() < 0.3:
        r.choice(nodes)["engine"] = True
    links = [{"nodes": [a["name"], b["name"]], "link": r.choice(LINKS)} for i, a in enumerate(nodes) for b in nodes[:i] if r.random() < 0.8]
    length = r.choice([128, 256, 512])
    return {
        "config": config, "dtype": "float32", "nodes": nodes, "links": links, "objective": r.choice(OBJECTIVES),
        "workload": {"max_model_len": length, "concurrency": r.choice([1, 2, 3, 8]), "prompt_tokens": length // 2, "output_tokens": length // 4},
        "engine": {"version": r.choice(["0.17.0", "0.32.0"]), "launcher": r.choice(["ray", "ray", "native"]), "backend": "cpu", "gpu_memory_utilization": 0.9, "max_num_batched_tokens": 64, "max_num_seqs": 6},
    }  # fmt: skip


def value(response: dict[str, Any], objective: str) -> float:
    single, throughput = response["predicted"]["single_stream_tok_s"], response["predicted"]["throughput_tok_s"]
    return {"latency": single, "throughput": throughput, "capacity": response["kv_blocks"], "balanced": (single * throughput) ** 0.5}[objective]


def check(request: dict[str, Any]) -> bool:
    expected = planner_brute.best(request)
    response = plan(request)
    assert response["feasible"] == (expected is not None), response["explanation"]
    if expected is not None:
        assert value(response, request["objective"]) == pytest.approx(expected, rel=1e-6)
    return expected is not None


@pytest.mark.parametrize("chunk", range(4))
def test_equal_to_brute_force(chunk: int) -> None:
    feasible = sum(check(instance(seed)) for seed in range(chunk * 60, chunk * 60 + 60))
    assert 10 < feasible < 60  # instances of both kinds, or the generator has gone blind


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(min_value=10_000, max_value=10_000_000))
def test_equal_to_brute_force_on_any_seed(seed: int) -> None:
    check(instance(seed, devices=3, layers=6))


def test_the_figures_are_those_of_the_brute_force_for_the_chosen_plan() -> None:
    compared = 0
    for seed in range(40):
        request = instance(seed)
        response = plan(request)
        if not response["feasible"]:
            continue
        devices = {n["name"]: n["devices"] for n in request["nodes"]}
        line = [(devices[w["node"]][w["device"]], w["node"]) for s in response["stages"] for w in s["workers"]]
        figures = planner_brute.values(request, line, response["tensor"], tuple(s["layers"] for s in response["stages"]))
        assert figures is not None
        assert figures["latency"] == pytest.approx(response["predicted"]["single_stream_tok_s"], rel=1e-6)
        assert figures["throughput"] == pytest.approx(response["predicted"]["throughput_tok_s"], rel=1e-6)
        assert figures["capacity"] == response["kv_blocks"]
        compared += 1
    assert compared > 10
