# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of vLLM release lines."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.motley.inference.plugins.module_utils.engine import versions
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.planner.lines import node_order
from ansible_collections.motley.inference.plugins.module_utils.planner.request import layers_by_node


@pytest.mark.parametrize(
    ("version", "generation", "rule", "nccl", "fraction", "ray", "nodes", "cuda"),
    [
        ("0.10.1.1", 1, "address", "not_copied", 0.9, True, False, "12.9"),
        ("0.17.0", 1, "address", "driver_overwrites", 0.9, True, True, "12.9"),
        ("v0.17.1", 1, "address", "driver_overwrites", 0.9, True, True, "12.9"),
        ("0.18.0", 1, "address", "driver_overwrites", 0.9, False, True, "12.9"),
        ("0.20.2", 1, "address", "driver_overwrites", 0.92, False, True, "13.0"),
        ("0.21.0", 2, "node_id", "node_wins", 0.92, False, True, "13.0"),
        ("0.32.0+cpu", 2, "node_id", "node_wins", 0.92, False, True, "13.0"),
        ("0.40.0", 2, "node_id", "node_wins", 0.92, False, True, "13.0"),
    ],
)
def test_rows(version: str, generation: int, rule: str, nccl: str, fraction: float, ray: bool, nodes: bool, cuda: str) -> None:
    row = versions.row(version)
    assert (row.generation, row.rank_rule, row.nccl_rule, row.default_fraction) == (generation, rule, nccl, fraction)
    assert (row.ray_inside, row.nodes_option, row.cuda) == (ray, nodes, cuda)
    assert row.source


def test_rows_are_in_order_and_each_has_a_source() -> None:
    firsts = [row.first for row in versions.ROWS]
    assert firsts == sorted(set(firsts))
    assert all(row.source and row.label for row in versions.ROWS)


@pytest.mark.parametrize("version", ["", "latest", "0", "v", "1.x"])
def test_no_version(version: str) -> None:
    with pytest.raises(MotleyError):
        versions.row(version)


def test_versions_by_default_suit_their_launcher() -> None:
    assert versions.row(versions.DEFAULT_VERSION["ray"]).ray_inside
    assert versions.row(versions.DEFAULT_VERSION["native"]).nodes_option


# (name, address, workers): the engine node first; V1: fewer workers, then the address as text; V2: the pinned order of addresses
@pytest.mark.parametrize(
    ("rule", "engine", "expected"),
    [
        ("address", "a", ["a", "d", "c", "b"]),
        ("address", "c", ["c", "a", "d", "b"]),
        ("address", "b", ["b", "a", "d", "c"]),
        ("node_id", "b", ["b", "a", "d", "c"]),
        ("node_id", "a", ["a", "d", "b", "c"]),
    ],
)
def test_rank_order(rule: str, engine: str, expected: list[str]) -> None:
    nodes = [("a", "10.0.0.10", 1), ("b", "10.0.0.20", 2), ("c", "10.0.0.9", 1), ("d", "10.0.0.11", 1)]
    assert node_order(nodes, engine, rule) == expected


def test_layers_by_node() -> None:
    nodes: list[dict[str, Any]] = [
        {"name": "x86-01", "address": "10.0.0.20", "devices": ["rtx4090", "rtx4090"], "engine": True},
        {"name": "spark-01", "address": "10.0.0.10", "devices": ["gb10"]},
    ]
    assert layers_by_node({"spark-01": 25, "x86-01": [2, 1]}, nodes, versions.row("0.17.0")) == {
        "partition": [2, 1, 25],
        "ranks": [{"node": "x86-01", "device": 0}, {"node": "x86-01", "device": 1}, {"node": "spark-01", "device": 0}],
        "engine_node": "x86-01",
    }
    assert layers_by_node({"spark-01": 25, "x86-01": 3}, nodes, versions.row("0.17.0"), engine="spark-01")["partition"] == [25, 3]
