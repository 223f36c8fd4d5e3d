# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What else a person would have tried, with the number or the reason for which it lost; and what would make a plan fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ansible_collections.motley.inference.plugins.module_utils.planner import memory, search, timing
from ansible_collections.motley.inference.plugins.module_utils.planner.device import GIB, Device
from ansible_collections.motley.inference.plugins.module_utils.planner.lines import (
    Found,
    Frame,
    Setting,
    engine_settings,
    make_line,
    placements,
    safe_fraction,
    whole_cluster,
)
from ansible_collections.motley.inference.plugins.module_utils.planner.model import (
    PLAIN,
    Weights,
    default_partition,
    tensor_refusal,
    unquantised,
    weight_table,
)
from ansible_collections.motley.inference.plugins.module_utils.planner.partition import Line

Row = dict[str, Any]


def first_token_seconds(setting: Setting, found: Found) -> float:
    """Time to the first token of a lone prompt: prefill by FLOPS through all stages, and one decode step's way."""
    tokens, total, start = max(1, setting.workload.prompt_tokens), 0.0, 0
    for rank, count in enumerate(found.layers):
        group = found.devices[rank * found.tensor : (rank + 1) * found.tensor]
        kinds = [setting.model.kind_of[i] for i in range(start, start + count)]
        flops = sum(found.line.tables[rank].kinds[k].flops for k in kinds) * tokens
        total += flops / min(d.flops for d in group)
        total += count * timing.all_reduce(setting.model, found.line.stages[rank].group, found.tensor, tokens)
        start += count
    total += sum(timing.activation_hop(setting.model, hop, tokens) for hop in found.line.hops) + timing.return_hop(found.line.home)
    return max(total, 1.0 / found.score.single)


def _row(name: str, found: Found | None, reason: str = "") -> Row:
    if found is None:
        return {"name": name, "feasible": False, "reason": reason}
    return {
        "name": name, "feasible": True, "reason": reason, "pipeline": found.pipeline, "tensor": found.tensor,
        "layer_partition": ",".join(map(str, found.layers)), "engine_node": found.engine_node,
        "single_stream_tok_s": round(found.score.single, 3), "throughput_tok_s": round(found.score.throughput, 3), "kv_tokens": found.score.tokens,
    }  # fmt: skip


def table(setting: Setting, found: Found | None) -> list[Row]:
    """The alternatives, each with its figures or the reason why it does not start."""
    free = replace(setting, pipeline=None, tensor=None, partition=None)
    devices = found.devices if found else next(_all_devices(free), ())
    if not devices:
        return []
    tensor = found.tensor if found else 1
    out = []
    if (setting.pipeline, setting.tensor, setting.partition) != (None, None, None):
        own = search.best(free)
        out.append(_row("Motley's own choice", own, "" if own else "nothing fits"))
    if len(devices) // tensor > 1:
        out.append(_split("even split", free, devices, tensor, default_partition(setting.model.layers, len(devices) // tensor)))
        out.append(_split("memory-proportional split", free, devices, tensor, proportional(free, devices, tensor)))
    out += _flat(free) + _inside_nodes(free) + _without(free, found) + _alone(free)
    return out


def _all_devices(setting: Setting) -> Any:
    everything = [n.devices for n in setting.cluster.nodes if n.devices]
    count = sum(len(d) for d in everything)
    return (p for p in whole_cluster(setting) if len(p) == count)


def _split(name: str, setting: Setting, devices: Sequence[Device], tensor: int, layers: Sequence[int]) -> Row:
    """One given partition on given devices."""
    if min(layers) < 1 or len(layers) > setting.model.layers:
        return _row(name, None, f"{setting.model.layers} layers are fewer than {len(layers)} stages")
    fraction = safe_fraction(setting, devices)
    line = make_line(setting, devices, tensor, fraction)
    score = line.score(layers)
    if score is None:
        return {**_row(name, None, why_not(line, devices, layers)), "layer_partition": ",".join(map(str, layers))}
    return _row(name, Found(tuple(devices), tensor, tuple(layers), fraction, line, score))


def proportional(setting: Setting, devices: Sequence[Device], tensor: int) -> list[int]:
    """Layers in proportion to the memory of each stage's tightest device, by largest remainder, at least one each."""
    sizes = [min(d.memory for d in devices[i : i + tensor]) for i in range(0, len(devices), tensor)]
    layers, total = setting.model.layers, sum(sizes)
    exact = [layers * s / total for s in sizes]
    out = [max(1, int(e)) for e in exact]
    order = sorted(range(len(out)), key=lambda i: (int(exact[i]) - exact[i], i))
    index = 0
    while sum(out) < layers:
        out[order[index % len(out)]] += 1
        index += 1
    while sum(out) > layers and max(out) > 1:
        out[max(range(len(out)), key=lambda i: out[i])] -= 1
    return out


def why_not(line: Line, devices: Sequence[Device], layers: Sequence[int]) -> str:
    """Which stage keeps this partition from starting, in figures."""
    start = 0
    for rank, count in enumerate(layers):
        free = line.free(rank, start, start + count)
        blocks = line.blocks(rank, start, start + count)
        where = f"stage {rank} ({devices[rank * line.tensor].node}, {devices[rank * line.tensor].accelerator}, {count} layers)"
        if free < 0:
            return f"{where}: weights exceed the room by {-free / GIB:.2f} GiB"
        if blocks < line.need:
            size = line.settings.block_size
            return f"{where}: KV cache for {max(0, blocks) * size} tokens, but one request of {line.settings.max_model_len} needs {line.need * size}"
        start += count
    return "does not fit"


def _flat(setting: Setting) -> list[Row]:
    devices = next(_all_devices(setting), ())
    count = len(devices)
    if count < 2:
        return []
    name = f"flat tensor parallel {count}"
    refusal = tensor_refusal(setting.model, count)
    if refusal:
        return [_row(name, None, refusal)]
    smallest = min(devices, key=lambda d: d.memory)
    note = f"each worker gets the same share, so the smallest device counts: {count} x {smallest.memory / GIB:.1f} GiB ({smallest.accelerator})"
    row = _split(name, setting, devices, count, [setting.model.layers])
    return [{**row, "reason": f"{row['reason']}; {note}" if row["reason"] else note}]


def _inside_nodes(setting: Setting) -> list[Row]:
    nodes = [n for n in setting.cluster.nodes if n.devices]
    most = max(len(n.devices) for n in nodes)
    if most < 2 or len(nodes) < 2:
        return []
    name = f"tensor parallel {most} inside a node, pipeline between nodes"
    short = [f"{n.name} has {len(n.devices)}" for n in nodes if len(n.devices) % most]
    if short:
        return [_row(name, None, f"every pipeline stage must use the same tensor parallel size: {', '.join(short)} of {most} devices")]
    refusal = tensor_refusal(setting.model, most)
    if refusal:
        return [_row(name, None, refusal)]
    found = search.best(replace(setting, tensor=most, pipeline=sum(len(n.devices) for n in nodes) // most))
    return [_row(name, found, "" if found else "no split of the layers fits")]


def _without(setting: Setting, found: Found | None) -> list[Row]:
    used = list(dict.fromkeys(d.node for d in found.devices)) if found else [n.name for n in setting.cluster.nodes if n.devices]
    if len([n for n in setting.cluster.nodes if n.devices]) < 3 or len(used) < 2:
        return []  # with two nodes this is the same as each alone
    out, seen = [], set()
    for name in used:
        key = (name == setting.engine_node, *(d.kind for d in setting.cluster.node(name).devices))
        if key in seen and len(used) > 4:
            continue  # of many nodes that are alike, one is left out
        seen.add(key)
        rest = [d for n in setting.cluster.nodes if n.name != name for d in n.devices]
        out.append(_best_of(f"without {name}", setting, rest, moved=name == setting.engine_node))
    return out


def _alone(setting: Setting) -> list[Row]:
    nodes = [n for n in setting.cluster.nodes if n.devices]
    if len(nodes) > 4:
        nodes = list({(n.name == setting.engine_node, *(d.kind for d in n.devices)): n for n in reversed(nodes)}.values())[::-1]
    return (
        [_best_of(f"{n.name} alone", setting, n.devices, moved=n.name != setting.engine_node) for n in nodes]
        if len(setting.cluster.nodes) > 1
        else []
    )


def _best_of(name: str, setting: Setting, devices: Sequence[Device], *, moved: bool) -> Row:
    trial = replace(setting, engine_node=None) if moved else setting
    found = search.best(trial, devices, most=search.FEW_LINES)
    return _row(name, found, "" if found else room_reason(trial, devices))


def room_reason(setting: Setting, devices: Sequence[Device]) -> str:
    """Weights against room, in sum."""
    weights, room = whole_weights(setting), sum(max(0, budget(setting, d, devices)) for d in devices)
    text = f"weights {weights / GIB:.2f} GiB, room {room / GIB:.2f} GiB in all"
    return text if weights > room else f"{text}, but no split leaves room for one request of {setting.max_model_len} tokens"


def whole_weights(setting: Setting) -> int:
    """Weights of the model on one worker."""
    device = next(d for n in setting.cluster.nodes for d in n.devices)
    table = weight_table(setting.model, 1, setting.backend == "cuda", device.capability)
    return memory.load_bytes(setting.model, table, range(setting.model.layers), first=True, last=True)


def budget(setting: Setting, device: Device, devices: Sequence[Device]) -> int:
    """What one device offers to weights and KV cache."""
    settings = engine_settings(setting)
    kept = memory.reserves(setting.model, device, settings, tensor=1, world=len(devices), last=False)
    return memory.requested(device, safe_fraction(setting, devices)) - sum(r.bytes for r in kept)


# ---------------------------------------------------------------------------------------------------------- the front


def front(setting: Setting, found: Found | None) -> list[Row]:
    """Plans of which none is better than another in lone-stream speed, throughput and KV tokens at once."""
    if found is None:
        return []
    rows: list[Row] = [_row(setting.objective, found)]
    for objective in ("latency", "throughput", "balanced", "capacity"):
        if objective != setting.objective:
            other = search.best(replace(setting, objective=objective), most=search.FEW_LINES)
            if other:
                rows.append(_row(objective, other))
    figures = ("single_stream_tok_s", "throughput_tok_s", "kv_tokens")
    out: list[Row] = []
    for row in rows:
        mine = [row[f] for f in figures]
        theirs = [[o[f] for f in figures] for o in rows]
        beaten = any(other != mine and all(a >= b for a, b in zip(other, mine, strict=True)) for other in theirs)
        if not beaten and not any([o[f] for f in figures] == mine for o in out):
            out.append(row)
    return sorted(out, key=lambda r: -r["single_stream_tok_s"])


# ------------------------------------------------------------------------------------------------ if nothing fits


def reasons(setting: Setting) -> list[str]:
    """Why nothing starts."""
    everything = [d for n in setting.cluster.nodes for d in n.devices]
    out = [room_reason(setting, everything)]
    if setting.tensor and len(everything) < setting.tensor * (setting.pipeline or 1):
        out.append(f"pipeline {setting.pipeline or 1} x tensor {setting.tensor} asks for more than the {len(everything)} devices")
    elif setting.pipeline and len(everything) < setting.pipeline:
        out.append(f"pipeline {setting.pipeline} asks for more than the {len(everything)} devices")
    if setting.partition:
        for devices in placements(setting):
            for tensor in Frame(setting).tensor_sizes(len(devices)):
                line = make_line(setting, devices, tensor, safe_fraction(setting, devices))
                out.append(f"partition {','.join(map(str, setting.partition))}: {why_not(line, devices, setting.partition)}")
    return list(dict.fromkeys(out))[:6]


def changes(setting: Setting) -> list[Row]:
    """The smallest single changes with which a plan exists, and what each costs."""
    out: list[Row] = []
    for trial, change, cost in _candidates(setting):
        found = search.best(trial)
        if found:
            out.append({**_row(change, found), "cost": cost})
    shorter = _longest(setting)
    if shorter:
        out.append(
            {**_row(f"max_model_len {shorter[0]}", shorter[1]), "cost": f"requests of at most {shorter[0]} tokens instead of {setting.max_model_len}"}
        )
    return out


def _candidates(setting: Setting) -> list[tuple[Setting, str, str]]:
    out = []
    if (setting.pipeline, setting.tensor, setting.partition, setting.engine_node) != (None, None, None, None):
        free = replace(setting, pipeline=None, tensor=None, partition=None, engine_node=None)
        out.append((free, "leave pipeline, tensor, partition and engine node to Motley", "nothing"))
    if setting.model.weights == PLAIN:
        for form, cost in (
            (Weights("fp8", 8), "8-bit weights, a little less exact"),
            (Weights("awq", 4, group=128), "4-bit weights; needs a checkpoint made so"),
        ):
            out.append((replace(setting, model=replace(unquantised(setting.model), weights=form)), f"quantization {form.method}", cost))
    for percent in range(int((setting.fraction or setting.default_fraction) * 100) + 1, 98):
        raised = replace(setting, fraction=percent / 100)
        if search.best(raised):
            out.append((raised, f"gpu_memory_utilization {percent / 100:g}", "less memory left for anything beside the engine"))
            break
    for device in {d.kind: d for n in setting.cluster.nodes for d in n.devices}.values():
        where = f"one more node like {device.node}" if device.unified else f"one more {device.accelerator} in {device.node}"
        out.append((_one_more(setting, device), where, "one machine" if device.unified else "one device"))
    return out


def _one_more(setting: Setting, device: Device) -> Setting:
    """The cluster with one more such device: in its node, or, where memory is the machine's own, in a node of its own."""
    node, nodes = setting.cluster.node(device.node), setting.cluster.nodes
    if device.unified:
        twin = replace(node, name=f"{node.name} twin", address=f"{node.address} twin", devices=())
        nodes = (*nodes, replace(twin, devices=tuple(replace(d, node=twin.name) for d in node.devices)))
    else:
        grown = replace(node, devices=(*node.devices, replace(device, index=len(node.devices))))
        nodes = tuple(grown if n.name == node.name else n for n in nodes)
    return replace(setting, cluster=replace(setting.cluster, nodes=nodes))


def _longest(setting: Setting) -> tuple[int, Found] | None:
    """The longest context, in blocks, with which a plan exists."""
    step, found, best = setting.block_size, None, 0
    low, high = 0, setting.max_model_len // step
    while high - low > 1:
        middle = (low + high) // 2
        length = middle * step
        load = replace(setting.workload, prompt_tokens=min(setting.workload.prompt_tokens, length - 1), output_tokens=1)
        trial = search.best(replace(setting, max_model_len=length, workload=load))
        low, high = (middle, high) if trial else (low, middle)
        if trial:
            found, best = trial, length
    return (best, found) if found else None
