"""How long a plan takes, in steps of brute force, so that figures of different machines compare."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.motley.inference.plugins.module_utils.planner import plan

LAYERS, DEVICES = 128, 16
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": LAYERS,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 131072, "tie_word_embeddings": False,
}  # fmt: skip
HOMES = {
    "two kinds": [["rtx4090", "rtx4090"]] * 4 + [["gb10"]] * 8,
    "six kinds": [[card] * 2 for card in ("rtx4090", "gb10", "rtx3090", "l40s", "rtx5090", "a10", "rtx4090", "gb10")],
}
MOST_STEPS = 40_000  # a plan in about ten seconds on a slow machine; brute force would try 10^19 partitions of one line of stages


def request(cards: list[list[str]]) -> dict[str, Any]:
    nodes = [{"name": f"node-{i}", "address": f"10.0.0.{i + 10}", "devices": devices} for i, devices in enumerate(cards)]
    assert sum(len(node["devices"]) for node in nodes) == DEVICES
    return {"model": "example/llama-128l", "config": LLAMA, "nodes": nodes, "workload": {"max_model_len": 8192, "concurrency": 8}, "engine": {"version": "0.32.0"}}


def step() -> tuple[float, float]:
    """One partition as brute force would try it: time and memory of every layer where it lies, sum and maximum over stages."""
    rates, rooms = [250e9 + 50e9 * d for d in range(DEVICES)], [22e9 + 1e9 * d for d in range(DEVICES)]
    stages, least = [0.0] * DEVICES, float("inf")
    for layer in range(LAYERS):
        device = layer * DEVICES // LAYERS
        stages[device] += 1.7e9 / rates[device]
        rooms[device] -= 1.7e9
        least = min(least, rooms[device])
    return sum(stages) + max(stages), least


def median(work: Callable[[], Any], times: int) -> float:
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


@pytest.mark.parametrize("home", HOMES)
def test_a_plan_of_16_devices_and_128_layers(home: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = request(HOMES[home])
    one, whole = median(step, 500), median(lambda: plan(asked), 3)
    with capsys.disabled():
        print(f"\nplanner, {DEVICES} devices of {home} x {LAYERS} layers: {whole:.3f} s, {whole / one:.0f} steps of brute force ({one * 1e6:.0f} us each)")
    assert whole / one < MOST_STEPS * 5
