# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Does what runs equal the plan? (plan, nodes, evidence) -> checks.

nodes: per node that carries workers {"address", "interface", "env": {name: value}, "devices": indexes its container sees}.
evidence, every key optional; what is missing is "not seen", never "passed":
  log            text of the running job (stage reporter lines, the engine's own lines)
  actors         [{"name", "class_name", "node_id", "pid", "state"}]     Ray's State API
  ray_nodes      [{"node_id", "node_ip"}]
  job            {"id", "status", "message"}
  gpu_samples    {node: [nvidia-smi text, ...]} during the probe; gpu_errors {node: text}
  net            {node: {"before": text, "after": text}} of /proc/net/dev around the probe; tokens: generated in between
  health, unauthorized, models    {"status": int, "problem": text}
  completion     {"ok": bool, "text", "output_tokens", "seconds", "problem"}
  images         {node: {"image", "image_id"}}; locked: {"image", "digest"}

Each fact is judged by the best evidence there is: the stage reporter's line, then the engine's own line within its
rounding, then Ray's list of actors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ansible_collections.motley.inference.plugins.module_utils.diagnosis import readings
from ansible_collections.motley.inference.plugins.module_utils.diagnosis.readings import size
from ansible_collections.motley.inference.plugins.module_utils.engine import logs

GIB = 2**30
TOLERANCE = 0.02
LEAST_BYTES_PER_TOKEN = 256  # a stage hands on at least one hidden state of 128 numbers of 2 bytes per token
WORKER_CLASSES = ("RayWorkerProc", "RayWorkerWrapper")
# A service without these has not been seen to be the planned one.
ESSENTIAL = re.compile(r"(rank-\d+|layers-\d+|world-size|health|completion|job)$")
REBUILD = "run --tags ray_cluster,vllm_serve with -e motley_rebuild=true, which starts the service anew by the plan"
PARTITION = "this process got another partition than the plan's, whose numbers are in rank order"
REPORT = "keep the stage reporter on (motley_stage_reporter)"
REPLAN = "give the start-up log to the planner (observed) and plan again, or correct motley_devices"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at; passed is None where nothing was seen."""

    id: str
    node: str | None
    passed: bool | None
    expected: str
    seen: str
    evidence: str = ""
    remedy: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as verify.json holds it; a remedy only where it is wanted."""
        return {**asdict(self), "remedy": "" if self.passed else self.remedy}


@dataclass(frozen=True)
class _Worker:
    rank: int
    stage: int
    tensor_rank: int
    node: str
    device: int
    accelerator: str
    first: int
    layers: int
    weights: float  # bytes


@dataclass(frozen=True)
class _Scene:
    """Plan and evidence, read once."""

    workers: tuple[_Worker, ...]
    nodes: Mapping[str, Mapping[str, Any]]
    evidence: Mapping[str, Any]
    stages: Mapping[int, logs.Stage]
    rank_lines: Mapping[int, logs.Rank]
    loading: tuple[logs.Loading, ...]
    kv: logs.KvCache
    engine_node: str

    def node_of(self, *, address: str | None = None, name: str | None = None) -> str | None:
        """The planned node with this host name or address; an unknown one is named as it calls itself."""
        if name in self.nodes:
            return name
        by_address = {n["address"]: node for node, n in self.nodes.items()}
        if address and address in by_address:
            return by_address[address]
        return name or address

    def on(self, node: str) -> list[_Worker]:
        """Ranks that the plan puts on a node."""
        return [w for w in self.workers if w.node == node]

    def reported_on(self, node: str) -> list[logs.Stage]:
        """Ranks that really are on a node; its host name tells, for the address is one of the variables in question."""
        return [s for s in self.stages.values() if self.node_of(address=s.host_ip, name=s.node) == node]


def _scene(plan: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]], evidence: Mapping[str, Any]) -> _Scene:
    workers, first = [], 0
    for stage in plan["stages"]:
        for worker in stage["workers"]:
            weights = worker.get("weights_bytes") or worker["weights_gib"] * GIB
            workers.append(_Worker(worker["rank"], stage["rank"], worker.get("tensor_rank", 0), worker["node"], worker["device"],
                                   str(worker.get("accelerator", "")), first, stage["layers"], float(weights)))
        first += stage["layers"]
    text = evidence.get("log") or ""
    return _Scene(tuple(workers), nodes, evidence, logs.stages(text), logs.ranks(text), tuple(logs.model_loading(text)), logs.kv_cache(text),
                  workers[0].node)


def checks(plan: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]], evidence: Mapping[str, Any], *, quick: bool = False) -> list[Check]:
    """Every check of the full form, or those of the quick one (job, placement, health, one completion)."""
    scene = _scene(plan, nodes, evidence)
    found = [_job(scene), _world(scene), *(_placement(scene, w) for w in scene.workers), *(_layers(scene, w) for w in scene.workers)]
    if not quick:
        found += [_weights(scene, w) for w in scene.workers]
        found += [_kv(scene, plan)]
        found += [_environment(scene, n) for n in nodes]
        found += [_devices(scene, n) for n in nodes if len(scene.on(n)) > 1]
        found += [c for n in nodes for c in _busy(scene, n)]
        found += [_traffic(scene, n) for n in nodes if len(nodes) > 1]
        found += [_image(scene, n) for n in nodes]
    found += [_health(scene), *([] if quick else [_key(scene)]), _completion(scene)]
    return [c for c in found if c is not None]


def passed(found: Iterable[Check]) -> bool:
    """Nothing failed, and what proves the service was seen."""
    return all(c.passed is True or (c.passed is None and not ESSENTIAL.match(c.id)) for c in found)


# -- the job and its ranks ------------------------------------------------------------------------------------------
def _job(scene: _Scene) -> Check | None:
    job = scene.evidence.get("job")
    if job is None:
        return None  # not every launcher has one
    running = job.get("status") == "RUNNING"
    said = str(job.get("message") or "")[:200]
    return Check("job", scene.engine_node, running, "a running job of this plan", f"{job.get('id') or 'no job'} {job.get('status') or ''}".strip(),
                 said if not running else "Ray's list of jobs", "run --tags vllm_serve")


def _actors(scene: _Scene) -> list[tuple[str | None, Mapping[str, Any]]] | None:
    """(node, actor) of each living engine worker; None if nobody asked."""
    actors = scene.evidence.get("actors")
    if actors is None:
        return None
    addresses = {n.get("node_id"): n.get("node_ip") for n in scene.evidence.get("ray_nodes") or []}
    return [(scene.node_of(address=addresses.get(a.get("node_id")), name=str(a.get("node_id") or "")[:12]), a)
            for a in actors if a.get("state") == "ALIVE" and a.get("class_name") in WORKER_CLASSES]


def _world(scene: _Scene) -> Check:
    """How many ranks, and that no node carries more than planned: Ray packs bundles without a word."""
    want = _count(w.node for w in scene.workers)
    seen: dict[str, int] | None = None
    how = ""
    actors = _actors(scene)
    if actors:
        seen, how = _count(str(node) for node, _actor in actors), "Ray's list of actors"
    if scene.stages:
        seen = _count(str(scene.node_of(address=s.host_ip, name=s.node)) for s in scene.stages.values())
        how = "stage reporter" + (", and as many living actors" if actors and _count(str(n) for n, _actor in actors) == seen else "")
        if actors and _count(str(n) for n, _actor in actors) != seen:
            seen, how = _count(str(n) for n, _actor in actors), "Ray's list of actors (the reports are of other processes)"
    if seen is None:
        worlds = {r.world_size for r in scene.rank_lines.values()}
        text = f"world size {worlds.pop()}, nodes not told" if worlds else "not seen"
        return Check("world-size", None, None, _spread(want), text, "", REPORT)
    if seen != want and len(seen) < len(want) and len(seen) == 1:
        text = f"{_spread(seen)}: all ranks are packed on one node"
    else:
        text = _spread(seen)
    return Check("world-size", None, seen == want, _spread(want), text, how,
                 f"the head offers more devices than planned, or a worker has not joined: {REBUILD}")


def _count(nodes: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for node in nodes:
        found[node] = found.get(node, 0) + 1
    return found


def _spread(counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    return f"{total} rank{'s' * (total != 1)}: " + ", ".join(f"{n} on {node}" for node, n in sorted(counts.items()))


def _placement(scene: _Scene, worker: _Worker) -> Check:
    expected = f"stage {worker.stage} on {worker.node}"
    remedy = f"rank 0 is on the node where the engine runs; {REBUILD}"
    node, stage, how, told = None, None, "", False
    reported = scene.stages.get(worker.rank)
    line = scene.rank_lines.get(worker.rank)
    if reported:
        node, stage = scene.node_of(address=reported.host_ip, name=reported.node), reported.pp_rank
        told, how = True, f"stage reporter, process {reported.pid} on {reported.device}"
        gone = _gone(scene, node, reported)
        if gone:
            return Check(f"rank-{worker.rank}", worker.node, False, expected, gone, how, "run verify again; if it stays, " + REBUILD)
    elif line:
        node, stage = scene.node_of(address=line.writer.ip) or scene.engine_node, line.pp_rank
        told, how = True, "the engine's rank line"
    else:
        named = _actor_of(scene, worker)
        if named:
            node, stage, told, how = named, worker.stage, True, "name of the actor"
    if not told:
        return Check(f"rank-{worker.rank}", worker.node, None, expected, "not seen", "", REPORT)
    right = (node, stage) == (worker.node, worker.stage)
    return Check(f"rank-{worker.rank}", worker.node, right, expected, f"stage {stage} on {node}", how, remedy)


def _gone(scene: _Scene, node: str | None, reported: logs.Stage) -> str | None:
    """A report whose process is no living actor any more proves nothing of now."""
    actors = _actors(scene)
    if not actors or any(a.get("pid") == reported.pid and where == node for where, a in actors):
        return None
    return f"process {reported.pid} on {node} reported, and no such actor is alive"


def _actor_of(scene: _Scene, worker: _Worker) -> str | None:
    many_stages, many_tensors = len({w.stage for w in scene.workers}) > 1, len({w.tensor_rank for w in scene.workers}) > 1
    for node, actor in _actors(scene) or []:
        name = str(actor.get("name") or "")
        stage, tensor = re.search(r"_PP(\d+)", name), re.search(r"_TP(\d+)", name)
        if (bool(stage), bool(tensor)) == (many_stages, many_tensors) and (stage or tensor) \
                and int(stage[1] if stage else 0) == worker.stage and int(tensor[1] if tensor else 0) == worker.tensor_rank:
            return node
    return None


def _layers(scene: _Scene, worker: _Worker) -> Check:
    last = worker.first + worker.layers - 1
    expected = f"{worker.layers} layers, {worker.first} to {last}"
    reported = scene.stages.get(worker.rank)
    if reported is None or reported.layers is None:
        return Check(f"layers-{worker.rank}", worker.node, None, expected, "not seen", "", REPORT)
    seen = reported.layers
    given = reported.env.get("VLLM_PP_LAYER_PARTITION")
    how = "stage reporter, counted from its modules" + (f"; VLLM_PP_LAYER_PARTITION={given}" if given else "; no partition reached this process")
    if len({w.stage for w in scene.workers}) == 1:
        how = "stage reporter, counted from its modules"
    remedy = f"{PARTITION}; {REBUILD}"
    right = seen == (worker.first, last, worker.layers)
    return Check(f"layers-{worker.rank}", worker.node, right, expected, f"{seen[2]} layers, {seen[0]} to {seen[1]}", how, remedy)


# -- memory ---------------------------------------------------------------------------------------------------------
def _weights(scene: _Scene, worker: _Worker) -> Check:
    ident, expected = f"weights-{worker.rank}", f"{size(worker.weights)} within 2 %"
    reported = scene.stages.get(worker.rank)
    if reported and reported.loaded_bytes:
        how = "stage reporter: " + ("counted by the engine while loading" if reported.load_bytes else "parameters and buffers")
        found = _near(ident, worker.node, worker.weights, float(reported.loaded_bytes), 0.0, expected, how)
        other = reported.layers is not None and reported.layers[2] != worker.layers  # then the weights follow from the layers
        return replace(found, remedy=f"{PARTITION}; {REBUILD}") if other else found
    line = _loading_of(scene, worker)
    if line:
        how = "the engine's line \"Model loading took\""
        return _near(ident, worker.node, worker.weights, line.gib * GIB, line.rounding_gib * GIB, expected, how)
    return Check(ident, worker.node, None, expected, "not seen", "this engine prints it for the first rank of a node only",
                 REPORT)


def _near(ident: str, node: str, want: float, seen: float, rounding: float, expected: str, how: str) -> Check:
    right = abs(seen - want) <= TOLERANCE * want + rounding
    text = f"{size(seen)} ({(seen / want - 1) * 100:+.1f} %)"
    return Check(ident, node, right, expected, text, how, f"this stage holds other weights than planned: {REPLAN}")


def _loading_of(scene: _Scene, worker: _Worker) -> logs.Loading | None:
    """The worker's own "Model loading took" line: by its stage and tensor rank, or the node's only rank by address."""
    alone = len(scene.workers) == 1
    for line in reversed(scene.loading):
        who = line.writer
        if alone or (who.pp_rank is not None and (who.pp_rank, who.tp_rank or 0) == (worker.stage, worker.tensor_rank)):
            return line
        if who.pp_rank is None and who.name in WORKER_CLASSES and len(scene.on(worker.node)) == 1 \
                and (scene.node_of(address=who.ip) if who.ip else scene.engine_node) == worker.node:
            return line
    return None


def _kv(scene: _Scene, plan: Mapping[str, Any]) -> Check:
    want = max(1, int(plan["kv_tokens"]))
    expected = f"{want:,} tokens within 2 %"
    own = {rank: s.kv_blocks for rank, s in scene.stages.items() if s.kv_blocks is not None}
    blocks = set(own.values())
    if len(blocks) > 1:
        text = "blocks differ between ranks: " + ", ".join(f"rank {r}: {b}" for r, b in sorted(own.items()))
        return Check("kv-tokens", None, False, expected, text, "stage reporter", REBUILD)
    by_blocks = next((s.kv_tokens for s in scene.stages.values() if s.kv_tokens), None)
    seen = scene.kv.tokens or by_blocks  # the engine's figure is exact, and right for hybrid models as well
    if seen is None and scene.kv.blocks and plan.get("block_size"):
        seen = scene.kv.blocks * int(plan["block_size"])
    if not seen:
        return Check("kv-tokens", None, None, expected, "not seen", "", REPORT)
    how = [f"{blocks.copy().pop():,} blocks on every rank (stage reporter)"] if blocks else []
    how += ["the engine's line \"KV cache size\""] if scene.kv.tokens else []
    right = abs(seen - want) <= TOLERANCE * want
    return Check("kv-tokens", None, right, expected, f"{seen:,} tokens ({(seen / want - 1) * 100:+.1f} %)", "; ".join(how),
                 f"a device has more or less memory free than planned: {REPLAN}")


# -- nodes ----------------------------------------------------------------------------------------------------------
def _environment(scene: _Scene, node: str) -> Check:
    """Network variables as the processes on the node see them."""
    want = {k: str(v) for k, v in sorted((scene.nodes[node].get("env") or {}).items()) if k.startswith(("NCCL_", "GLOO_")) or k == "VLLM_HOST_IP"}
    interface, address = str(scene.nodes[node].get("interface") or ""), str(scene.nodes[node].get("address") or "")
    expected = f"its own {interface}, {address}"
    own = scene.reported_on(node)
    if not own:
        return Check("environment", node, None, expected, "not seen", "", REPORT)
    wrong: dict[str, str] = {}
    for stage in own:
        wrong.update({name: stage.env.get(name, "unset") for name, value in want.items() if stage.env.get(name) != value})
    how = f"stage reporter, rank{'s' * (len(own) > 1)} {', '.join(str(s.rank) for s in own)}"
    seen = _pairs(wrong) if wrong else expected
    return Check("environment", node, not wrong, expected, seen, f"{how}: {_pairs(want)}",
                 "another node's value reached this process: interface names are per node; run --tags nccl_interface,ray_cluster,vllm_serve")


def _pairs(values: Mapping[str, str]) -> str:
    return " ".join(f"{k}={v}" for k, v in values.items())


def _devices(scene: _Scene, node: str) -> Check:
    """Ranks of one node hold a device each."""
    own = scene.on(node)
    expected = f"ranks {', '.join(str(w.rank) for w in own)} on a device each"
    seen = {w.rank: scene.stages[w.rank].device_index for w in own if w.rank in scene.stages}
    told = {rank: index for rank, index in seen.items() if index is not None}
    if len(told) < len(own):
        return Check("devices", node, None, expected, "not seen", "", REPORT)
    text = ", ".join(f"rank {rank} on device {index}" for rank, index in sorted(told.items()))
    distinct = len(set(told.values())) == len(told)
    exact = all(told[w.rank] == w.device for w in own)
    alike = len({w.accelerator for w in own}) == 1  # cards of one kind may change places
    return Check("devices", node, distinct and (exact or alike), expected, text, "stage reporter", REBUILD)


def _busy(scene: _Scene, node: str) -> list[Check]:
    """Each device that the node's container sees worked during the probe."""
    wanted = scene.nodes[node].get("devices")
    indexes: Sequence[int] = list(wanted) if wanted is not None else list(range(len(scene.on(node))))
    samples = (scene.evidence.get("gpu_samples") or {}).get(node) or []
    seen = {b.index: b for b in readings.busiest(samples)}
    problem = str((scene.evidence.get("gpu_errors") or {}).get(node) or "")
    found = []
    for index in indexes:
        busy = seen.get(index)
        if busy is None:
            remedy = "see whether nvidia-smi runs in this node's container"
            found.append(Check(f"busy-{index}", node, None, "busy during the probe", "not seen", problem, remedy))
            continue
        what = f"nvidia-smi, {busy.samples} samples, {busy.name}"
        found.append(Check(f"busy-{index}", node, busy.busy, "busy during the probe", busy.text, what,
                           "no rank works on this device: compare ranks and devices above; " + REBUILD))
    return found


def _traffic(scene: _Scene, node: str) -> Check:
    """The chosen interface carried the activations, by its byte counters; NCCL's own line counts where it was printed."""
    interface = str(scene.nodes[node].get("interface") or "")
    tokens = int(scene.evidence.get("tokens") or 0)
    floor = max(1, tokens) * LEAST_BYTES_PER_TOKEN
    expected = f"at least {size(floor)} by {interface}"
    reading = (scene.evidence.get("net") or {}).get(node)
    remedy = "NCCL and Gloo took another interface: run --tags nccl_interface,ray_cluster,vllm_serve"
    other = _nccl_elsewhere(scene, node, interface)
    if other:
        return Check("traffic", node, False, expected, other, "NCCL's own line", remedy)
    if not reading or not tokens:
        return Check("traffic", node, None, expected, "not seen", "", "see whether this node's container runs")
    moved = readings.moved(readings.counters(reading["before"]), readings.counters(reading["after"]))
    chosen = moved.get(interface, 0)
    most = max((n for name, n in moved.items() if name != interface), default=0)
    text = ", ".join(f"{size(n)} by {name}" for name, n in list(moved.items())[:3] if n or name == interface) or "nothing"
    # A bridge or bond and its port count the same bytes: as much on another link is no sign against the chosen one.
    right = chosen >= floor and chosen * 2 >= most
    return Check("traffic", node, right, expected, text, f"byte counters around {tokens} generated tokens", remedy)


def _nccl_elsewhere(scene: _Scene, node: str, interface: str) -> str | None:
    for who, kind, detail in logs.nccl_networks(scene.evidence.get("log") or ""):
        where = (scene.node_of(address=who.ip) if who.ip else scene.engine_node) if who.name else None
        used = re.findall(r"\]([\w.-]+):", detail)
        if where == node and kind == "Socket" and used and interface and interface not in used:
            return f"NCCL uses {', '.join(used)}"
    return None


def _image(scene: _Scene, node: str) -> Check | None:
    locked, image = scene.evidence.get("locked"), (scene.evidence.get("images") or {}).get(node)
    if not locked or not locked.get("digest"):
        return None
    digest = str(locked["digest"])
    known = {digest, *(locked.get("platforms") or [])}
    expected = _short(digest)
    if not image:
        return Check("image", node, None, expected, "not seen", "", "see whether this node's container runs")
    seen = {d for text in (image.get("image"), image.get("image_id")) for d in re.findall(r"sha256:[0-9a-f]{64}", str(text or ""))}
    text = ", ".join(sorted(_short(d) for d in seen)) or str(image.get("image"))
    # The reference in the Pod fixes the content; the runtime may report the digest of one platform of it.
    return Check("image", node, bool(seen & known), expected, text, f"Pod status; lock file for {locked.get('image')}",
                 "this node runs another image than the lock file names: run --tags container_image,ray_cluster")


def _short(digest: str) -> str:
    return digest[:19]


# -- the endpoint ---------------------------------------------------------------------------------------------------
def _health(scene: _Scene) -> Check:
    seen = scene.evidence.get("health") or {}
    status = seen.get("status")
    return Check("health", None, None if status is None else status == 200, "200", "not seen" if status is None else str(status or "no answer"),
                 str(seen.get("problem") or "GET /health"), "look at the engine's log (vllm_serve says where), then run --tags vllm_serve")


def _key(scene: _Scene) -> Check:
    seen = scene.evidence.get("unauthorized") or {}
    status = seen.get("status")
    right = None if not status else status == 401
    text = "not seen" if not status else str(status)
    return Check("api-key", None, right, "401 without the key", text, str(seen.get("problem") or "GET /v1/models without a key"),
                 "the endpoint answers anybody: run --tags vllm_serve, which gives the engine its key")


def _completion(scene: _Scene) -> Check:
    """A health check proves nothing; a completion does."""
    seen = scene.evidence.get("completion")
    if seen is None:
        return Check("completion", None, None, "an answer with tokens", "not seen", "", "run verify where the endpoint can be reached")
    text = str(seen.get("problem") or "no tokens")
    if seen.get("ok"):
        text = f"{seen.get('output_tokens') or 0} tokens in {seen.get('seconds') or 0:.2f} s"
    return Check("completion", None, bool(seen.get("ok")), "an answer with tokens", text, "POST /v1/completions",
                 "look at the engine's log for the error of this request, then run --tags vllm_serve")


# -- for people -----------------------------------------------------------------------------------------------------
WORDS = {True: "ok", False: "FAIL", None: "not seen"}
TITLES: Mapping[str, str] = {
    "job": "job", "world-size": "ranks per node", "rank": "placement of rank", "layers": "layers of rank", "weights": "weights of rank",
    "kv-tokens": "KV cache", "environment": "network variables", "devices": "devices", "busy": "load of device", "traffic": "traffic",
    "image": "image", "health": "health", "api-key": "API key", "completion": "completion",
}


def title(ident: str) -> str:
    """An id in words: rank-1 is "placement of rank 1"."""
    head, _dash, number = ident.rpartition("-")
    return f"{TITLES[head]} {number}" if head in TITLES and number.isdigit() else TITLES.get(ident, ident)


def table(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines of a table: result, check, node, expected, seen."""
    rows = [(WORDS[c["passed"]], title(c["id"]), c["node"] or "", c["expected"], c["seen"]) for c in found]
    heads = ("", "check", "node", "expected", "seen")
    widths = [min(60, max(len(row[i]) for row in [heads, *rows])) for i in range(4)]
    return ["  ".join([*(f"{cell:<{widths[i]}}" for i, cell in enumerate(row[:4])), row[4]]).rstrip() for row in [heads, *rows]]
