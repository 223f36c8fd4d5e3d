# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan against the log of its start: predicted and logged memory of each worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.motley.inference.plugins.module_utils.engine import logs
from ansible_collections.motley.inference.plugins.module_utils.planner.device import GIB

Row = dict[str, Any]


def compare(plan: Mapping[str, Any], log: str) -> list[Row]:
    """One row per worker and figure that the log shows: rank, node, figure, predicted, logged, difference (a share of the logged).

    Evidence: the stage reporter's lines, exact, by rank; else the engine's own lines, to which the writer's prefix gives a rank.
    """
    workers = [w | {"stage": stage["rank"]} for stage in plan["stages"] for w in stage["workers"]]
    out = _exact(workers, logs.stages(log))
    out = out or _rounded(workers, log)
    cache = logs.kv_cache(log)
    if cache.tokens is not None:
        out.append(_row(None, "kv_tokens", plan["kv_tokens"], cache.tokens))
    return out


def _row(worker: Mapping[str, Any] | None, figure: str, predicted: float, logged: float) -> Row:
    place = {"rank": worker["rank"], "node": worker["node"]} if worker else {"rank": None, "node": None}
    return {**place, "figure": figure, "predicted": predicted, "logged": logged, "difference": round(predicted / logged - 1, 5) if logged else None}


def _exact(workers: list[Row], seen: Mapping[int, logs.Stage]) -> list[Row]:
    out = []
    for worker in workers:
        stage = seen.get(worker["rank"])
        if stage is None:
            continue
        if stage.loaded_bytes:
            out.append(_row(worker, "weights_gib", worker["weights_gib"], round(stage.loaded_bytes / GIB, 6)))
        if stage.kv_blocks is not None:
            out.append(_row(worker, "kv_blocks", min(w["kv_blocks"] for w in workers), stage.kv_blocks))
    return out


def _rounded(workers: list[Row], log: str) -> list[Row]:
    out = []
    for line in logs.model_loading(log):
        worker = _worker(workers, line.writer)
        if worker:
            out.append(_row(worker, "weights_gib", worker["weights_gib"], line.gib))
    for writer, gib in logs.kv_cache(log).available:
        worker = _worker(workers, writer)
        if worker:
            out.append(_row(worker, "kv_gib", worker["kv_gib"], gib))
    return out


def _worker(workers: list[Row], writer: logs.Writer) -> Row | None:
    """The worker that a line's prefix names; a size of one is not printed, so an absent part is 0."""
    if len(workers) == 1:
        return workers[0]
    if writer.pp_rank is None and writer.tp_rank is None:
        return None
    wanted = (writer.pp_rank or 0, writer.tp_rank or 0)
    return next((w for w in workers if (w["stage"], w["tensor_rank"]) == wanted), None)
