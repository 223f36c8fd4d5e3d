# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""CPU ranks take shared memory whenever their group names are equal, also across nodes: ask the host name too."""

from __future__ import annotations

import socket

import torch
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator


class LabCommunicator(CpuCommunicator):
    def _all_group_ranks_share_shm_group_name(self) -> bool:
        names = [""] * self.world_size
        torch.distributed.all_gather_object(names, socket.gethostname(), group=self.device_group)
        return len(set(names)) == 1 and bool(super()._all_group_ranks_share_shm_group_name())
