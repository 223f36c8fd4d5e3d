# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan's memory against measured engine starts."""

from __future__ import annotations

import planner_starts as starts
import pytest
from ansible_collections.motley.inference.plugins.module_utils.planner import plan


def _workers(start: starts.Start) -> tuple[dict, list[dict]]:
    response = plan(starts.request(start))
    assert response["feasible"], response["explanation"]
    return response, [w for stage in response["stages"] for w in stage["workers"]]


@pytest.mark.parametrize("start", starts.EXACT, ids=lambda s: s.id)
def test_weights_of_each_rank(start: starts.Start) -> None:
    _, workers = _workers(start)
    assert [w["weights_bytes"] for w in workers] == [pytest.approx(load, rel=start.within) for load in start.load]


@pytest.mark.parametrize("start", starts.EXACT, ids=lambda s: s.id)
def test_kv_pool(start: starts.Start) -> None:
    response, _ = _workers(start)
    assert response["kv_blocks"] == pytest.approx(start.blocks, rel=0.02)
    assert response["kv_tokens"] == pytest.approx(start.tokens, rel=0.02)


@pytest.mark.parametrize("start", starts.ROUNDED, ids=lambda s: s.id)
def test_starts_known_in_hundredths_of_a_gib(start: starts.Start) -> None:
    response, workers = _workers(start)
    assert [w["weights_gib"] for w in workers] == [pytest.approx(load, abs=0.006 + 0.002 * load) for load in start.load_gib]
    assert response["kv_tokens"] == pytest.approx(start.tokens, rel=0.02)


def test_a_split_that_the_engine_refused_is_infeasible() -> None:
    response = plan(starts.request(starts.REFUSED))
    assert not response["feasible"]
    assert any("stage 0" in reason for reason in response["reasons"])
