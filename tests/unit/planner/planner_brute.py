# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The planner's problem solved by trying everything, with formulas of its own and no import from the planner.

For small models on declared devices (backend cpu, reserve_gib given), where memory is plain arithmetic.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

GIB = 1 << 30
LINKS = {"1gbe": (0.117, 150), "10gbe-tcp": (1.15, 60), "cx7-200g-roce-single-rail": (13.9, 25), "pcie4-x16": (25, 10), "pcie5-x16": (50, 10)}
PEER = {"rtx4090": "pcie4-x16", "gb10": "pcie5-x16", "rtx5090": "pcie5-x16"}
RATE = {"rtx4090": 1008.0, "gb10": 273.0, "rtx5090": 1792.0}
BLOCK = 128


class Model:
    """Bytes of a small Llama or Qwen3 MoE in float32."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.c = config
        self.n = config["num_hidden_layers"]
        self.experts = config.get("num_experts", 0)
        self.dense_layers = set(config.get("mlp_only_layers", [])) if self.experts else set(range(self.n))
        self.everywhere = bool(self.experts)
        self.tied = config["tie_word_embeddings"]
        window = config.get("sliding_window")
        self.sliding = [bool(window) and t == "sliding_attention" for t in config.get("layer_types", ["full_attention"] * self.n)]

    def parts(self, layer: int, t: int) -> tuple[float, float]:
        """(bytes read for every token, bytes of one expert)."""
        c = self.c
        h, hd, q, kv = c["hidden_size"], c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
        own_kv = max(1, kv // t)
        attention = h * (q // t + 2 * own_kv) * hd + (q // t) * hd * h
        norms = 2 * h + (2 * hd if self.experts else 0)
        if layer in self.dense_layers:
            return 4 * (attention + 3 * h * c["intermediate_size"] // t + norms), 0
        return 4 * (attention + norms + h * self.experts), 4 * (3 * h * c["moe_intermediate_size"] // t)

    def load(self, layer: int, t: int) -> float:
        always, one = self.parts(layer, t)
        return always + one * self.experts + 16

    def table(self, t: int) -> int:
        return 4 * self.c["vocab_size"] // t * self.c["hidden_size"]

    def edges(self, t: int, first: bool, last: bool) -> int:
        norm, rope = 4 * self.c["hidden_size"], 4 * self.c["max_position_embeddings"] * self.c["head_dim"]
        if self.everywhere:
            return rope + norm + self.table(t) * (1 if self.tied else 2)
        holds = first or (last and self.tied)
        return rope + (self.table(t) if holds else 0) + (norm + (0 if self.tied else self.table(t)) if last else 0)

    def kv(self, t: int) -> int:
        return 2 * max(1, self.c["num_key_value_heads"] // t) * self.c["head_dim"] * 4

    def groups(self) -> list[tuple[list[int], bool]]:
        full = [i for i in range(self.n) if not self.sliding[i]]
        slid = [i for i in range(self.n) if self.sliding[i]]
        if not full or not slid:
            return [(full or slid, bool(slid))]
        small, large = sorted((len(full), len(slid)))
        size = large if large < small * 1.25 else small
        out = []
        for layers, flag in sorted(((full, False), (slid, True)), key=lambda g: g[0][0]):
            count = math.ceil(len(layers) / size)
            out += [(layers[i::count], flag) for i in range(count)]
        return out

    def request_blocks(self, length: int, pipeline: int, tokens: int) -> int:
        total = 0
        for _, slides in self.groups():
            held = min(self.c["sliding_window"] - 1 + tokens * pipeline, length) if slides else length
            total += math.ceil(held / BLOCK) + (1 if slides else 0)
        return total

    def allows(self, t: int) -> bool:
        c = self.c
        q, kv = c["num_attention_heads"], c["num_key_value_heads"]
        widths = [c["moe_intermediate_size"]] if self.experts else []
        widths += [c["intermediate_size"]] if self.dense_layers else []
        bad = q % t or (kv % t and t % kv) or c["vocab_size"] % t or any(w % t for w in widths)
        return not bad and not (self.experts and t > self.experts)


def _lines(request: dict[str, Any]) -> Iterator[list[tuple[dict[str, Any], str]]]:
    """Devices with their nodes, in every rank order that the launcher can give."""
    nodes = request["nodes"]
    for counts in itertools.product(*[range(2 ** len(n["devices"])) for n in nodes]):
        used = {n["name"]: [d for i, d in enumerate(n["devices"]) if mask >> i & 1] for n, mask in zip(nodes, counts, strict=True)}
        used = {k: v for k, v in used.items() if v}
        address = {n["name"]: n["address"] for n in nodes}
        marked = [n["name"] for n in nodes if n.get("engine")]
        for engine in marked or used:
            if engine not in used:
                continue
            for rest in _rest_orders(request["engine"], used, engine, address):
                yield [(d, n) for n in (engine, *rest) for d in used[n]]


def _rest_orders(engine: dict[str, Any], used: dict[str, Any], first: str, address: dict[str, str]) -> list[list[str]]:
    others = [n for n in used if n != first]
    if engine["launcher"] == "native":
        return [list(order) for order in itertools.permutations(others)]
    if engine["version"] == "0.17.0":
        return [sorted(others, key=lambda n: (len(used[n]), address[n]))]
    return [sorted(others, key=lambda n: address[n])]


def _link(request: dict[str, Any], a: tuple[dict[str, Any], str], b: tuple[dict[str, Any], str]) -> tuple[float, float]:
    if a[1] == b[1]:
        return min((LINKS[PEER[d["accelerator"]]] for d, _ in (a, b)), key=lambda link: link[0])
    for link in request["links"]:
        if {a[1], b[1]} == set(link["nodes"]):
            return LINKS[link["link"]]
    return LINKS["10gbe-tcp"]


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    for cuts in itertools.combinations(range(1, total), parts - 1):
        yield tuple(b - a for a, b in itertools.pairwise((0, *cuts, total)))


def values(request: dict[str, Any], line: list[tuple[dict[str, Any], str]], t: int, layers: tuple[int, ...]) -> dict[str, float] | None:
    """Figures of one placement, or None if it does not start."""
    model, work, fraction = Model(request["config"]), request["workload"], request["engine"]["gpu_memory_utilization"]
    stages = [line[i : i + t] for i in range(0, len(line), t)]
    p, tokens = len(stages), request["engine"]["max_num_batched_tokens"]
    starts = [sum(layers[:s]) for s in range(p)]
    pools = []
    for s, group in enumerate(stages):
        held = range(starts[s], starts[s] + layers[s])
        weights = sum(model.load(i, t) for i in held) + model.edges(t, s == 0, s == p - 1)
        pages = max(sum(i in held for i in g) for g, _ in model.groups())
        for device, _ in group:
            free = math.ceil(int(device["memory_gib"] * GIB) * fraction) - int(device["reserve_gib"] * GIB) - weights
            pools.append(math.floor(free / (pages * BLOCK * model.kv(t))) if free >= 0 else -1)
    blocks = min(pools)
    if blocks < model.request_blocks(work["max_model_len"], p, tokens) + 1:
        return None
    each = model.request_blocks(work["prompt_tokens"] + work["output_tokens"], p, tokens)
    served = max(1, min(work["concurrency"], request["engine"]["max_num_seqs"], (blocks - 1) // each))

    def pass_time(batch: float) -> tuple[float, float]:
        times = []
        context = work["prompt_tokens"] + work["output_tokens"] / 2
        for s, group in enumerate(stages):
            rate = min(d.get("bandwidth_gbs", RATE[d["accelerator"]]) for d, _ in group) * 1e9 * 0.85
            total = 0.0
            for i in range(starts[s], starts[s] + layers[s]):
                always, one = model.parts(i, t)
                touched = model.experts * (1 - (1 - model.c.get("num_experts_per_tok", 0) / max(1, model.experts)) ** batch)
                total += (always + one * touched + batch * context * model.kv(t)) / rate
            if t > 1:
                gbs, rtt = min((_link(request, a, b) for a, b in itertools.combinations(group, 2)), key=lambda link: (link[0], -link[1]))
                size = batch * model.c["hidden_size"] * 4
                total += layers[s] * 2 * (2 * (t - 1) / t * size / (gbs * 1e9) + rtt * 1e-6 * (t - 1))
            if s == p - 1:
                total += (model.table(t) + 4 * model.c["hidden_size"]) / rate
            times.append(total)
        way = 0.0
        for a, b in itertools.pairwise(stages):
            gbs, rtt = min((_link(request, x, y) for x, y in zip(a, b, strict=True)), key=lambda link: (link[0], -link[1]))
            way += rtt / 2e6 + 2 * batch * model.c["hidden_size"] * 4 / (gbs * 1e9)
        if stages[-1][0][1] != line[0][1]:
            way += _link(request, stages[-1][0], line[0])[1] / 2e6
        return sum(times) + way, max(times)

    flights = max(1, min(p, served))
    whole, slowest = pass_time(served / flights)
    single, throughput = 1 / pass_time(1.0)[0], served / max(whole, flights * slowest)
    return {"latency": single, "throughput": throughput, "capacity": float(blocks), "balanced": math.sqrt(single * throughput)}


def best(request: dict[str, Any]) -> float | None:
    """The best value of the request's objective over everything, or None."""
    model, found = Model(request["config"]), None
    for line in _lines(request):
        for t in range(1, len(line) + 1):
            if len(line) % t or not model.allows(t) or len(line) // t > model.n:
                continue
            for layers in _compositions(model.n, len(line) // t):
                figures = values(request, line, t, layers)
                if figures and (found is None or figures[request["objective"]] > found):
                    found = figures[request["objective"]]
    return found
