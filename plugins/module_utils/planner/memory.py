# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Memory of one worker: budget, reserves with their reasons, weights, and what is left for the KV cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ansible_collections.motley.inference.plugins.module_utils.planner.device import GIB, Device
from ansible_collections.motley.inference.plugins.module_utils.planner.model import KvGroup, ModelFacts, WeightTable

# Calibrated with sixteen starts of vLLM 0.25.1 on two H200s: requested - weights - KV, minus the activation formula below.
RUNTIME_GIB = 0.12  # cuBLAS and kernels, counted after the engine's first look at the card
TENSOR_GROUP_GIB = 0.45  # buffers of NCCL and of the custom all-reduce
PIPELINE_GROUP_GIB = 0.03  # NCCL point to point
GRAPHS_GIB = 0.8  # what vLLM sets aside for CUDA graphs since 0.21; captured graphs were 0.81 and 0.88 GiB


@dataclass(frozen=True)
class EngineSettings:
    """The engine flags that memory and time depend on."""

    backend: str  # "cuda" or "cpu"
    block_size: int
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    enforce_eager: bool
    graphs_reserved: bool  # the release takes graphs off the KV pool
    async_batches: bool = False


@dataclass(frozen=True)
class Reserve:
    """Memory that is neither weights nor KV cache, and why."""

    name: str
    bytes: int
    reason: str


def requested(device: Device, fraction: float) -> int:
    """What vLLM takes as this worker's budget."""
    return math.ceil(device.memory * fraction)


def activation_bytes(model: ModelFacts, tokens: int, tensor: int) -> int:
    """Peak of one profiling step: hidden states three times, and the widest layer's intermediate tensors."""
    wide = 3 * model.intermediate // tensor if any(not k.experts for k in model.kinds) else 0
    for kind in model.kinds:
        if kind.experts:
            routed = kind.active_experts * (2 * model.hidden + 3 * model.moe_intermediate // tensor)
            wide = max(wide, routed)
    return tokens * (3 * model.hidden + wide) * model.dtype_bytes


def logit_bytes(model: ModelFacts, settings: EngineSettings) -> int:
    """Peak of the sampler on the last stage: logits of each sequence in the model's type and in float32, and all hidden states."""
    rows = min(settings.max_num_seqs, settings.max_num_batched_tokens)
    return rows * model.vocab * (model.dtype_bytes + 4) + settings.max_num_batched_tokens * model.hidden * model.dtype_bytes


def reserves(model: ModelFacts, device: Device, settings: EngineSettings, *, tensor: int, world: int, last: bool) -> tuple[Reserve, ...]:
    """The reserves of one worker; a reserve that the inventory declares is the only one."""
    if device.fixed_reserve is not None:
        return (Reserve("declared", device.fixed_reserve, "reserve_gib of the inventory"),)
    tokens = settings.max_num_batched_tokens
    activation = activation_bytes(model, tokens, tensor)
    out = []
    if last and logit_bytes(model, settings) > activation:
        out.append(Reserve("logits", logit_bytes(model, settings), f"logits of {settings.max_num_seqs} sequences x {model.vocab} words, last stage"))
    else:
        out.append(Reserve("activations", activation, f"one step of {tokens} batched tokens"))
    if settings.backend == "cuda":
        out.append(Reserve("runtime", int(RUNTIME_GIB * GIB), "cuBLAS workspace and kernels"))
        if world > 1:
            group = TENSOR_GROUP_GIB if tensor > 1 else PIPELINE_GROUP_GIB
            out.append(Reserve("nccl", int(group * GIB), "buffers of NCCL and all-reduce"))
        if not settings.enforce_eager and settings.graphs_reserved:
            out.append(Reserve("graphs", int(GRAPHS_GIB * GIB), "CUDA graphs, estimated by the engine"))
    return tuple(out)


def load_bytes(model: ModelFacts, table: WeightTable, layers: range, *, first: bool, last: bool) -> int:
    """Bytes of weights on one worker."""
    total = sum(table.kinds[model.kind_of[i]].load for i in layers) + table.rope
    total += table.rope_waste[min(len(layers), len(table.rope_waste) - 1)]
    return total + edge_bytes(model, table, first=first, last=last)


def edge_bytes(model: ModelFacts, table: WeightTable, *, first: bool, last: bool) -> int:
    """Embedding, head and final norm of a stage."""
    if model.table_on_every_stage:
        return table.embedding + table.norm + (0 if model.tied else table.head)
    total = 0
    if first or (last and model.tied):
        total += table.embedding
    if last:
        total += table.norm + (0 if model.tied else table.head)
    return total


# --------------------------------------------------------------------------------------------------------------- KV cache


def widest_group(groups: Sequence[KvGroup], start: int, stop: int) -> int:
    """Pages that one block costs on a stage: the most layers of the stage that share a group."""
    if len(groups) == 1:
        return stop - start
    return max(sum(start <= layer < stop for layer in group.layers) for group in groups)


def block_bytes(model: ModelFacts, settings: EngineSettings, tensor: int, pages: int) -> int:
    """Bytes of one block on one worker."""
    return pages * settings.block_size * model.kv_bytes_per_token(tensor)


def blocks_per_request(model: ModelFacts, settings: EngineSettings, length: int, pipeline: int) -> int:
    """Blocks that one request of this length holds."""
    total = 0
    for group in model.kv_groups:
        held = length
        if group.window:
            batches = pipeline + 1 if settings.async_batches and pipeline > 1 else pipeline
            flight = settings.max_num_batched_tokens * max(1, batches)
            held = min(group.window - 1 + flight, length)
        total += -(-held // settings.block_size) + (1 if group.window else 0)
    return total


def needed_blocks(model: ModelFacts, settings: EngineSettings, pipeline: int) -> int:
    """Blocks below which vLLM refuses to start: one request of max_model_len, and the null block that the pool keeps back."""
    return blocks_per_request(model, settings, settings.max_model_len, pipeline) + 1


def pool_tokens(model: ModelFacts, settings: EngineSettings, blocks: int, pipeline: int) -> int:
    """KV tokens as the engine prints them."""
    if len(model.kv_groups) == 1 and not model.kv_groups[0].window:
        return blocks * settings.block_size
    return int(blocks / blocks_per_request(model, settings, settings.max_model_len, pipeline) * settings.max_model_len)
