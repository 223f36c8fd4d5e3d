# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All lines of devices that a launcher can place, and the best of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ansible_collections.motley.inference.plugins.module_utils.engine.versions import EngineRow
from ansible_collections.motley.inference.plugins.module_utils.planner import memory, partition, timing
from ansible_collections.motley.inference.plugins.module_utils.planner.device import Cluster, Device, Link, Node
from ansible_collections.motley.inference.plugins.module_utils.planner.model import ModelFacts, tensor_refusal, weight_table
from ansible_collections.motley.inference.plugins.module_utils.planner.partition import Line, Objective, Score, Stage


@dataclass(frozen=True)
class Setting:
    """All that the search is told, apart from devices."""

    model: ModelFacts
    cluster: Cluster
    row: EngineRow
    launcher: str
    backend: str
    workload: timing.Workload
    objective: Objective
    max_model_len: int
    block_size: int
    fraction: float | None = None  # the operator's; None: the largest safe one
    default_fraction: float = 0.9
    pipeline: int | None = None
    tensor: int | None = None
    partition: tuple[int, ...] | None = None
    engine_node: str | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    enforce_eager: bool | None = None
    batching: tuple[tuple[Device, int, int], ...] = field(default=())


@dataclass(frozen=True)
class Found:
    """One placement with its score."""

    devices: tuple[Device, ...]  # in rank order
    tensor: int
    layers: tuple[int, ...]
    fraction: float
    line: Line
    score: Score

    @property
    def pipeline(self) -> int:
        return len(self.layers)

    @property
    def engine_node(self) -> str:
        return self.devices[0].node


# ----------------------------------------------------------------------------------------------------------- rank order


def node_order(nodes: Sequence[tuple[str, str, int]], engine: str, rule: str) -> list[str]:
    """Names in rank order: nodes are (name, address, workers).

    Ray, V1 executor: the engine node, then nodes with fewer workers, then by address as text. V2 orders the others by node
    ids, which are random unless they are pinned: Motley writes the order of addresses and pins it.
    """

    def key(node: tuple[str, str, int]) -> tuple[int, int, str]:
        name, address, workers = node
        if rule == "address":
            return (0 if name == engine else 1, 0 if name == engine else workers, address)
        return (0 if name == engine else 1, 0, address)

    return [name for name, _, _ in sorted(nodes, key=key)]


def subsets(node: Node) -> list[tuple[Device, ...]]:
    """Ways to use devices of a node that differ in kind, in index order; the unused node first."""
    seen: dict[tuple[object, ...], tuple[Device, ...]] = {}
    for count in range(len(node.devices) + 1):
        for chosen in itertools.combinations(node.devices, count):
            seen.setdefault(tuple(d.kind for d in chosen), chosen)
    return list(seen.values())


def placements(setting: Setting, devices: Sequence[Device] | None = None) -> Iterator[tuple[Device, ...]]:
    """All lines of devices in rank order that the launcher can make, fewest devices first."""
    allowed = None if devices is None else set(devices)
    choices = []
    for node in setting.cluster.nodes:
        options = [s for s in subsets(node) if allowed is None or allowed.issuperset(s)]
        choices.append(options)
    combinations = sorted(itertools.product(*choices), key=lambda c: sum(len(s) for s in c))
    for combination in combinations:
        yield from _orders(setting, {s[0].node: s for s in combination if s})


def _orders(setting: Setting, used: dict[str, tuple[Device, ...]]) -> Iterator[tuple[Device, ...]]:
    engines = [setting.engine_node] if setting.engine_node else list(used)
    for engine in engines:
        if engine not in used:
            continue
        if setting.launcher == "native":
            others = [n for n in used if n != engine]
            for order in itertools.permutations(others):
                yield tuple(d for name in (engine, *order) for d in used[name])
        else:
            rows = [(n, setting.cluster.node(n).address, len(used[n])) for n in used]
            yield tuple(d for name in node_order(rows, engine, setting.row.rank_rule) for d in used[name])


# ----------------------------------------------------------------------------------------------------------------- lines


def engine_settings(setting: Setting) -> memory.EngineSettings:
    """The flags for a line: what the operator gave, else sizes that suit small cards."""
    tokens = setting.max_num_batched_tokens or min(2048, max(setting.max_model_len, 256))
    seqs = setting.max_num_seqs or min(256, max(32, 2 * setting.workload.concurrency))
    return memory.EngineSettings(
        backend=setting.backend,
        block_size=setting.block_size,
        max_model_len=setting.max_model_len,
        max_num_batched_tokens=max(tokens, seqs),
        max_num_seqs=seqs,
        enforce_eager=setting.backend == "cpu" or bool(setting.enforce_eager),
        graphs_reserved=setting.row.graphs_reserved,
    )


def safe_fraction(setting: Setting, devices: Sequence[Device]) -> float:
    """The one fraction for all ranks: the operator's, else the default as far as every device has that much free."""
    if setting.fraction is not None:
        return setting.fraction
    return min([setting.default_fraction, *(d.safe_fraction for d in devices)])


def make_line(setting: Setting, devices: Sequence[Device], tensor: int, fraction: float) -> Line:
    """The line of stages for these devices in rank order."""
    model, settings = setting.model, engine_settings(setting)
    groups = [tuple(devices[i : i + tensor]) for i in range(0, len(devices), tensor)]
    cuda = setting.backend == "cuda"
    tables = tuple(weight_table(model, tensor, cuda, group[0].capability) for group in groups)
    stages = []
    for index, (group, table) in enumerate(zip(groups, tables, strict=True)):
        first, last = index == 0, index == len(groups) - 1
        fixed = table.rope + memory.edge_bytes(model, table, first=first, last=last)
        room = min(
            memory.requested(d, fraction) - sum(r.bytes for r in memory.reserves(model, d, settings, tensor=tensor, world=len(devices), last=last))
            for d in group
        )
        stages.append(Stage(room - fixed, min(d.bandwidth for d in group), _slowest(setting.cluster, group)))
    hops = tuple(
        min((setting.cluster.link(a, b) for a, b in zip(one, other, strict=True)), key=lambda link: (link.gbs, -link.rtt_us))
        for one, other in itertools.pairwise(groups)
    )
    home = None if groups[-1][0].node == devices[0].node else setting.cluster.between(groups[-1][0].node, devices[0].node)
    return Line(model, tables, settings, setting.workload, tensor, tuple(stages), hops, home)


def _slowest(cluster: Cluster, group: Sequence[Device]) -> Link | None:
    links = [cluster.link(a, b) for a, b in itertools.combinations(group, 2)]
    return min(links, key=lambda link: (link.gbs, -link.rtt_us)) if links else None


def tensor_sizes(setting: Setting, workers: int) -> list[int]:
    """Tensor sizes that the model allows and that divide the workers."""
    wanted = [setting.tensor] if setting.tensor else range(1, workers + 1)
    out = []
    for tensor in wanted:
        if workers % tensor or tensor_refusal(setting.model, tensor):
            continue
        if setting.pipeline and workers // tensor != setting.pipeline:
            continue
        if setting.partition and workers // tensor != len(setting.partition):
            continue
        out.append(tensor)
    return out


# ---------------------------------------------------------------------------------------------------------------- search


def best(setting: Setting, devices: Sequence[Device] | None = None) -> Found | None:
    """The best placement over everything that is not fixed; None if nothing starts."""
    found: Found | None = None
    seen: set[tuple[object, ...]] = set()
    for line_devices in placements(setting, devices):
        for tensor in tensor_sizes(setting, len(line_devices)):
            fraction = safe_fraction(setting, line_devices)
            line = make_line(setting, line_devices, tensor, fraction)
            key = (tensor, line.stages, line.hops, line.home, line.tables)
            if key in seen:
                continue
            seen.add(key)
            beat = found.score.value(setting.objective) if found else -partition.INFINITE
            trial = evaluate(setting, line, beat)
            if trial and (found is None or trial[1].value(setting.objective) > beat * (1 + partition.EPSILON)):
                found = Found(line_devices, tensor, trial[0], fraction, line, trial[1])
    return polished(setting, found) if found else None


def evaluate(setting: Setting, line: Line, beat: float = -partition.INFINITE) -> tuple[tuple[int, ...], Score] | None:
    """The best partition of a line, or the score of the given one."""
    if setting.partition is None:
        return partition.solve(line, setting.objective, beat=beat)
    if sum(setting.partition) != setting.model.layers:
        return None
    score = line.score(setting.partition)
    return (setting.partition, score) if score else None


def polished(setting: Setting, found: Found) -> Found:
    """Among partitions of equal value on the line found, the one with the largest KV pool."""
    if setting.partition is not None:
        return found
    result = partition.solve(found.line, setting.objective, polish=True)
    if result is None:
        return found
    return Found(found.devices, found.tensor, result[0], found.fraction, found.line, result[1])


def whole_cluster(setting: Setting) -> Iterator[tuple[Device, ...]]:
    """Every order in which all devices of the cluster can stand."""
    yield from _orders(setting, {n.name: n.devices for n in setting.cluster.nodes if n.devices})
