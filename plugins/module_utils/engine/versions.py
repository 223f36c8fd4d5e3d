# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each vLLM release line does, one row each: a new release is a new row, not a new `if`."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError

RankRule = Literal["address", "node_id"]


class EngineRow(NamedTuple):
    """One release line of vLLM."""

    first: tuple[int, int]  # first minor release of the line
    label: str
    executor: str  # class that Ray's launcher uses
    generation: Literal[1, 2]
    rank_rule: RankRule  # how nodes other than the engine node are ordered under Ray
    # Which of the driver's variables reach the workers, and whether they replace what the node has.
    partition_channel: Literal["driver_copies", "driver_environment"]
    nccl_rule: Literal["not_copied", "driver_overwrites", "node_wins"]
    default_fraction: float
    graphs_reserved: bool  # CUDA graphs are taken off the KV pool by an estimate
    nodes_option: bool  # has --nnodes and --node-rank: the native launcher
    ray_inside: bool  # the published image holds Ray
    minimum_ray: str
    cuda: str  # of the plain image tag
    source: str


ROWS: tuple[EngineRow, ...] = (
    EngineRow(
        (0, 10), "0.10 to 0.16", "RayDistributedExecutor", 1, "address", "driver_copies", "not_copied", 0.9, False, False, True,
        "2.48.0", "12.9", "code of 0.10.1.1: copies the names of its own table and the hub's tokens only; no --nnodes",
    ),
    EngineRow(
        (0, 17), "0.17", "RayDistributedExecutor", 1, "address", "driver_copies", "driver_overwrites", 0.9, False, True, True,
        "2.48.0", "12.9", "code and metadata of 0.17.0: requires ray[cgraph]>=2.48; NCCL_ names are copied over the node's own",
    ),
    EngineRow(
        (0, 18), "0.18 to 0.19", "RayDistributedExecutor", 1, "address", "driver_copies", "driver_overwrites", 0.9, False, True, False,
        "2.48.0", "12.9", "metadata of 0.18.0 and 0.19.0: Ray is no longer a dependency",
    ),
    EngineRow(
        (0, 20), "0.20", "RayDistributedExecutor", 1, "address", "driver_copies", "driver_overwrites", 0.92, False, True, False,
        "2.48.0", "13.0", "code of 0.20.2: default fraction 0.92; CUDA 13 under the plain tag since 0.20.0",
    ),
    EngineRow(
        (0, 21), "0.21 to 0.32", "RayExecutorV2", 2, "node_id", "driver_environment", "node_wins", 0.92, True, True, False,
        "2.48.0", "13.0", "code of 0.21.0, 0.22.0 and 0.32.0: VLLM_USE_RAY_V2_EXECUTOR_BACKEND is 1 by default; 0.32.0 run with Ray 2.60.0",
    ),
)  # fmt: skip
NEWEST = (0, 32)
# By launcher: the newest release whose published image holds Ray (both architectures), and the newest of all.
DEFAULT_VERSION: dict[str, str] = {"ray": "0.17.1", "native": "0.32.0"}
BLOCK_SIZE: dict[str, int] = {"cuda": 16, "cpu": 128}  # tokens a block, by backend; cpu: vLLM 0.32.0's CPU platform


def parse(version: str) -> tuple[int, int, int]:
    """Numbers of a release, with or without a leading v and a local suffix."""
    match = re.fullmatch(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:[.\-+a-zA-Z].*)?", version.strip())
    if not match:
        raise MotleyError(f"{version!r} is not a vLLM version", hint="write it like 0.32.0")
    return int(match[1]), int(match[2]), int(match[3] or 0)


def row(version: str) -> EngineRow:
    """The row of a release; releases after the newest one known share its row."""
    numbers = parse(version)[:2]
    if numbers < ROWS[0].first:
        raise MotleyError(f"vLLM {version} is too old: uneven pipeline stages were checked from 0.10 on", hint="use 0.17.1 or later")
    return next(r for r in reversed(ROWS) if numbers >= r.first)


def is_newer_than_known(version: str) -> bool:
    """A release that nobody has looked at yet."""
    return parse(version)[:2] > NEWEST
