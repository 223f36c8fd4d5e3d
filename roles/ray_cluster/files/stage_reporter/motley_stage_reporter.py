# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vLLM general plugin: every rank says what it really holds.

Each worker writes one line `MOTLEY_STAGE{json}` to stderr after its weights are loaded (event "load") and one after its
KV cache is set up (event "kv"). The engine's own log speaks for the first rank of a node only, and a process's start-up
environment in /proc is not the one its libraries read, so the lines come from inside the process.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

MARK = "MOTLEY_STAGE"
ENV_PREFIXES = ("NCCL_", "GLOO_")
ENV_NAMES = ("VLLM_HOST_IP", "VLLM_PP_LAYER_PARTITION", "CUDA_VISIBLE_DEVICES")


def _environment() -> dict[str, str]:
    return {k: v for k, v in sorted(os.environ.items()) if k.startswith(ENV_PREFIXES) or k in ENV_NAMES}


def _physical_device(worker: Any) -> int | None:
    """The node's device index when Ray leaves CUDA_VISIBLE_DEVICES alone and hands the engine a table instead."""
    table = getattr(getattr(worker, "parallel_config", None), "assigned_physical_gpu_ids", None) or []
    return int(table[worker.local_rank]) if 0 <= worker.local_rank < len(table) else None


def _layers(model: Any, total: int) -> list[int] | None:
    """First, last and number of decoder layers that are real modules here; other stages' layers are placeholders."""
    stacks = [m for m in model.modules() if type(m).__name__ == "ModuleList"]
    # A vision tower may be the longer stack: the one of the configured length comes first.
    stack = max(stacks, key=lambda m: (len(m) == total, len(m)), default=())
    held = [i for i, layer in enumerate(stack) if type(layer).__name__ != "PPMissingLayer"]
    return [held[0], held[-1], len(held)] if held else None


def _flat(caches: Iterable[Any]) -> list[Any]:
    return [t for c in caches for t in (c if isinstance(c, (list, tuple)) else [c])]


def describe(worker: Any, event: str, kv: Any = None) -> dict[str, Any]:
    """What this rank holds, as plain data."""
    from vllm.distributed import parallel_state as groups

    runner = worker.model_runner
    model = runner.get_model()
    tensors = {t.data_ptr(): t for t in [*model.parameters(), *model.buffers()]}.values()  # tied tables once
    line: dict[str, Any] = {
        "schema": 1,
        "event": event,
        "time": round(time.time(), 3),
        "rank": worker.rank,
        "local_rank": worker.local_rank,
        "world_size": getattr(getattr(worker, "parallel_config", None), "world_size", None),
        "pp_rank": groups.get_pp_group().rank_in_group,
        "tp_rank": groups.get_tp_group().rank_in_group,
        "node": socket.gethostname(),
        "host_ip": os.environ.get("VLLM_HOST_IP"),
        "pid": os.getpid(),
        "device": str(worker.device),
        "physical_device": _physical_device(worker),
        "layers": _layers(model, getattr(worker.model_config.hf_text_config, "num_hidden_layers", 0)),
        "params": sum(t.numel() for t in tensors),
        "weight_bytes": sum(t.numel() * t.element_size() for t in tensors),
        "load_bytes": getattr(runner, "model_memory_usage", None),  # on GPUs: what "Model loading took" rounds
        "env": _environment(),
    }
    if kv is not None:
        stores = {s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in _flat(runner.kv_caches))}
        block_size = getattr(getattr(worker, "cache_config", None), "block_size", None)
        line.update(kv_blocks=kv.num_blocks, kv_bytes=sum(stores.values()), block_size=block_size)
    return line


def write(worker: Any, event: str, kv: Any = None) -> None:
    # One word with a digit and without a blank: Ray's log deduplication never drops such a line.
    text = json.dumps(describe(worker, event, kv), separators=(",", ":")).replace(" ", "\\u0020")
    sys.stderr.write(f"{MARK}{text}\n")
    sys.stderr.flush()


def _complain(where: str, error: Exception) -> None:
    sys.stderr.write(f"{MARK}_ERROR {where}: {error!r}\n")
    sys.stderr.flush()


def _after(worker: Any, name: str, then: Callable[..., None]) -> None:
    inner = getattr(worker, name)

    @functools.wraps(inner)
    def outer(*args: Any, **kwargs: Any) -> Any:
        result = inner(*args, **kwargs)
        try:
            then(*args, *kwargs.values())
        except Exception as error:  # a report must never stop an engine
            _complain(name, error)
        return result

    setattr(worker, name, outer)


def _hook(worker_base: Any) -> None:
    """Wrap WorkerBase.__init__, not its wrapper class: Ray (executor V1) copies the wrapper's methods before plugins load."""
    if hasattr(worker_base, "_motley_init"):
        return
    inner = worker_base.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        inner(self, *args, **kwargs)
        _after(self, "load_model", lambda *_rest: write(self, "load"))
        _after(self, "initialize_from_config", lambda kv, *_rest: write(self, "kv", kv))

    worker_base._motley_init = inner
    worker_base.__init__ = init


def register() -> None:
    """Entry point of group vllm.general_plugins; vLLM calls it in every process it starts."""
    try:
        from vllm.v1.worker.worker_base import WorkerBase

        _hook(WorkerBase)
    except Exception as error:  # vLLM does not guard the call
        _complain("register", error)
