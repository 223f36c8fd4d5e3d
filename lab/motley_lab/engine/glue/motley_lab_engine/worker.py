# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The worker: a CPU worker that keeps its weights and budgets its KV cache as a GPU worker does, from its device's size."""

from __future__ import annotations

import math
import os
import time
import typing

import torch
import vllm.model_executor.layers.utils as layer_utils
from vllm.logger import init_logger
from vllm.v1.worker.cpu_worker import CPUWorker

from .meter import Meter, devices, processes

logger = init_logger("vllm.motley_lab")
GIB = 2**30


def _entry(variable: str, index: int) -> int | None:
    values = os.environ.get(variable, "").split(",")
    return int(values[index]) if index < len(values) and values[index] else None


def held_bytes(model: typing.Any) -> int:
    """Parameters and buffers, each memory once (tied tables, the rope cache)."""
    tensors = {tensor.data_ptr(): tensor for tensor in [*model.parameters(), *model.buffers()]}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


class LabWorker(CPUWorker):
    def __init__(self, vllm_config: typing.Any, *args: typing.Any, **kwargs: typing.Any) -> None:
        cache = vllm_config.cache_config
        self._pinned, cache.kv_cache_memory_bytes = cache.kv_cache_memory_bytes, cache.kv_cache_memory_bytes or 1
        super().__init__(vllm_config, *args, **kwargs)  # with a size given it does not ask for the host's memory
        cache.kv_cache_memory_bytes = self._pinned
        self._load_bytes = 0
        self._meter: Meter | None = None

    def init_device(self) -> None:
        super().init_device()
        assigned = self.parallel_config.assigned_physical_gpu_ids
        index = assigned[self.local_rank] if assigned else self.local_rank
        if not assigned and (visible := os.environ.get("CUDA_VISIBLE_DEVICES")):
            index = int(visible.split(",")[self.local_rank])
        self._index = index
        self._total, self._overhead = _entry("MOTLEY_LAB_DEVICE_BYTES", index), _entry("MOTLEY_LAB_OVERHEAD_BYTES", index) or 0
        seen = devices()
        if self._total is not None and index < len(seen):
            self._require_free(self._total, seen[index]["uuid"])
            self._meter = Meter(seen[index]["uuid"], f"VLLM::Worker_PP{self.rank}")

    def _require_free(self, total: int, uuid: str) -> None:
        fraction = self.cache_config.gpu_memory_utilization
        free, wanted = total - sum(entry["memory"] for entry in processes(uuid)), math.ceil(total * fraction)
        if free < wanted:
            raise ValueError(
                f"Free memory on device cuda:{self._index} ({free / GIB:.4f}/{total / GIB:.4f} GiB) on startup is less than "
                f"desired GPU memory utilization ({fraction}, {wanted / GIB:.4f} GiB). Decrease GPU memory utilization or "
                "reduce GPU memory used by other processes."
            )

    def load_model(self, **kwargs: typing.Any) -> None:
        # On a CPU a packed copy replaces the weights and parameters() comes out empty: keep both, as on a GPU.
        dispatch = layer_utils.dispatch_cpu_unquantized_gemm
        layer_utils.dispatch_cpu_unquantized_gemm = lambda layer, remove_weight: dispatch(layer, remove_weight=False)
        begun = time.perf_counter()
        super().load_model(**kwargs)
        self._load_bytes = self.model_runner.model_memory_usage = held_bytes(self.model_runner.get_model())
        if self._total is not None and self._load_bytes > self._total:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {self._load_bytes / 2**20:.2f} MiB. GPU {self._index} has a total "
                f"capacity of {self._total / GIB:.4f} GiB of which {self._total / GIB:.4f} GiB is free."
            )
        if self._meter:
            self._meter.memory = self._load_bytes + self._overhead
        logger.info("Model loading took %.4f GiB memory and %.6f seconds", self._load_bytes / GIB, time.perf_counter() - begun)

    def determine_available_memory(self) -> int:
        self.model_runner.profile_run()
        if self._pinned is not None or self._total is None:
            return int(self._pinned or super().determine_available_memory())
        size = math.ceil(self._total * self.cache_config.gpu_memory_utilization) - self._load_bytes - self._overhead
        logger.info("Available KV cache memory: %.4f GiB", size / GIB)
        return size

    def initialize_from_config(self, kv_cache_config: typing.Any) -> None:
        super().initialize_from_config(kv_cache_config)
        if self._meter:
            self._meter.memory += sum(tensor.size for tensor in kv_cache_config.kv_cache_tensors)

    def execute_model(self, scheduler_output: typing.Any) -> typing.Any:
        if self._meter is None:
            return super().execute_model(scheduler_output)
        with self._meter.busy():
            return super().execute_model(scheduler_output)
