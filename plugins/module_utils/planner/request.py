# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From the request (plain data) to the plan (plain data): checks, search, alternatives, explanation.

request: model (name of the table, or {"config": {...}}), config, quantization, dtype, kv_cache_dtype, revision,
trust_remote_code, nodes, links, workload, engine, objective, observed. Every key but model (or config) and nodes has a
default. The response's names are the contract that all later steps read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.motley.inference.plugins.module_utils.engine import launch, versions
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.planner import alternatives, checks, explain, lines, memory, observed, search
from ansible_collections.motley.inference.plugins.module_utils.planner.device import (
    DECODE_EFFICIENCY,
    DEFAULT_LINK,
    GIB,
    LINKS,
    PREFILL_EFFICIENCY,
    UNIFIED_HOST_RESERVE_GIB,
    Cluster,
    Device,
    Link,
    Node,
    find_accelerator,
    find_link,
)
from ansible_collections.motley.inference.plugins.module_utils.planner.model import (
    ModelFacts,
    from_config,
    from_name,
    partition_refusal,
    tensor_refusal,
)
from ansible_collections.motley.inference.plugins.module_utils.planner.timing import Workload

SCHEMA = 1
OBJECTIVES = ("balanced", "latency", "throughput", "capacity")
LAUNCHERS = ("ray", "native")
REQUEST_KEYS = (
    "model", "config", "quantization", "dtype", "kv_cache_dtype", "revision", "trust_remote_code", "nodes", "links", "workload", "engine",
    "objective", "observed",
)  # fmt: skip
NODE_KEYS = ("name", "address", "devices", "engine", "arch", "env", "nccl_env")
DEVICE_KEYS = ("accelerator", "memory_gib", "reserve_gib", "bandwidth_gbs", "host_reserve_gib")
LINK_KEYS = ("nodes", "link", "gbs", "rtt_us")
WORKLOAD_KEYS = ("max_model_len", "concurrency", "prompt_tokens", "output_tokens")
ENGINE_KEYS = (
    "version", "launcher", "backend", "gpu_memory_utilization", "pipeline", "tensor", "partition", "partition_by_node", "max_num_batched_tokens",
    "max_num_seqs", "enforce_eager", "port", "args", "env", "block_size",
)  # fmt: skip


@dataclass(frozen=True)
class Request:
    """A request that has been checked."""

    setting: lines.Setting
    name: str
    quantization: str | None
    dtype: str | None
    kv_cache_dtype: str | None
    revision: str | None
    trust_remote_code: bool
    version: str
    port: int
    args: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    assumed: tuple[str, ...]
    warnings: tuple[str, ...]


def digest(request: Mapping[str, Any]) -> str:
    """Digest of the inputs of a plan. A config.json that was fetched for a model's name is not an input, nor is a log."""
    plain = {k: v for k, v in request.items() if k != "observed" and not (k == "config" and isinstance(request.get("model"), str))}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":"), default=str).encode()).hexdigest()


def plan(request: Mapping[str, Any]) -> dict[str, Any]:
    """The plan for a request; MotleyError if the request itself is wrong, an infeasible plan if nothing fits."""
    checked = parse(request)
    found = _fixed_by_node(checked, request) if _by_node(request) else search.best(checked.setting)
    response = _response(checked, found)
    response["inputs_sha256"] = digest(request)
    if request.get("observed") is not None and found is not None:
        response["observed"] = observed.compare(response, _log(request["observed"]))
    response["alternatives"] = alternatives.table(checked.setting, found)
    response["front"] = alternatives.front(checked.setting, found)
    if found is None:
        response["reasons"] = alternatives.reasons(checked.setting)
        response["changes"] = alternatives.changes(checked.setting)
    response["explanation"] = "\n".join(explain.lines(response))
    return response


def _log(given: Any) -> str:
    return checks.text(checks.mapping(given, "observed", ("log",)).get("log"), "observed.log")


# ---------------------------------------------------------------------------------------------------------------- parse


def parse(request: Mapping[str, Any]) -> Request:
    """The request with every value checked."""
    top = checks.mapping(request, "the request", REQUEST_KEYS)
    engine = checks.mapping(top.get("engine") or {}, "engine", ENGINE_KEYS)
    assumed: list[str] = []
    launcher = checks.choice(engine.get("launcher"), "engine.launcher", LAUNCHERS, "ray")
    version = checks.text(engine.get("version"), "engine.version", versions.DEFAULT_VERSION[launcher])
    row = versions.row(version)
    if versions.is_newer_than_known(version):
        assumed.append(f"vLLM {version} is newer than the newest known; it is taken to behave like {row.label}")
    if launcher == "native" and not row.nodes_option:
        raise MotleyError(
            f"engine.launcher native needs --nnodes, which vLLM {version} does not have", hint="use launcher ray, or vLLM 0.17 or later"
        )
    backend = checks.choice(engine.get("backend"), "engine.backend", ("cuda", "cpu"), "cuda")
    cluster, engine_node = _cluster(top, assumed)
    model, names = _model(top)
    workload, length = _workload(checks.mapping(top.get("workload") or {}, "workload", WORKLOAD_KEYS), model, assumed)
    pipeline = checks.whole(engine.get("pipeline"), "engine.pipeline", most=4096)
    partition = _partition(engine.get("partition"), pipeline, model)
    setting = lines.Setting(
        model=model, cluster=cluster, row=row, launcher=launcher, backend=backend, workload=workload,
        objective=checks.choice(top.get("objective"), "objective", OBJECTIVES, "balanced"),  # type: ignore[arg-type]
        max_model_len=length,
        block_size=checks.whole(engine.get("block_size"), "engine.block_size", most=4096) or versions.BLOCK_SIZE[backend],
        fraction=checks.number(engine.get("gpu_memory_utilization"), "engine.gpu_memory_utilization", most=1.0, above=True),
        default_fraction=row.default_fraction, pipeline=pipeline, tensor=checks.whole(engine.get("tensor"), "engine.tensor", most=4096),
        partition=partition, engine_node=engine_node,
        max_num_batched_tokens=checks.whole(engine.get("max_num_batched_tokens"), "engine.max_num_batched_tokens"),
        max_num_seqs=checks.whole(engine.get("max_num_seqs"), "engine.max_num_seqs", most=10**6),
        enforce_eager=checks.flag(engine.get("enforce_eager"), "engine.enforce_eager"),
    )  # fmt: skip
    _check_tensor(setting)
    return Request(
        setting=setting, name=model.name, quantization=names["quantization"], dtype=names["dtype"], kv_cache_dtype=names["kv_cache_dtype"],
        revision=names["revision"], trust_remote_code=bool(checks.flag(top.get("trust_remote_code"), "trust_remote_code")), version=version,
        port=checks.whole(engine.get("port"), "engine.port", most=65535) or 8000,
        args=tuple(checks.text(a, "engine.args") for a in checks.sequence(engine.get("args") or [], "engine.args")),
        env=_env(engine.get("env"), "engine.env"), assumed=tuple(assumed), warnings=model.warnings,
    )  # fmt: skip


def _check_tensor(setting: lines.Setting) -> None:
    if setting.tensor:
        refusal = tensor_refusal(setting.model, setting.tensor)
        if refusal:
            sizes = [t for t in range(1, 17) if not tensor_refusal(setting.model, t)]
            raise MotleyError(
                f"engine.tensor {setting.tensor}: {refusal}", hint=f"sizes that work for {setting.model.name}: {', '.join(map(str, sizes))}"
            )


def _env(value: Any, where: str) -> tuple[tuple[str, str], ...]:
    if value is None:
        return ()
    if not isinstance(value, Mapping) or not all(isinstance(k, str) and isinstance(v, (str, int, float)) for k, v in value.items()):
        raise MotleyError(f"{where} must map names to texts", hint="write NAME: value")
    return tuple((k, str(v)) for k, v in sorted(value.items()))


def _model(top: Mapping[str, Any]) -> tuple[ModelFacts, dict[str, str | None]]:
    names: dict[str, str | None] = {
        k: checks.text(top[k], k) if top.get(k) is not None else None for k in ("quantization", "dtype", "kv_cache_dtype", "revision")
    }
    options = {k: names[k] for k in ("quantization", "dtype", "kv_cache_dtype")}
    given, config = top.get("model"), top.get("config")
    if isinstance(given, Mapping):
        checks.mapping(given, "model", ("config", "path", "name"))
        if given.get("path") and not given.get("config"):
            raise MotleyError("model.path is read by the action, which passes the config.json on", hint="give model.config")
        config, given = given.get("config"), given.get("name")
    if config is not None:
        if not isinstance(config, Mapping):
            raise MotleyError("config must be the mapping of a config.json", hint="pass the file's content, not its name")
        return from_config(config, name=checks.text(given, "model") if given is not None else "", **options), names
    return from_name(checks.text(given, "model"), **options), names


def _workload(given: Mapping[str, Any], model: ModelFacts, assumed: list[str]) -> tuple[Workload, int]:
    length = checks.whole(given.get("max_model_len"), "workload.max_model_len")
    if length is None:
        length = min(8192, model.max_position)
        assumed.append(f"max_model_len {length}: none was given")
    elif length > model.max_position:
        raise MotleyError(
            f"workload.max_model_len {length} is more than the {model.max_position} positions of {model.name}",
            hint=f"give at most {model.max_position}",
        )
    prompt = checks.whole(given.get("prompt_tokens"), "workload.prompt_tokens", least=0)
    output = checks.whole(given.get("output_tokens"), "workload.output_tokens")
    if output is None:
        output = max(1, min(128, length // 4))
    if prompt is None:
        prompt = max(0, min(512, length - output))
    if prompt + output > length:
        output = max(1, min(output, length // 4))
        prompt = min(prompt, length - output)
        assumed.append(f"{prompt} prompt and {output} output tokens a request: more does not fit into max_model_len {length}")
    return Workload(checks.whole(given.get("concurrency"), "workload.concurrency", most=10**6) or 8, prompt, output), length


def _partition(value: Any, pipeline: int | None, model: ModelFacts) -> tuple[int, ...] | None:
    if value is None:
        return None
    if isinstance(value, str):
        try:
            numbers = tuple(int(part) for part in value.split(","))
        except ValueError:
            raise MotleyError(f"Invalid partition string: {value}", hint="give whole numbers with commas, one per stage") from None
    else:
        numbers = tuple(checks.whole(n, "engine.partition", least=-(10**6), most=10**6) or 0 for n in checks.sequence(value, "engine.partition"))
    refusal = partition_refusal(numbers, pipeline or len(numbers), model.layers)
    if refusal:
        raise MotleyError(f"engine.partition: {refusal}", hint=f"give one number of at least 1 per stage, {model.layers} in all")
    return numbers


def _cluster(top: Mapping[str, Any], assumed: list[str]) -> tuple[Cluster, str | None]:
    nodes: list[Node] = []
    engines: list[str] = []
    for index, given in enumerate(checks.sequence(top.get("nodes") or [], "nodes")):
        where = f"nodes[{index}]"
        fields = checks.mapping(given, where, NODE_KEYS)
        name = checks.text(fields.get("name"), f"{where}.name")
        if any(n.name == name for n in nodes):
            raise MotleyError(f"two nodes are named {name!r}", hint="give each node its own name")
        if checks.flag(fields.get("engine"), f"{where}.engine"):
            engines.append(name)
        nodes.append(_node(fields, name, f"node {name}"))
    if not any(n.devices for n in nodes):
        raise MotleyError("no node has a device", hint='give at least one node with "devices": ["gb10"]')
    if len(engines) > 1:
        raise MotleyError(f"{' and '.join(engines)} are both marked as engine node", hint="mark one node at most")
    addresses = [n.address for n in nodes if n.address]
    if len(set(addresses)) != len(addresses):
        raise MotleyError("two nodes have the same address", hint="every node needs a unique address on the inter-node network")
    pairs = _links(top.get("links"), [n.name for n in nodes])
    with_devices = [n.name for n in nodes if n.devices]
    missing = len(with_devices) * (len(with_devices) - 1) // 2 - len(pairs)
    if missing > 0:
        assumed.append(f"link {DEFAULT_LINK} between nodes for which none was given")
    return Cluster(tuple(nodes), pairs, LINKS[DEFAULT_LINK]), engines[0] if engines else None


def _node(fields: Mapping[str, Any], name: str, where: str) -> Node:
    env = dict(_env(fields.get("nccl_env"), f"{where} nccl_env")) | dict(_env(fields.get("env"), f"{where} env"))
    devices = tuple(_device(d, name, i, where) for i, d in enumerate(checks.sequence(fields.get("devices") or [], f"{where} devices")))
    if len(devices) > 64:
        raise MotleyError(f"{where} has {len(devices)} devices", hint="at most 64 devices a node")
    address = checks.text(fields.get("address"), f"{where} address") if fields.get("address") is not None else ""
    arch = checks.text(fields.get("arch"), f"{where} arch") if fields.get("arch") is not None else _arch(devices)
    return Node(name, address, devices, arch, tuple(sorted(env.items())))


def _arch(devices: Sequence[Device]) -> str:
    return find_accelerator(devices[0].accelerator, "").arch if devices else ""


def _device(given: Any, node: str, index: int, where: str) -> Device:
    spot = f"{where} device {index}"
    fields = {"accelerator": given} if isinstance(given, str) else checks.mapping(given, spot, DEVICE_KEYS)
    row = find_accelerator(checks.text(fields.get("accelerator"), f"{spot} accelerator"), spot)
    size = checks.number(fields.get("memory_gib"), f"{spot} memory_gib", most=4096, above=True)
    reserve = checks.number(fields.get("reserve_gib"), f"{spot} reserve_gib", most=4096)
    host = checks.number(fields.get("host_reserve_gib"), f"{spot} host_reserve_gib", most=4096)
    measured = checks.number(fields.get("bandwidth_gbs"), f"{spot} bandwidth_gbs", most=1e6, above=True)
    if host is None:
        host = UNIFIED_HOST_RESERVE_GIB if row.unified else 0.0
    return Device(
        node=node, index=index, accelerator=row.id, memory=int((size if size is not None else row.memory_gib) * GIB),
        bandwidth=(measured if measured is not None else row.bandwidth_gbs) * 1e9 * DECODE_EFFICIENCY, flops=row.tflops * 1e12 * PREFILL_EFFICIENCY,
        unified=row.unified, capability=row.capability, peer=LINKS[row.peer],
        fixed_reserve=None if reserve is None else int(reserve * GIB), host_reserve=0 if reserve is not None else int(host * GIB),
    )  # fmt: skip


def _links(value: Any, names: Sequence[str]) -> tuple[tuple[frozenset[str], Link], ...]:
    out: dict[frozenset[str], Link] = {}
    for index, given in enumerate(checks.sequence(value or [], "links")):
        where = f"links[{index}]"
        fields = checks.mapping(given, where, LINK_KEYS)
        ends = [checks.text(n, f"{where}.nodes") for n in checks.sequence(fields.get("nodes") or [], f"{where}.nodes")]
        unknown = [n for n in ends if n not in names]
        if unknown:
            raise MotleyError(f"{where} names an unknown node {unknown[0]!r}", hint="nodes: " + ", ".join(names))
        if len(ends) != 2 or ends[0] == ends[1]:
            raise MotleyError(f"{where}.nodes must name two different nodes", hint='write "nodes": [one, other]')
        out[frozenset(ends)] = _link(fields, where)
    return tuple(out.items())


def _link(fields: Mapping[str, Any], where: str) -> Link:
    speed = checks.number(fields.get("gbs"), f"{where}.gbs", most=1e6, above=True)
    trip = checks.number(fields.get("rtt_us"), f"{where}.rtt_us", most=1e9)
    if fields.get("link") is not None:
        base = find_link(checks.text(fields["link"], f"{where}.link"), where)
    elif speed is not None:
        base = Link("given", speed, 60.0)
    else:
        raise MotleyError(f'{where} needs "link" or "gbs"', hint="links: " + ", ".join(LINKS))
    return replace(base, gbs=speed if speed is not None else base.gbs, rtt_us=trip if trip is not None else base.rtt_us)


# -------------------------------------------------------------------------------------------------------- layers by node


def _by_node(request: Mapping[str, Any]) -> bool:
    return bool((request.get("engine") or {}).get("partition_by_node"))


def layers_by_node(
    layers: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]], row: versions.EngineRow, *, engine: str | None = None
) -> dict[str, Any]:
    """Layers fixed by node, in the rank order of the engine.

    layers: {node: number for its first device, or a list with one number per device}. nodes: name, address, devices, engine.
    Gives partition (list), ranks (node and device index in rank order) and engine_node.
    """
    names = {n["name"]: n for n in nodes}
    counts: dict[str, list[int]] = {}
    for name, value in layers.items():
        if name not in names:
            raise MotleyError(f"motley_layers names an unknown node {name!r}", hint="nodes: " + ", ".join(names))
        given = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        counts[name] = [checks.whole(n, f"motley_layers of {name}", most=10**6) or 0 for n in given]
        room = len(names[name].get("devices") or [])
        if not counts[name] or len(counts[name]) > room:
            raise MotleyError(f"motley_layers gives {name} {len(counts[name])} numbers for {room} devices", hint="one number per device at most")
    first = engine or next((n["name"] for n in nodes if n.get("engine")), None) or next(n["name"] for n in nodes if n["name"] in counts)
    if first not in counts:
        raise MotleyError(f"the engine node {first} has no layers in motley_layers", hint="give it at least one layer: it always holds stage 0")
    order = lines.node_order([(n, str(names[n].get("address") or ""), len(c)) for n, c in counts.items()], first, row.rank_rule)
    ranks = [{"node": n, "device": i} for n in order for i in range(len(counts[n]))]
    return {"partition": [c for n in order for c in counts[n]], "ranks": ranks, "engine_node": first}


def _fixed_by_node(checked: Request, request: Mapping[str, Any]) -> lines.Found | None:
    setting = checked.setting
    given = request["engine"]["partition_by_node"]
    if not isinstance(given, Mapping):
        raise MotleyError("engine.partition_by_node must map nodes to layers", hint="write {spark-01: 25, x86-01: [2, 1]}")
    if setting.partition is not None:
        raise MotleyError("engine.partition and engine.partition_by_node are both given", hint="give one of them")
    if setting.tensor not in (None, 1):
        raise MotleyError("engine.partition_by_node gives layers per device, so tensor must be 1", hint="leave engine.tensor out")
    nodes = [{"name": n.name, "address": n.address, "devices": n.devices} for n in setting.cluster.nodes]
    fixed = layers_by_node(given, nodes, setting.row, engine=setting.engine_node)
    refusal = partition_refusal(fixed["partition"], setting.pipeline or len(fixed["partition"]), setting.model.layers)
    if refusal:
        raise MotleyError(f"motley_layers: {refusal}", hint=f"give {setting.model.layers} layers in all")
    devices = tuple(setting.cluster.node(r["node"]).devices[r["device"]] for r in fixed["ranks"])
    fraction = lines.safe_fraction(setting, devices)
    line = lines.make_line(setting, devices, 1, fraction)
    score = line.score(fixed["partition"])
    return lines.Found(devices, 1, tuple(fixed["partition"]), fraction, line, score) if score else None


# ------------------------------------------------------------------------------------------------------------- response


def _response(checked: Request, found: lines.Found | None) -> dict[str, Any]:
    setting = checked.setting
    out: dict[str, Any] = {
        "schema": SCHEMA, "inputs_sha256": "", "feasible": found is not None, "model": checked.name, "objective": setting.objective,
        "pipeline": None, "tensor": None, "layer_partition": "", "engine_node": None, "stages": [], "kv_tokens": 0, "kv_blocks": 0,
        "block_size": setting.block_size, "limiting_rank": None, "gap": 0.0, "gpu_memory_utilization": None,
        "predicted": {"single_stream_tok_s": 0.0, "throughput_tok_s": 0.0, "ttft_ms": 0.0},
        "engine": {"version": checked.version, "launcher": setting.launcher, "args": [], "env": {}, "node_env": {}, "ray_gpus": {}},
        "assumed": list(checked.assumed), "observed": [], "alternatives": [], "front": [], "warnings": list(checked.warnings), "explanation": "",
    }  # fmt: skip
    if found is None:
        return out
    settings = found.line.settings
    out.update(
        pipeline=found.pipeline, tensor=found.tensor, layer_partition=",".join(map(str, found.layers)), engine_node=found.engine_node,
        stages=_stages(setting, found), kv_tokens=found.score.tokens, kv_blocks=found.score.blocks, gpu_memory_utilization=found.fraction,
        gap=round(found.gap, 6),
        predicted={
            "single_stream_tok_s": round(found.score.single, 3),
            "throughput_tok_s": round(found.score.throughput, 3),
            "ttft_ms": round(alternatives.first_token_seconds(setting, found) * 1e3, 3),
        },
    )  # fmt: skip
    workers = [w for stage in out["stages"] for w in stage["workers"]]
    out["limiting_rank"] = min(workers, key=lambda w: w["kv_blocks"])["rank"]
    out["engine"].update(_engine_block(checked, found, settings))
    out["warnings"] += _warnings(setting, found)
    return out


def _engine_block(checked: Request, found: lines.Found, settings: memory.EngineSettings) -> dict[str, Any]:
    used: dict[str, list[int]] = {}
    for device in found.devices:
        used.setdefault(device.node, []).append(device.index)
    nodes = [
        {"name": n.name, "address": n.address, "devices": len(n.devices), "unified": any(d.unified for d in n.devices), "env": n.env}
        for n in checked.setting.cluster.nodes
    ]
    start = launch.Launch(
        launcher=checked.setting.launcher, pipeline=found.pipeline, tensor=found.tensor, partition=found.layers, fraction=found.fraction,
        max_model_len=settings.max_model_len, max_num_batched_tokens=settings.max_num_batched_tokens, max_num_seqs=settings.max_num_seqs,
        enforce_eager=checked.setting.enforce_eager, port=checked.port, quantization=checked.quantization, dtype=checked.dtype,
        kv_cache_dtype=checked.kv_cache_dtype, revision=checked.revision, trust_remote_code=checked.trust_remote_code,
        args=checked.args, env=checked.env,
    )  # fmt: skip
    return launch.block(start, nodes, used)


def _stages(setting: lines.Setting, found: lines.Found) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    start = 0
    line, world = found.line, len(found.devices)
    for rank, count in enumerate(found.layers):
        workers = []
        for place in range(found.tensor):
            device = found.devices[rank * found.tensor + place]
            workers.append(_worker(found, setting, device, rank, place, start, world))
        out.append({"rank": rank, "layers": count, "first_layer": start, "last_layer": start + count - 1, "workers": workers})
        start += count
    step = line.cost(1.0)
    start = 0
    for stage in out:
        seconds = step.stage(stage["rank"], start, start + stage["layers"])
        start += stage["layers"]
        for worker in stage["workers"]:
            worker["step_ms"] = round(seconds * 1e3, 4)
    return out


def _worker(found: lines.Found, setting: lines.Setting, device: Device, rank: int, place: int, start: int, world: int) -> dict[str, Any]:
    line, count, last = found.line, found.layers[rank], rank == found.pipeline - 1
    weights = memory.load_bytes(setting.model, line.tables[rank], range(start, start + count), first=rank == 0, last=last)
    kept = memory.reserves(setting.model, device, line.settings, tensor=found.tensor, world=world, last=last)
    reserve = sum(r.bytes for r in kept)
    budget = memory.requested(device, found.fraction)
    free = budget - weights - reserve
    blocks = free // (line.pages(start, start + count) * line.page)
    return {
        "rank": rank * found.tensor + place, "tensor_rank": place, "node": device.node, "device": device.index, "accelerator": device.accelerator,
        "memory_gib": _gib(device.memory), "weights_gib": _gib(weights), "weights_bytes": weights, "reserve_gib": _gib(reserve),
        "budget_gib": _gib(budget), "kv_gib": _gib(free), "kv_bytes": free, "kv_blocks": blocks,
        "kv_tokens": memory.pool_tokens(setting.model, line.settings, blocks, found.pipeline), "step_ms": 0.0,
        "reserves": [{"name": r.name, "gib": _gib(r.bytes), "reason": r.reason} for r in kept],
    }  # fmt: skip


def _gib(size: int) -> float:
    return round(size / GIB, 6)


def _warnings(setting: lines.Setting, found: lines.Found) -> list[str]:
    out = []
    for rank in range(found.pipeline):
        nodes = {d.node for d in found.devices[rank * found.tensor : (rank + 1) * found.tensor]}
        if len(nodes) > 1:
            out.append(
                f"the tensor parallel group of stage {rank} spans {' and '.join(sorted(nodes))}: each layer does two all-reduces over the network"
            )
    if found.gap > 0:
        out.append(f"not every placement of this cluster was tried: another could be at most {found.gap:.1%} better")
    used = {d.node for d in found.devices}
    idle = [n.name for n in setting.cluster.nodes if n.devices and n.name not in used]
    if idle:
        out.append(f"{', '.join(idle)} is not used: the plan is better without it")
    if setting.launcher == "ray" and setting.row.rank_rule == "node_id" and len(used) > 2:
        out.append("with three or more nodes this executor orders nodes by Ray's node ids: they must be pinned in the order of the plan's ranks")
    if found.score.served < setting.workload.concurrency:
        out.append(f"the KV pool serves {found.score.served} of {setting.workload.concurrency} requests of the workload at once; the others wait")
    if setting.fraction is not None:
        tight = [d for d in found.devices if setting.fraction > d.safe_fraction]
        out += [
            f"gpu_memory_utilization {setting.fraction:g} leaves {d.node} less than its host needs; at most {d.safe_fraction:g} is safe there"
            for d in {d.node: d for d in tight}.values()
        ]
    return out
