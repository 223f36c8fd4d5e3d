# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The platform: Ray counts GPUs, float32 for every model, the lab's worker and communicator."""

from __future__ import annotations

import os
import typing

import torch
from vllm.platforms.cpu import CpuPlatform


class LabPlatform(CpuPlatform):
    ray_device_key = "GPU"
    ray_noset_device_env_vars: typing.ClassVar[list[str]] = ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]
    device_control_env_var = "CUDA_VISIBLE_DEVICES"

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        return [torch.float32]  # bf16 takes AMX kernels that crash on some virtual machines

    @classmethod
    def check_and_update_config(cls, vllm_config: typing.Any) -> None:
        if vllm_config.parallel_config.worker_cls == "auto":
            vllm_config.parallel_config.worker_cls = "motley_lab_engine.worker.LabWorker"
        super().check_and_update_config(vllm_config)
        if "MOTLEY_LAB_MP" in os.environ:  # the CPU platform forces "spawn", which imports everything twice
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = os.environ["MOTLEY_LAB_MP"]

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return "motley_lab_engine.communicator.LabCommunicator"
