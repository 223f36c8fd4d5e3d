# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All lines of devices that a launcher can place, and what each gives."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ansible_collections.motley.inference.plugins.module_utils.engine.versions import EngineRow
from ansible_collections.motley.inference.plugins.module_utils.planner import memory, timing
from ansible_collections.motley.inference.plugins.module_utils.planner.device import Cluster, Device, Link, Node
from ansible_collections.motley.inference.plugins.module_utils.planner.model import ModelFacts, WeightTable, tensor_refusal, weight_table
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


@dataclass(frozen=True)
class Found:
    """One placement with its score."""

    devices: tuple[Device, ...]  # in rank order
    tensor: int
    layers: tuple[int, ...]
    fraction: float
    line: Line
    score: Score
    gap: float = 0.0  # how much better an untried placement could be at most, as a share

    def with_gap(self, gap: float) -> Found:
        return replace(self, gap=gap)

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

    return [node[0] for node in sorted(nodes, key=key)]


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


def whole_cluster(setting: Setting) -> Iterator[tuple[Device, ...]]:
    """Every order in which all devices of the cluster can stand."""
    yield from _orders(setting, {n.name: n.devices for n in setting.cluster.nodes if n.devices})


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


def safe_fraction(setting: Setting, devices: Iterable[Device]) -> float:
    """The one fraction for all ranks: the operator's, else the default as far as every device has that much free."""
    if setting.fraction is not None:
        return setting.fraction
    return min([setting.default_fraction, *(d.safe_fraction for d in devices)])


class Frame:
    """A setting with what every line asks of it, worked out once."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.settings = setting, engine_settings(setting)
        self._kinds: dict[tuple[object, ...], int] = {}
        self._kind_of: dict[tuple[str, int], int] = {}
        self._rooms: dict[tuple[int, float, int, bool, bool], int] = {}
        self._refused: dict[int, bool] = {}
        self._sizes: dict[int, list[int]] = {}

    def kind(self, device: Device) -> int:
        """A number equal for devices that are interchangeable."""
        key = (device.node, device.index)
        if key not in self._kind_of:
            self._kind_of[key] = self._kinds.setdefault(device.kind, len(self._kinds))
        return self._kind_of[key]

    def table(self, tensor: int, device: Device) -> WeightTable:
        return weight_table(self.setting.model, tensor, self.setting.backend == "cuda", device.capability)

    def room(self, device: Device, fraction: float, tensor: int, *, world: int, last: bool) -> int:
        """Budget without the reserves."""
        key = (self.kind(device), fraction, tensor, world > 1, last)
        if key not in self._rooms:
            kept = memory.reserves(self.setting.model, device, self.settings, tensor=tensor, world=world, last=last)
            self._rooms[key] = memory.requested(device, fraction) - sum(r.bytes for r in kept)
        return self._rooms[key]

    def page(self, tensor: int) -> int:
        """Bytes of one block of one layer."""
        return memory.block_bytes(self.setting.model, self.settings, tensor, 1)

    def need(self, pipeline: int) -> int:
        """Blocks without which the engine does not start."""
        return memory.needed_blocks(self.setting.model, self.settings, pipeline)

    def refused(self, tensor: int) -> bool:
        if tensor not in self._refused:
            self._refused[tensor] = tensor_refusal(self.setting.model, tensor) is not None
        return self._refused[tensor]

    def tensor_sizes(self, workers: int) -> list[int]:
        """Tensor sizes that the model allows, that divide the workers, and that agree with what is fixed."""
        if workers in self._sizes:
            return self._sizes[workers]
        setting, out = self.setting, self._sizes.setdefault(workers, [])
        for tensor in (setting.tensor,) if setting.tensor else range(1, workers + 1):
            pipeline = workers // tensor
            if workers % tensor or pipeline > setting.model.layers or self.refused(tensor):
                continue
            if setting.pipeline not in (None, pipeline) or (setting.partition and len(setting.partition) != pipeline):
                continue
            out.append(tensor)
        return out

    def line(self, devices: Sequence[Device], tensor: int, fraction: float) -> Line:
        """The line of stages for these devices in rank order."""
        model, cluster, world = self.setting.model, self.setting.cluster, len(devices)
        groups = [devices[i : i + tensor] for i in range(0, world, tensor)]
        tables, stages = [], []
        for index, group in enumerate(groups):
            table = self.table(tensor, group[0])
            last = index == len(groups) - 1
            fixed = table.rope + memory.edge_bytes(model, table, first=index == 0, last=last)
            room = min(self.room(d, fraction, tensor, world=world, last=last) for d in group)
            stages.append(Stage(room - fixed, min(d.bandwidth for d in group), _slowest(cluster, group)))
            tables.append(table)
        hops = tuple(_hop(cluster, one, other) for one, other in itertools.pairwise(groups))
        home = None if groups[-1][0].node == devices[0].node else cluster.between(groups[-1][0].node, devices[0].node)
        return Line(model, tuple(tables), self.settings, self.setting.workload, tensor, tuple(stages), hops, home)


def slow_first(link: Link) -> tuple[float, float]:
    """Sorts slower links first."""
    return (link.gbs, -link.rtt_us)


def _hop(cluster: Cluster, one: Sequence[Device], other: Sequence[Device]) -> Link:
    if len(one) == 1:
        return cluster.link(one[0], other[0])
    return min((cluster.link(a, b) for a, b in zip(one, other, strict=True)), key=slow_first)


def _slowest(cluster: Cluster, group: Sequence[Device]) -> Link | None:
    if len(group) == 1:
        return None
    return min((cluster.link(a, b) for a, b in itertools.combinations(group, 2)), key=slow_first)


def make_line(setting: Setting, devices: Sequence[Device], tensor: int, fraction: float) -> Line:
    """The line of stages for these devices in rank order."""
    return Frame(setting).line(devices, tensor, fraction)
