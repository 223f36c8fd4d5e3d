# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The launch of the engine: arguments, variables and devices per node, from the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Launch:
    """What the arguments are made of."""

    launcher: str
    pipeline: int
    tensor: int
    partition: Sequence[int]
    fraction: float
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    enforce_eager: bool | None
    port: int
    quantization: str | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    args: Sequence[str] = ()
    env: Sequence[tuple[str, str]] = ()


def arguments(launch: Launch) -> list[str]:
    """Everything after `vllm serve MODEL`; the operator's own come last, so they win."""
    pairs: list[tuple[str, object]] = [
        ("--port", launch.port),
        ("--pipeline-parallel-size", launch.pipeline),
        ("--tensor-parallel-size", launch.tensor),
        ("--gpu-memory-utilization", f"{launch.fraction:g}"),
        ("--max-model-len", launch.max_model_len),
        ("--max-num-batched-tokens", launch.max_num_batched_tokens),
        ("--max-num-seqs", launch.max_num_seqs),
    ]
    if launch.pipeline * launch.tensor > 1:
        pairs.append(("--distributed-executor-backend", "ray" if launch.launcher == "ray" else "mp"))
    elif launch.launcher == "ray":
        pairs.append(("--distributed-executor-backend", "ray"))
    pairs += [
        (flag, value)
        for flag, value in (
            ("--quantization", launch.quantization),
            ("--dtype", launch.dtype),
            ("--kv-cache-dtype", launch.kv_cache_dtype),
            ("--revision", launch.revision),
        )
        if value
    ]
    own = {str(a).split("=", 1)[0] for a in launch.args}
    out = [str(word) for pair in pairs if pair[0] not in own for word in pair]
    switches = (("--enforce-eager", launch.enforce_eager), ("--trust-remote-code", launch.trust_remote_code))
    out += [flag for flag, wanted in switches if wanted and flag not in own]
    return out + [str(a) for a in launch.args]


def variables(launch: Launch) -> dict[str, str]:
    """Variables of the whole engine: set once, where the driver runs, and carried to the workers by the executor."""
    out: dict[str, str] = {}
    if launch.pipeline > 1:
        out["VLLM_PP_LAYER_PARTITION"] = ",".join(map(str, launch.partition))
    if launch.launcher == "ray":
        out["RAY_DEDUP_LOGS"] = "0"  # else lines of single ranks are lost
    out.update(dict(launch.env))
    return out


def node_variables(nodes: Sequence[Mapping[str, Any]], used: Mapping[str, Sequence[int]]) -> dict[str, dict[str, str]]:
    """Variables of each node that carries workers.

    nodes: name, address, devices (how many), unified, env (the operator's). used: device indices by node.
    """
    out: dict[str, dict[str, str]] = {}
    for node in nodes:
        chosen = used.get(node["name"])
        if not chosen:
            continue
        env = {"VLLM_HOST_IP": str(node["address"])} if node["address"] else {}
        if len(chosen) < node["devices"]:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, chosen))
        if node["unified"]:
            env["RAY_memory_monitor_refresh_ms"] = "0"  # the monitor counts GPU memory as used RAM and kills workers
        env.update(dict(node["env"]))
        out[node["name"]] = env
    return out


def block(launch: Launch, nodes: Sequence[Mapping[str, Any]], used: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """The plan's `engine` block."""
    return {
        "args": arguments(launch),
        "env": variables(launch),
        "node_env": node_variables(nodes, used),
        "ray_gpus": {name: len(devices) for name, devices in used.items()},
    }
