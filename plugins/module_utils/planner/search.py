# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The best placement, exactly: choices of devices with a value that none of their lines can exceed, best first.

Nodes that are alike (same devices, same links) form a class, and a choice says how many nodes of each class give which
devices. Its ceiling lets every stage have the fastest rates and the largest rooms, the shortest hops and no edge weights.
A choice whose ceiling beats the best line so far is laid out: where the layers cost the same and the links between nodes
are equal, only the first and the last stage matter; otherwise every order that the launcher can make is tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.motley.inference.plugins.module_utils.planner import partition, timing
from ansible_collections.motley.inference.plugins.module_utils.planner.device import Device, Link, Node
from ansible_collections.motley.inference.plugins.module_utils.planner.lines import (
    Found,
    Frame,
    Setting,
    node_order,
    safe_fraction,
    slow_first,
    subsets,
)
from ansible_collections.motley.inference.plugins.module_utils.planner.partition import EPSILON, INFINITE, Line, Score

MOST_LINES = 2000  # lines worked out one by one before the search stops and states its gap
FEW_LINES = 200  # the same for an alternative
STEPS_PER_LINE = 4  # orders looked at for each, as many are alike


@dataclass(frozen=True)
class Class:
    """Nodes that are alike, and the ways to use one of them."""

    nodes: tuple[Node, ...]  # by address
    options: tuple[tuple[Device, ...], ...]  # of its first node; never empty


Choice = tuple[tuple[tuple[int, int], ...], ...]  # per class: (option, how many nodes use it)


# --------------------------------------------------------------------------------------------------------------- choices


def classes(setting: Setting, devices: Sequence[Device] | None) -> list[Class]:
    """The classes of the cluster's nodes; the engine node, if it is fixed, is one of its own."""
    allowed = None if devices is None else {(d.node, d.index) for d in devices}
    groups: dict[tuple[object, ...], list[Node]] = {}
    for node in setting.cluster.nodes:
        cards = tuple(d for d in node.devices if allowed is None or (d.node, d.index) in allowed)
        if cards:
            key = (node.name == setting.engine_node, *(d.kind for d in cards))
            groups.setdefault(key, []).append(Node(node.name, node.address, cards, node.arch))
    found = [tuple(sorted(nodes, key=lambda n: n.address)) for nodes in groups.values()]
    if not _alike(setting, found):
        found = [(node,) for nodes in found for node in nodes]
    return [Class(nodes, tuple(s for s in subsets(nodes[0]) if s)) for nodes in found]


def _alike(setting: Setting, groups: Sequence[tuple[Node, ...]]) -> bool:
    """Links depend on the two classes alone."""
    for one, other in itertools.combinations_with_replacement(groups, 2):
        pairs = {setting.cluster.between(a.name, b.name) for a in one for b in other if a.name != b.name}
        if len(pairs) > 1:
            return False
    return True


def choices(found: Sequence[Class]) -> Iterator[Choice]:
    """Every way to say how many nodes of each class use which option."""
    per_class = []
    for group in found:
        ways = []
        for used in range(len(group.nodes) + 1):
            for options in itertools.combinations_with_replacement(range(len(group.options)), used):
                ways.append(tuple((o, options.count(o)) for o in sorted(set(options))))
        per_class.append(ways)
    yield from (c for c in itertools.product(*per_class) if any(c))


# --------------------------------------------------------------------------------------------------------------- ceilings


class _Ceilings:
    """Values that no line of a choice can exceed."""

    def __init__(self, frame: Frame, found: Sequence[Class]) -> None:
        self.frame, self.classes = frame, found
        setting = frame.setting
        nodes = [n for group in found for n in group.nodes]
        between = [setting.cluster.between(a.name, b.name) for a, b in itertools.combinations(nodes, 2)]
        inside = [d.peer for n in nodes if len(n.devices) > 1 for d in n.devices]
        self.equal_links = len(set(between)) <= 1
        self.outer: Link | None = max(between, key=slow_first) if between else None
        self.inner: Link | None = max(inside, key=slow_first) if inside else None
        self._reads: dict[tuple[int, float], tuple[float, float]] = {}
        self._weights: dict[int, tuple[int, int]] = {}
        self._by_room: dict[tuple[float, int, bool], list[tuple[int, int]]] = {}
        cards = {frame.kind(d): d for n in nodes for d in n.devices}
        self.devices: list[Device] = [cards[kind] for kind in sorted(cards)]
        self._by_rate = sorted(range(len(self.devices)), key=lambda kind: -self.devices[kind].bandwidth)

    def reads(self, tensor: int, batch: float) -> tuple[float, float]:
        """Least bytes of all layers, and of the head, that one stage's worker reads."""
        key = (tensor, batch)
        if key not in self._reads:
            model = self.frame.setting.model
            out = []
            for device in {d.capability: d for g in self.classes for n in g.nodes for d in n.devices}.values():
                cost = timing.batch_cost(model, self.frame.table(tensor, device), self.frame.setting.workload, tensor, batch)
                out.append((sum(cost.layers[k] for k in model.kind_of), cost.head))
            self._reads[key] = min(out)
        return self._reads[key]

    def hop(self, pipeline: int, nodes: int, batch: float, *, aligned: bool) -> float:
        """Least seconds on the way: as many hops between nodes as there must be."""
        model = self.frame.setting.model
        outer = timing.activation_hop(model, self.outer, batch) if self.outer else 0.0
        inner = timing.activation_hop(model, self.inner, batch) if self.inner else outer
        crossing = nodes - 1 if aligned else 0
        return crossing * outer + (pipeline - 1 - crossing) * min(outer or inner, inner) if pipeline > 1 else 0.0

    def rates(self, kinds: Sequence[int]) -> list[float]:
        """Rates of all devices, the fastest first; kinds: how many devices of each kind."""
        out: list[float] = []
        for kind in self._by_rate:
            if kinds[kind]:
                out += [self.devices[kind].bandwidth] * kinds[kind]
        return out

    def rooms(self, kinds: Sequence[int], fraction: float, tensor: int, world: int) -> list[int]:
        """Rooms of all devices, the largest first."""
        key = (fraction, tensor, world > 1)
        if key not in self._by_room:
            rooms = [self.frame.room(d, fraction, tensor, world=world, last=False) for d in self.devices]
            self._by_room[key] = sorted(((room, kind) for kind, room in enumerate(rooms)), reverse=True)
        out: list[int] = []
        for room, kind in self._by_room[key]:
            if kinds[kind]:
                out += [room] * kinds[kind]
        return out

    def fraction(self, kinds: Sequence[int]) -> float:
        """The memory fraction for these devices."""
        return safe_fraction(self.frame.setting, (d for d, count in zip(self.devices, kinds, strict=True) if count))

    def ceiling(self, kinds: Sequence[int], rates: Sequence[float], nodes: int, inside: int, tensor: int) -> float:
        """kinds: devices of each kind. rates: theirs, fastest first. inside: tensor groups that may lie inside a node."""
        world = len(rates)
        pipeline = world // tensor
        rooms = self.rooms(kinds, self.fraction(kinds), tensor, world)
        return self._bound(rates[tensor - 1 :: tensor], rooms[tensor - 1 :: tensor], nodes, inside, tensor, pipeline)

    def grouped(self, devices: Sequence[Device], tensor: int, fraction: float) -> float:
        """Ceiling for given tensor groups of single-device nodes, in any order."""
        rates, rooms = [], []
        for i in range(0, len(devices), tensor):
            group = devices[i : i + tensor]
            rates.append(min([d.bandwidth for d in group]))
            rooms.append(min([self.frame.room(d, fraction, tensor, world=len(devices), last=False) for d in group]))
        rates.sort(reverse=True)
        rooms.sort(reverse=True)
        return self._bound(rates, rooms, len(devices), len(rates) if tensor == 1 else 0, tensor, len(rates))

    def _bound(self, rates: Sequence[float], rooms: Sequence[int], nodes: int, inside: int, tensor: int, pipeline: int) -> float:
        """rates, rooms: of the stages, largest first."""
        setting, frame, model = self.frame.setting, self.frame, self.frame.setting.model
        weight, rope = self.least_weights(tensor)
        page, need = frame.page(tensor), frame.need(pipeline)
        if setting.objective == "capacity":
            return self._most_blocks([r - rope for r in rooms], weight, page)
        smallest = weight + need * page // model_groups(frame)
        caps = [(r - rope) // smallest for r in rooms]
        if caps[-1] < 1 or sum(caps) < model.layers:
            return -INFINITE
        aligned = inside == pipeline
        served = max(1, min(setting.workload.concurrency, frame.settings.max_num_seqs))
        flights = timing.micro_batches(pipeline, served)
        batch = served / flights
        first = self._sum(tensor, rates, caps, 1.0, inside) + self.hop(pipeline, nodes, 1.0, aligned=aligned)
        if setting.objective == "latency":
            return 1.0 / first
        second = self._sum(tensor, rates, caps, batch, inside) + self.hop(pipeline, nodes, batch, aligned=aligned)
        slowest = self._slowest(tensor, rates, caps, batch, inside)
        return partition.value(setting.objective, first, served / max(second, flights * slowest))

    def least_weights(self, tensor: int) -> tuple[int, int]:
        """Least bytes of a layer and of the rope cache, over the devices there are."""
        if tensor not in self._weights:
            devices = {d.capability: d for g in self.classes for n in g.nodes for d in n.devices}.values()
            tables = [self.frame.table(tensor, d) for d in devices]
            self._weights[tensor] = (min(k.load for t in tables for k in t.kinds), min(t.rope for t in tables))
        return self._weights[tensor]

    def _reduce(self, tensor: int, batch: float) -> tuple[float, float]:
        """Least seconds of a layer's all-reduces inside a node, and between nodes."""
        if tensor == 1:
            return 0.0, 0.0
        key = (tensor, -batch)
        if key not in self._reads:
            model = self.frame.setting.model
            outer = timing.all_reduce(model, self.outer or self.inner, tensor, batch)
            inner = timing.all_reduce(model, self.inner or self.outer, tensor, batch)
            self._reads[key] = (min(inner, outer), outer)
        return self._reads[key]

    def _sum(self, tensor: int, rates: Sequence[float], caps: Sequence[int], batch: float, inside: int) -> float:
        """Least seconds in all stages: the fastest rates filled first, as many layers as can be inside nodes."""
        layers, head = self.reads(tensor, batch)
        model = self.frame.setting.model
        inner, outer = self._reduce(tensor, batch)
        near = min(model.layers, sum(caps[:inside]))
        total = head / rates[0] + near * inner + (model.layers - near) * outer
        if len(model.kinds) > 1:
            return total + layers / rates[0]
        each, left = layers / model.layers, model.layers
        for rate, cap in zip(rates, caps, strict=True):
            if cap >= left:
                return total + left * each / rate
            total += cap * each / rate
            left -= cap
        return total

    def _slowest(self, tensor: int, rates: Sequence[float], caps: Sequence[int], batch: float, inside: int) -> float:
        """Least seconds of the slowest stage, were layers divisible."""
        layers, _head = self.reads(tensor, batch)
        model = self.frame.setting.model
        if len(model.kinds) > 1:
            return layers / sum(rates)
        each, left = layers / model.layers, float(model.layers)
        inner, outer = self._reduce(tensor, batch)
        free = [(1.0 / (each / rate + (inner if i < inside else outer)), cap) for i, (rate, cap) in enumerate(zip(rates, caps, strict=True))]
        while free:
            time = left / sum([speed for speed, _cap in free])
            still = [pair for pair in free if pair[1] >= time * pair[0] * (1 - 1e-12)]
            if len(still) == len(free):
                return time
            left -= sum([pair[1] for pair in free if pair[1] < time * pair[0] * (1 - 1e-12)])
            free = still
        return 0.0

    def _most_blocks(self, rooms: Sequence[int], weight: int, page: int) -> float:
        groups = model_groups(self.frame)
        layers = self.frame.setting.model.layers
        return max(0.0, (sum(rooms) / layers - weight) * groups / page) if page else 0.0


def model_groups(frame: Frame) -> int:
    """KV groups: a stage's pages are at least its layers by this."""
    return len(frame.setting.model.kv_groups)


# --------------------------------------------------------------------------------------------------------------- layouts


def layouts(setting: Setting, found: Sequence[Class], choice: Choice, *, edges_only: bool) -> Iterator[tuple[Device, ...]]:
    """Devices in rank order, for every order (or every pair of first and last node) that the launcher can make."""
    if edges_only:
        return _edge_layouts(setting, found, choice)
    return (_free_orders if setting.launcher == "native" else _ruled_orders)(setting, found, choice)


def _pick(group: Class, option: int, node: Node) -> tuple[Device, ...]:
    wanted = {d.index for d in group.options[option]}
    if node is group.nodes[0]:
        return group.options[option]
    positions = [i for i, d in enumerate(group.nodes[0].devices) if d.index in wanted]
    return tuple(node.devices[i] for i in positions)


def _rearranged(items: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Every different order of items of which some are equal, in lexicographic order."""
    line = sorted(items)
    while True:
        yield tuple(line)
        i = len(line) - 2
        while i >= 0 and line[i] >= line[i + 1]:
            i -= 1
        if i < 0:
            return
        j = len(line) - 1
        while line[j] <= line[i]:
            j -= 1
        line[i], line[j] = line[j], line[i]
        line[i + 1 :] = reversed(line[i + 1 :])


def groupings(items: Sequence[Any], size: int) -> Iterator[list[tuple[Any, ...]]]:
    """Every way to part items, of which some are equal, into groups of a size; order inside and between groups does not count."""

    def part(left: list[Any], least: tuple[Any, ...]) -> Iterator[list[tuple[Any, ...]]]:
        if not left:
            yield []
            return
        seen = set()
        for rest in itertools.combinations(left[1:], size - 1):
            group = (left[0], *rest)
            if group < least or group in seen:
                continue
            seen.add(group)
            remaining = list(left)
            for item in group:
                remaining.remove(item)
            for tail in part(remaining, group):
                yield [group, *tail]

    yield from part(sorted(items), ())


def _free_orders(setting: Setting, found: Sequence[Class], choice: Choice) -> Iterator[tuple[Device, ...]]:
    """The native launcher: any order of nodes; nodes of one class are interchangeable."""
    fixed = _engine_class(setting, found)
    for order in _rearranged(_uses(choice)):
        if fixed is None or order[0][0] == fixed:
            yield _place(found, order)


def _engine_class(setting: Setting, found: Sequence[Class]) -> int | None:
    return next((c for c, group in enumerate(found) if group.nodes[0].name == setting.engine_node), None)


def _uses(choice: Choice) -> list[tuple[int, int]]:
    return [(c, o) for c, per_class in enumerate(choice) for o, count in per_class for _again in range(count)]


def _place(found: Sequence[Class], order: Sequence[tuple[int, int]]) -> tuple[Device, ...]:
    """Devices for classes and options in order."""
    free = [iter(group.nodes) for group in found]
    return tuple(d for c, o in order for d in _pick(found[c], o, next(free[c])))


def grouped_layouts(
    setting: Setting, found: Sequence[Class], choice: Choice, tensor: int, promising: Callable[[tuple[Device, ...]], bool]
) -> Iterator[tuple[Device, ...]]:
    """The native launcher with one device a node and equal links: only the groups, and which of them begins and ends, matter."""
    fixed = _engine_class(setting, found)
    for groups in groupings(_uses(choice), tensor):
        if not promising(_place(found, [use for group in groups for use in group])):
            continue
        kinds = sorted(set(groups))
        for first, last in itertools.product(kinds, kinds) if len(groups) > 1 else [(groups[0], groups[0])]:
            rest = list(groups)
            rest.remove(first)
            if len(groups) > 1 and last not in rest:
                continue
            heads = [use for use in first if fixed in (None, use[0])]
            if not heads:
                continue
            inner = list(first)
            inner.remove(heads[0])
            if rest:
                rest.remove(last)
            tail = [use for group in [*rest, *([last] if len(groups) > 1 else [])] for use in group]
            yield _place(found, [heads[0], *inner, *tail])


def _ruled_orders(setting: Setting, found: Sequence[Class], choice: Choice) -> Iterator[tuple[Device, ...]]:
    """Ray: the addresses of the nodes decide their order, whichever node is the engine's."""
    per_class = []
    for group, uses in zip(found, choice, strict=True):
        wanted = [option for option, count in uses for _again in range(count)]
        per_class.append(
            [
                [(n, _pick(group, o, n)) for n, o in zip(nodes, order, strict=True)]
                for nodes in itertools.combinations(group.nodes, len(wanted))
                for order in _rearranged(wanted)
            ]
        )
    for combination in itertools.product(*per_class):
        used = [pair for part in combination for pair in part]
        cards = {node.name: chosen for node, chosen in used}
        rows = [(n.name, n.address, len(c)) for n, c in used]
        for engine in cards:
            if setting.engine_node in (None, engine):
                yield tuple(d for name in node_order(rows, engine, setting.row.rank_rule) for d in cards[name])


def _edge_layouts(setting: Setting, found: Sequence[Class], choice: Choice) -> Iterator[tuple[Device, ...]]:
    """One order for each pair of first and last node by class and option."""
    uses = [(c, o) for c, per_class in enumerate(choice) for o, _count in per_class]
    total = sum(count for per_class in choice for _option, count in per_class)
    for engine in uses:
        if setting.engine_node and found[engine[0]].nodes[0].name != setting.engine_node:
            continue
        for last in uses if total > 1 else [engine]:
            layout = _edge_layout(setting, found, choice, engine, last, 0) or _edge_layout(setting, found, choice, engine, last, -1)
            if layout:
                yield layout


def _edge_layout(
    setting: Setting, found: Sequence[Class], choice: Choice, engine: tuple[int, int], last: tuple[int, int], place: int
) -> tuple[Device, ...] | None:
    """An order that begins and ends so: the last node has its class's highest address, those between the lowest ones."""
    left = {(c, o): count for c, per_class in enumerate(choice) for o, count in per_class}
    alone = sum(left.values()) == 1
    free = [list(group.nodes) for group in found]
    ends = []
    for use, position in ((last, -1), (engine, place)) if not alone else ((engine, 0),):
        if left[use] < 1:
            return None
        left[use] -= 1
        ends.append((free[use[0]].pop(position), use))
    by_size = sorted(left, key=lambda use: -len(found[use[0]].options[use[1]]))
    middle = [(free[use[0]].pop(0), use) for use in by_size for _again in range(left[use])]
    chosen = [ends[-1], *middle, *(ends[:1] if not alone else [])]
    cards = {node.name: _pick(found[c], o, node) for node, (c, o) in chosen}
    order = [node.name for node, _use in chosen]
    if setting.launcher != "native":
        order = node_order([(n.name, n.address, len(cards[n.name])) for n, _use in chosen], order[0], setting.row.rank_rule)
        if order[-1] != chosen[-1][0].name:
            return None
    return tuple(d for name in order for d in cards[name])


# ---------------------------------------------------------------------------------------------------------------- search


def best(setting: Setting, devices: Sequence[Device] | None = None, *, most: int = MOST_LINES) -> Found | None:
    """The best placement over everything that is not fixed; None if nothing starts."""
    frame = Frame(setting)
    found = _Search(frame, classes(setting, devices), most).run()
    return polished(setting, found) if found else None


class _Search:
    """Best first over choices of devices."""

    def __init__(self, frame: Frame, found: list[Class], most: int = MOST_LINES) -> None:
        self.frame, self.classes, self.most = frame, found, most
        self.ceilings = _Ceilings(frame, found)
        self.seen: set[tuple[object, ...]] = set()
        self.tried = self.steps = 0
        model = frame.setting.model
        # Layers cost the same, whatever the order of middle stages.
        self.uniform = len(model.kinds) == 1 and len(model.kv_groups) == 1 and frame.setting.partition is None and self.ceilings.equal_links
        self.found: Found | None = None

    def run(self) -> Found | None:
        setting = self.frame.setting
        ranked = self._ranked()
        gap = 0.0
        for ceiling, _devices, fraction, tensor, choice, simple in ranked:
            if self.found and ceiling <= self.found.score.value(setting.objective) * (1 + EPSILON):
                break
            if not self._lay_out(choice, tensor, fraction, edges_only=simple):
                gap = max(gap, ceiling)
        if self.found and gap > 0:
            value = self.found.score.value(setting.objective)
            self.found = self.found.with_gap(max(0.0, gap / value - 1.0))
        return self.found

    def _ranked(self) -> list[tuple[float, int, float, int, Choice, bool]]:
        """Ceiling, devices, memory fraction, tensor size and choice of everything that may start; the most promising first."""
        setting, ceilings = self.frame.setting, self.ceilings
        known = [[[self.frame.kind(d) for d in option] for option in group.options] for group in self.classes]
        out = []
        for choice in choices(self.classes):
            kinds, counts = [0] * len(ceilings.devices), []
            for options, uses in zip(known, choice, strict=True):
                for option, count in uses:
                    counts.append((len(options[option]), count))
                    for kind in options[option]:
                        kinds[kind] += count
            rates = ceilings.rates(kinds)
            nodes = sum(count for _size, count in counts)
            for tensor in self.frame.tensor_sizes(len(rates)):
                inside = sum(size // tensor * count for size, count in counts)
                ceiling = INFINITE if setting.partition else ceilings.ceiling(kinds, rates, nodes, inside, tensor)
                if ceiling > -INFINITE:
                    simple = self.uniform and inside * tensor == len(rates)
                    out.append((ceiling, len(rates), ceilings.fraction(kinds), tensor, choice, simple))
        out.sort(key=lambda entry: (-entry[0], entry[1], not entry[5]))
        return out

    def _lay_out(self, choice: Choice, tensor: int, fraction: float, *, edges_only: bool) -> bool:
        """Try the lines of a choice; False if there were too many to try them all."""
        for devices in self._layouts(choice, tensor, fraction, edges_only=edges_only):
            if not edges_only:
                self.steps += 1
                if self.steps > STEPS_PER_LINE * self.most or self.tried > self.most:
                    return False
            if self.ceilings.equal_links:
                sketch = (
                    tensor,
                    fraction,
                    *[(self.frame.kind(d), d.node == e.node) for d, e in zip(devices, (*devices[1:], devices[0]), strict=True)],
                )
                if sketch in self.seen:
                    continue
                self.seen.add(sketch)
            line = self.frame.line(devices, tensor, fraction)
            key = self._key(line)
            if key not in self.seen:
                self.seen.add(key)
                self.tried += 1
                self._try(devices, tensor, fraction, line)
        return True

    def _layouts(self, choice: Choice, tensor: int, fraction: float, *, edges_only: bool) -> Iterator[tuple[Device, ...]]:
        setting = self.frame.setting
        single = all(len(self.classes[c].options[o]) == 1 for c, o in _uses(choice))
        if edges_only or setting.launcher != "native" or not single or not self.uniform:
            return layouts(setting, self.classes, choice, edges_only=edges_only)

        def promising(devices: tuple[Device, ...]) -> bool:
            """Ceiling of these groups, whichever of them begins and ends."""
            if self.found is None:
                return True
            ceiling = self.ceilings.grouped(devices, tensor, fraction)
            return ceiling > self.found.score.value(setting.objective) * (1 + EPSILON)

        return grouped_layouts(setting, self.classes, choice, tensor, promising)

    def _key(self, line: Line) -> tuple[object, ...]:
        """Equal for lines of equal value: where layers cost the same, the order of the stages between the ends does not matter."""
        stages, hops = line.stages, line.hops
        if line.uniform and self.frame.setting.partition is None:
            middle = sorted(stages[1:-1], key=lambda s: (s.room, s.rate, s.group.gbs if s.group else 0.0))
            stages, hops = (stages[0], *middle, stages[-1]), tuple(sorted(hops, key=slow_first))
        return (line.tensor, stages, hops, line.home, *map(id, {id(t): t for t in line.tables}.values()))

    def _try(self, devices: tuple[Device, ...], tensor: int, fraction: float, line: Line) -> None:
        setting = self.frame.setting
        beat = self.found.score.value(setting.objective) if self.found else -INFINITE
        trial = evaluate(setting, line, beat)
        if trial and (self.found is None or trial[1].value(setting.objective) > beat * (1 + EPSILON)):
            self.found = Found(devices, tensor, trial[0], fraction, line, trial[1])


def evaluate(setting: Setting, line: Line, beat: float = -INFINITE) -> tuple[tuple[int, ...], Score] | None:
    """The best partition of a line, or the score of the given one."""
    if setting.partition is None:
        return partition.solve(line, setting.objective, beat=beat)
    score = line.score(setting.partition)
    return (setting.partition, score) if score else None


def polished(setting: Setting, found: Found) -> Found:
    """Among partitions of equal value on the line found, the one with the largest KV pool."""
    if setting.partition is not None:
        return found
    result = partition.solve(found.line, setting.objective, polish=True)
    if result is None:
        return found
    return Found(found.devices, found.tensor, result[0], found.fraction, found.line, result[1], found.gap)
