# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The best layer partition of one line of stages, exactly.

Two figures decide: the time of a token through all stages (a sum), and the slowest stage (a maximum). Memory bounds the
layers of each stage from above for a wanted number of KV blocks. So, for each number of requests served at once and each
bound on the slowest stage, the least sum is found, and both bounds are lowered only as far as that can still win.
Where layers cost the same, the least sum is a greedy fill of the fastest stages; otherwise it is a dynamic programme over
layer boundaries that keeps every pair of sums not worse in both.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeVar

from ansible_collections.motley.inference.plugins.module_utils.planner import memory, timing
from ansible_collections.motley.inference.plugins.module_utils.planner.device import Link
from ansible_collections.motley.inference.plugins.module_utils.planner.model import ModelFacts, WeightTable

Objective = Literal["balanced", "latency", "throughput", "capacity"]
EPSILON = 1e-9  # relative: scores closer than this are equal
INFINITE = float("inf")
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True)
class Stage:
    """One stage before it has layers."""

    room: int  # bytes for layers and KV cache on its tightest worker, embedding, head and rope cache already taken off
    rate: float  # bytes a second of its slowest worker
    group: Link | None  # the slowest link inside its tensor group


@dataclass(frozen=True)
class Score:
    """What a partition gives."""

    single: float  # tokens a second of a lone stream
    throughput: float  # tokens a second at the workload's concurrency
    blocks: int
    tokens: int
    served: int

    def value(self, objective: Objective) -> float:
        """The figure that the objective compares."""
        match objective:
            case "latency":
                return self.single
            case "throughput":
                return self.throughput
            case "capacity":
                return float(self.blocks)
            case _:
                return math.sqrt(self.single * self.throughput)


@dataclass(frozen=True)
class Line:
    """Stages in rank order with everything that a partition of the model over them depends on."""

    model: ModelFacts
    tables: tuple[WeightTable, ...]  # one per stage
    settings: memory.EngineSettings
    workload: timing.Workload
    tensor: int
    stages: tuple[Stage, ...]
    hops: tuple[Link, ...]  # from each stage to the next
    home: Link | None  # from the last stage to the engine, None if it is on the engine node

    # -- memory ---------------------------------------------------------------------------------------------------------

    @cached_property
    def page(self) -> int:
        """Bytes of one page: a block of one layer."""
        return memory.block_bytes(self.model, self.settings, self.tensor, 1)

    @cached_property
    def need(self) -> int:
        """Blocks without which the engine does not start."""
        return memory.needed_blocks(self.model, self.settings, len(self.stages))

    @cached_property
    def blocks_per_request(self) -> int:
        return memory.blocks_per_request(self.model, self.settings, max(1, self.workload.request_tokens), len(self.stages))

    @cached_property
    def uniform(self) -> bool:
        """All layers cost the same, in weights and in KV cache."""
        return len(self.model.kinds) == 1 and len(self.model.kv_groups) == 1

    @cached_property
    def load_prefix(self) -> tuple[list[int], ...]:
        """Weights of the first n layers, by stage."""
        known: dict[int, list[int]] = {}
        for table in self.tables:
            if id(table) not in known:
                known[id(table)] = _prefix([table.kinds[k].load for k in self.model.kind_of])
        return tuple(known[id(table)] for table in self.tables)

    @cached_property
    def group_prefix(self) -> list[list[int]]:
        """How many of the first n layers are in each KV group."""
        out = []
        for group in self.model.kv_groups:
            held = set(group.layers)
            out.append(_prefix([int(i in held) for i in range(self.model.layers)]))
        return out

    def pages(self, start: int, stop: int) -> int:
        """Pages that one block costs on a stage of these layers."""
        if len(self.model.kv_groups) == 1:
            return stop - start
        return max(p[stop] - p[start] for p in self.group_prefix)

    def waste(self, stage: int, layers: int) -> int:
        table = self.tables[stage].rope_waste
        return table[min(layers, len(table) - 1)]

    def free(self, stage: int, start: int, stop: int) -> int:
        """Bytes for the KV cache on the tightest worker of a stage."""
        if self.uniform:
            weights = (stop - start) * self.tables[stage].kinds[0].load
            return self.stages[stage].room - weights - self.waste(stage, stop - start)
        prefix = self.load_prefix[stage]
        return self.stages[stage].room - (prefix[stop] - prefix[start]) - self.waste(stage, stop - start)

    def blocks(self, stage: int, start: int, stop: int) -> int:
        """Blocks that a stage of these layers holds; below zero if not even the weights fit."""
        free = self.free(stage, start, stop)
        return free // (self.pages(start, stop) * self.page) if free > 0 else (-1 if free < 0 else 0)

    # -- time -----------------------------------------------------------------------------------------------------------

    def cost(self, batch: float) -> _Times:
        """Seconds per layer and stage for a micro-batch of this size."""
        known = self._times.get(batch)
        if known is None:
            known = self._times[batch] = self._cost(batch)
        return known

    @cached_property
    def _times(self) -> dict[float, _Times]:
        return {}

    def _cost(self, batch: float) -> _Times:
        rows, edges = [], []
        known: dict[int, timing.BatchCost] = {}
        for index, (stage, table) in enumerate(zip(self.stages, self.tables, strict=True)):
            if id(table) not in known:
                known[id(table)] = timing.batch_cost(self.model, table, self.workload, self.tensor, batch)
            read = known[id(table)]
            reduce = timing.all_reduce(self.model, stage.group, self.tensor, batch)
            rows.append(tuple(size / stage.rate + reduce for size in read.layers))
            edges.append(read.head / stage.rate if index == len(self.stages) - 1 else 0.0)
        way = sum(timing.activation_hop(self.model, hop, batch) for hop in self.hops) + timing.return_hop(self.home)
        return _Times(tuple(rows), tuple(edges), way, self.model.kind_of)

    # -- score ----------------------------------------------------------------------------------------------------------

    def served(self, blocks: int) -> int:
        """Requests that run at once with a pool of this many blocks."""
        return max(1, min(self.workload.concurrency, self.settings.max_num_seqs, (blocks - 1) // self.blocks_per_request))

    def score(self, partition: Sequence[int]) -> Score | None:
        """What this partition gives, or None if it does not start."""
        bounds = _prefix(partition)
        blocks = min(self.blocks(s, bounds[s], bounds[s + 1]) for s in range(len(self.stages)))
        if blocks < self.need:
            return None
        served = self.served(blocks)
        tokens = memory.pool_tokens(self.model, self.settings, blocks, len(self.stages))
        return Score(1.0 / sum(self.times(bounds, 1.0)), served / self.period(bounds, served), blocks, tokens, served)

    def times(self, bounds: Sequence[int], batch: float) -> list[float]:
        """Seconds of each stage, and of the way between them as the last entry."""
        cost = self.cost(batch)
        return [cost.stage(s, bounds[s], bounds[s + 1]) for s in range(len(self.stages))] + [cost.way]

    def period(self, bounds: Sequence[int], served: int) -> float:
        """Seconds in which each of the served requests gets one token."""
        flights = timing.micro_batches(len(self.stages), served)
        times = self.times(bounds, served / flights)
        return max(sum(times), flights * max(times[:-1]))


class _Times:
    """Seconds per layer by stage and kind, of the head by stage, and of the way between stages."""

    def __init__(self, rows: tuple[tuple[float, ...], ...], edges: tuple[float, ...], way: float, kind_of: tuple[int, ...]) -> None:
        self.rows, self.edges, self.way, self._kind_of = rows, edges, way, kind_of
        self._prefix: dict[tuple[float, ...], list[float]] = {}

    def prefix(self, stage: int) -> list[float]:
        row = self.rows[stage]
        if row not in self._prefix:
            self._prefix[row] = _prefix([row[k] for k in self._kind_of])
        return self._prefix[row]

    def stage(self, stage: int, start: int, stop: int) -> float:
        row = self.rows[stage]
        if len(row) == 1:
            return row[0] * (stop - start) + self.edges[stage]
        prefix = self.prefix(stage)
        return prefix[stop] - prefix[start] + self.edges[stage]


def _prefix(values: Sequence[_Number]) -> list[_Number]:
    total: _Number = values[0] * 0 if values else 0
    out = [total]
    for value in values:
        total = total + value
        out.append(total)
    return out


# --------------------------------------------------------------------------------------------------------- least sums


def _memory_caps(line: Line, blocks: int) -> list[int]:
    """Most layers of each stage that leave room for this many blocks; layers of equal cost only."""
    out = []
    for index, stage in enumerate(line.stages):
        table = line.tables[index]
        weight, tail = table.kinds[0].load, len(table.rope_waste) - 1
        count = max(0, (stage.room - table.rope_waste[-1]) // (weight + blocks * line.page))
        if count < tail:
            count = max((n for n in range(1, tail) if line.free(index, 0, n) >= blocks * n * line.page), default=0)
        out.append(min(count, line.model.layers))
    return out


def _time_caps(line: Line, caps: Sequence[int], batch: float, bound: float) -> list[int]:
    """The caps lowered so that no stage takes as long as the bound."""
    cost = line.cost(batch)
    out = []
    for index, cap in enumerate(caps):
        each, edge = cost.rows[index][0], cost.edges[index]
        count = min(cap, int((bound - edge) / each) + 1) if each > 0 and bound > edge else (cap if each <= 0 else 0)
        while count > 0 and each * count + edge >= bound * (1 - 1e-12):
            count -= 1
        out.append(count)
    return out


def _greedy(line: Line, caps: Sequence[int], order: Sequence[int]) -> list[tuple[int, ...]]:
    """One layer each, the rest to the fastest stages as far as their caps go."""
    left = line.model.layers - len(caps)
    if left < 0 or min(caps) < 1 or sum(caps) < line.model.layers:
        return []
    out = [1] * len(caps)
    for index in order:
        more = min(left, caps[index] - 1)
        out[index] += more
        left -= more
        if not left:
            break
    return [tuple(out)]


@dataclass(frozen=True)
class _Label:
    """One way to hold the first layers on the first stages."""

    first: float  # sum at a batch of one
    second: float  # sum at the workload's batch
    start: int
    before: _Label | None


def _windows(line: Line, blocks: int, batch: float, bound: float) -> list[list[int]]:
    """For each stage and first layer, one past the last layer that memory and the bound allow."""
    layers, cost = line.model.layers, line.cost(batch)
    out: list[list[int]] = []
    known: dict[tuple[object, ...], list[int]] = {}
    for index, stage in enumerate(line.stages):
        key = (stage.room, line.tables[index], cost.rows[index], cost.edges[index])
        if key not in known:
            row, stop = [], 0
            for start in range(layers):
                stop = max(stop, start)
                while stop < layers and _fits(line, index, start, stop + 1, blocks) and cost.stage(index, start, stop + 1) < bound * (1 - 1e-12):
                    stop += 1
                row.append(stop)
            known[key] = row
        out.append(known[key])
    return out


def _fits(line: Line, stage: int, start: int, stop: int, blocks: int) -> bool:
    return line.free(stage, start, stop) >= blocks * line.pages(start, stop) * line.page


def _programme(line: Line, windows: Sequence[Sequence[int]], batch: float, objective: Objective) -> list[tuple[int, ...]]:
    """All partitions whose two sums are not both worse than another's (for one sum only: the best)."""
    layers, count = line.model.layers, len(line.stages)
    one, many = line.cost(1.0), line.cost(batch)
    front: list[list[_Label]] = [[] for index in range(layers + 1)]
    front[0] = [_Label(0.0, 0.0, 0, None)]
    for stage in range(count):
        following: list[list[_Label]] = [[] for index in range(layers + 1)]
        for start, labels in enumerate(front[:layers]):
            if not labels:
                continue
            for stop in range(start + 1, min(windows[stage][start], layers - (count - 1 - stage)) + 1):
                first, second = one.stage(stage, start, stop), many.stage(stage, start, stop)
                following[stop] += [_Label(b.first + first, b.second + second, start, b) for b in labels]
        front = [_undominated(labels, objective) for labels in following]
    return [_trace(label, layers) for label in front[layers]]


def _undominated(labels: list[_Label], objective: Objective) -> list[_Label]:
    if len(labels) < 2:
        return labels
    if objective == "throughput":
        return [min(labels, key=lambda b: b.second)]
    labels.sort(key=lambda b: (b.first, b.second))
    if objective != "balanced":
        return labels[:1]
    out = [labels[0]]
    for label in labels[1:]:
        if label.second < out[-1].second * (1 - 1e-12):
            out.append(label)
    return out


def _trace(label: _Label, stop: int) -> tuple[int, ...]:
    out: list[int] = []
    step: _Label | None = label
    while step is not None and step.before is not None:
        out.append(stop - step.start)
        stop, step = step.start, step.before
    return tuple(reversed(out))


# -------------------------------------------------------------------------------------------------------------- search


@dataclass
class _Best:
    value: float = -INFINITE
    partition: tuple[int, ...] = ()
    score: Score | None = None

    def offer(self, line: Line, partition: tuple[int, ...], objective: Objective) -> None:
        score = line.score(partition)
        if score is None:
            return
        value = score.value(objective)
        if value > self.value * (1 + EPSILON) or (self.score and value >= self.value * (1 - EPSILON) and score.blocks > self.score.blocks):
            self.value, self.partition, self.score = max(value, self.value), partition, score


class _Fill:
    """Least-sum partitions of a line under bounds on blocks and on the slowest stage."""

    def __init__(self, line: Line, objective: Objective) -> None:
        self.line, self.objective = line, objective

    def order(self, batch: float) -> list[int] | None:
        """Stages from fast to slow, if that is one order at both batch sizes (or only one counts); None else."""
        one, many = self.line.cost(1.0).rows, self.line.cost(batch).rows
        if self.objective == "throughput":
            return sorted(range(len(many)), key=lambda s: many[s])
        order = sorted(range(len(one)), key=lambda s: (one[s], many[s]))
        if self.objective != "balanced":
            return order
        return order if all(many[a] <= many[b] for a, b in itertools.pairwise(order)) else None

    def partitions(self, blocks: int, batch: float, bound: float) -> list[tuple[int, ...]]:
        line = self.line
        if line.uniform:
            caps = _memory_caps(line, blocks)
            caps = _time_caps(line, caps, batch, bound) if bound < INFINITE else caps
            order = self.order(batch)
            if order is not None:
                return _greedy(line, caps, order)
            windows = [[min(line.model.layers, start + cap) for start in range(line.model.layers)] for cap in caps]
        else:
            windows = _windows(line, blocks, batch, bound)
        return _programme(line, windows, batch, self.objective)

    def feasible(self, blocks: int) -> bool:
        """Some partition leaves room for this many blocks on each stage."""
        line = self.line
        if line.model.layers < len(line.stages):
            return False
        if line.uniform:
            caps = _memory_caps(line, blocks)
            return min(caps) >= 1 and sum(caps) >= line.model.layers
        windows, at = _windows(line, blocks, 1.0, INFINITE), 0
        for index, row in enumerate(windows):
            if at >= line.model.layers or row[at] <= at:
                return False
            at = min(row[at], line.model.layers - (len(windows) - 1 - index))
        return at >= line.model.layers


def most_blocks(line: Line) -> int:
    """The largest KV pool that any partition of this line gives; 0 if none starts."""
    fill = _Fill(line, "capacity")
    if not fill.feasible(line.need):
        return 0
    low, high = line.need, max([line.need, *(s.room // line.page for s in line.stages)]) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fill.feasible(middle) else (low, middle)
    return low


def solve(line: Line, objective: Objective, *, beat: float = -INFINITE, polish: bool = False) -> tuple[tuple[int, ...], Score] | None:
    """The best partition of a line, or None if none starts (or none can beat the value given).

    polish: among partitions of equal value, look for the largest KV pool too.
    """
    if line.model.layers < len(line.stages) or not _promising(line, objective, beat):
        return None
    best = _Best(value=beat)
    _search(line, objective, line.need, best)
    if best.score is None:
        return None
    if polish:
        _polish(line, objective, best, best.score)
    return best.partition, best.score


def _promising(line: Line, objective: Objective, beat: float) -> bool:
    """Quickly: some partition starts, and for all that is known without searching it may beat the value."""
    fill = _Fill(line, objective)
    if objective == "capacity" or beat == -INFINITE:
        return fill.feasible(line.need)
    most = max(1, min(line.workload.concurrency, line.settings.max_num_seqs))
    ceiling = _ceiling(line, fill, most, line.need)
    return ceiling > beat * (1 + EPSILON)


def _polish(line: Line, objective: Objective, best: _Best, score: Score) -> None:
    """Raise the KV pool as far as the value stays."""
    low, high = score.blocks, most_blocks(line) + 1
    while high - low > 1:
        middle = (low + high) // 2
        trial = _Best()
        _search(line, objective, middle, trial)
        if trial.score is not None and trial.value >= best.value * (1 - EPSILON):
            best.partition, best.score, low = trial.partition, trial.score, trial.score.blocks
        else:
            high = middle


def _search(line: Line, objective: Objective, floor: int, best: _Best) -> None:
    """Offer the best partition with at least `floor` blocks."""
    fill = _Fill(line, objective)
    if objective == "latency":
        for partition in fill.partitions(floor, 1.0, INFINITE):
            best.offer(line, partition, objective)
        return
    if objective == "capacity":
        pool = most_blocks(line)
        for partition in fill.partitions(max(floor, pool), 1.0, INFINITE) if pool else []:
            best.offer(line, partition, objective)
        return
    for served, blocks in _levels(line, fill, floor):
        if not _descend(line, fill, served, blocks, floor, best):
            return


def _levels(line: Line, fill: _Fill, floor: int) -> Iterator[tuple[int, int]]:
    """Numbers of requests served at once, from the most that is possible downwards, with the blocks that each needs."""
    most = max(1, min(line.workload.concurrency, line.settings.max_num_seqs))
    low, high = 1, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fill.feasible(max(floor, middle * line.blocks_per_request + 1)) else (low, middle)
    for served in range(low, 0, -1):
        blocks = max(floor, served * line.blocks_per_request + 1)
        yield served, blocks
        if blocks == floor:
            return


def _descend(line: Line, fill: _Fill, served: int, blocks: int, floor: int, best: _Best) -> bool:
    """Lower the bound on the slowest stage step by step; False when fewer requests cannot win either."""
    objective, flights = fill.objective, timing.micro_batches(len(line.stages), served)
    batch = served / flights
    relaxed = _ceiling(line, fill, served, floor)
    if relaxed <= best.value * (1 + EPSILON):
        return False
    bound = INFINITE
    while True:
        found = fill.partitions(blocks, batch, bound)
        if not found:
            return True
        sums, slowest = [], 0.0
        for partition in found:
            best.offer(line, partition, objective)
            bounds = _prefix(partition)
            times = line.times(bounds, batch)
            sums.append((sum(line.times(bounds, 1.0)), sum(times), max(times[:-1])))
            slowest = max(slowest, sums[-1][2])
        if all(entry[1] >= flights * entry[2] for entry in sums):
            return True
        ceiling = value(objective, min(s[0] for s in sums), served / min(s[1] for s in sums))
        if ceiling <= best.value * (1 + EPSILON):
            return True
        bound = slowest


def _ceiling(line: Line, fill: _Fill, served: int, floor: int) -> float:
    """A value that no partition with this many requests served can exceed; below all values if none starts."""
    flights = timing.micro_batches(len(line.stages), served)
    batch = served / flights
    found = fill.partitions(floor, batch, INFINITE)
    if not found:
        return -INFINITE
    bounds = [_prefix(p) for p in found]
    first = min(sum(line.times(b, 1.0)) for b in bounds) if fill.objective != "throughput" else 1.0
    if fill.objective == "latency":
        return 1.0 / first
    second = min(sum(line.times(b, batch)) for b in bounds)
    slowest = _least_slowest(line, batch) if line.uniform else 0.0
    return value(fill.objective, first, served / max(second, flights * slowest))


def _least_slowest(line: Line, batch: float) -> float:
    """Seconds of the slowest stage, were layers divisible and memory no matter."""
    cost = line.cost(batch)
    speed = sum(1.0 / row[0] for row in cost.rows)
    return (line.model.layers + sum(edge / row[0] for row, edge in zip(cost.rows, cost.edges, strict=True))) / speed


def value(objective: Objective, single_seconds: float, throughput: float) -> float:
    return Score(1.0 / single_seconds, throughput, 0, 0, 0).value(objective)
