# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Time model: decoding is bound by memory bandwidth, prefill by FLOPS, hops by round trip and bytes.

A pipeline of P stages keeps m = min(P, requests) micro-batches in flight. One round serves each of them once and takes at
least the way of one micro-batch through all stages, and at least m turns of the slowest stage.
"""

from __future__ import annotations

from dataclasses import dataclass

from ansible_collections.motley.inference.plugins.module_utils.planner.device import Link
from ansible_collections.motley.inference.plugins.module_utils.planner.model import ModelFacts, WeightTable, experts_touched


@dataclass(frozen=True)
class Workload:
    """What the operator expects to be asked."""

    concurrency: int
    prompt_tokens: int
    output_tokens: int

    @property
    def context(self) -> float:
        """Tokens of KV read for one request, on average over its output."""
        return self.prompt_tokens + self.output_tokens / 2

    @property
    def request_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True)
class BatchCost:
    """What one decode step of a micro-batch costs, apart from the device: bytes by kind of layer, and of the head."""

    batch: float
    layers: tuple[float, ...]
    head: float


def batch_cost(model: ModelFacts, table: WeightTable, workload: Workload, tensor: int, batch: float) -> BatchCost:
    """Bytes that a step of this batch reads on one worker of a stage."""
    kv = batch * workload.context * model.kv_bytes_per_token(tensor)
    layers = []
    for kind, size in zip(model.kinds, table.kinds, strict=True):
        layers.append(size.read + size.expert * experts_touched(kind.experts, kind.active_experts, batch) + kv)
    return BatchCost(batch, tuple(layers), float(table.head + table.norm))


def activation_hop(model: ModelFacts, link: Link, tokens: float) -> float:
    """Seconds to hand hidden states and residual of a micro-batch to the next stage."""
    return link.rtt_us * 0.5e-6 + 2 * tokens * model.hidden * model.dtype_bytes / (link.gbs * 1e9)


def return_hop(link: Link | None) -> float:
    """Seconds until the engine has the sampled tokens of a last stage that is elsewhere."""
    return link.rtt_us * 0.5e-6 if link else 0.0


def all_reduce(model: ModelFacts, link: Link | None, tensor: int, tokens: float) -> float:
    """Seconds of the two all-reduces of one layer."""
    if tensor == 1 or link is None:
        return 0.0
    size = tokens * model.hidden * model.dtype_bytes
    once = 2 * (tensor - 1) / tensor * size / (link.gbs * 1e9) + link.rtt_us * 0.5e-6 * 2 * (tensor - 1)
    return 2 * once


def micro_batches(pipeline: int, requests: int) -> int:
    """Micro-batches in flight."""
    return max(1, min(pipeline, requests))


def served_at_once(workload: Workload, max_num_seqs: int, kv_tokens: int) -> int:
    """Requests that run at the same time: the rest waits."""
    return max(1, min(workload.concurrency, max_num_seqs, kv_tokens // max(1, workload.request_tokens)))
