# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ray as Motley uses it: one job with a known name, what its API answers, and what that means."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ansible_collections.motley.inference.plugins.module_utils.engine import logs
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.kube.objects import fingerprint
from ansible_collections.motley.inference.plugins.module_utils.serving.layout import PER_NODE, Layout

PREFIX = "motley-"
_ID = re.compile(r"motley-(?P<plan>[0-9a-f]{12})-(?P<number>\d+)")
_ACTIVE = ("PENDING", "RUNNING")
_NOT_FOR_ALL = frozenset(PER_NODE)
# The smallest release that has token authentication, without which Ray is an open door.
LEAST_RAY = (2, 52, 0)


@dataclass(frozen=True)
class Job:
    """One submitted job as the Jobs API lists it."""

    id: str
    status: str
    spec: str
    message: str
    start_ms: int

    @property
    def number(self) -> int:
        match = _ID.fullmatch(self.id)
        return int(match["number"]) if match else 0

    @property
    def active(self) -> bool:
        return self.status in _ACTIVE


@dataclass(frozen=True)
class Decision:
    """What to do about the engine's job: keep it, wait for it, or submit `id` after stopping `stop`."""

    action: Literal["keep", "submit"]
    id: str
    stop: tuple[str, ...] = ()
    reason: str = ""
    failed: Job | None = None


@dataclass(frozen=True)
class RayNode:
    """A node as Ray's State API lists it."""

    name: str
    address: str
    alive: bool
    gpus: int
    head: bool


def command(model: str, args: Sequence[str]) -> list[str]:
    """The engine's command line."""
    return ["vllm", "serve", model, *args]


def variables(engine_env: Mapping[str, str]) -> dict[str, str]:
    """The job's environment for all its processes on all nodes; what belongs to one node or is secret has no place in it."""
    wrong = sorted(_NOT_FOR_ALL & set(engine_env))
    if wrong:
        raise MotleyError(f"{', '.join(wrong)} can not be set for all nodes at once", hint="set motley_nccl_env on the node that needs it")
    return {"RAY_DEDUP_LOGS": "0", **{k: str(v) for k, v in engine_env.items()}}


def specification(model: str, args: Sequence[str], engine_env: Mapping[str, str]) -> dict[str, Any]:
    """Entrypoint and runtime environment of the job."""
    return {"entrypoint": shlex.join(command(model, args)), "runtime_env": {"env_vars": variables(engine_env)}}


def spec_digest(specification_: Mapping[str, Any]) -> str:
    """A digest by which a running job is compared with what is wanted."""
    return fingerprint(specification_)[:16]


def submission(specification_: Mapping[str, Any], *, job: str, plan: str) -> dict[str, Any]:
    """Body of POST /api/jobs/."""
    return {**specification_, "submission_id": job, "metadata": {"motley_plan": plan, "motley_spec": spec_digest(specification_)}}


def jobs(answer: Any) -> list[Job]:
    """The submissions in the answer of GET /api/jobs/ that are ours, oldest first."""
    rows = answer if isinstance(answer, list) else list((answer or {}).values()) if isinstance(answer, dict) else []
    found = [
        Job(
            id=str(row.get("submission_id")),
            status=str(row.get("status")),
            spec=str((row.get("metadata") or {}).get("motley_spec", "")),
            message=str(row.get("message") or ""),
            start_ms=int(row.get("start_time") or 0),
        )
        for row in rows
        if str(row.get("submission_id") or "").startswith(PREFIX)
    ]
    return sorted(found, key=lambda job: (job.start_ms, job.number))


def decide(found: Iterable[Job], *, plan: str, spec: str, rebuild: bool = False) -> Decision:
    """Whether the wanted job runs already; else its new id and what has to be stopped before."""
    known = list(found)
    mine = [job for job in known if job.active and job.spec == spec and job.id.startswith(f"{PREFIX}{plan}-")]
    others = [job.id for job in known if job.active and job not in mine]
    # Ids are never used twice: Ray refuses one that it knows.
    number = max((job.number for job in known if job.id.startswith(f"{PREFIX}{plan}-")), default=0) + 1
    fresh = f"{PREFIX}{plan}-{number}"
    if rebuild:
        return Decision("submit", fresh, tuple(job.id for job in known if job.active), "rebuild was asked for")
    if mine and not others:
        return Decision("keep", mine[-1].id)
    if mine:
        return Decision("keep", mine[-1].id, tuple(others + [job.id for job in mine[:-1]]), "an older job runs beside it")
    ended = [job for job in known if not job.active and job.spec == spec]
    failed = ended[-1] if ended and ended[-1].status == "FAILED" else None
    if others:
        return Decision("submit", fresh, tuple(others), "the running job is of an older plan", failed)
    if failed:
        return Decision("submit", fresh, (), f"{failed.id} has failed", failed)
    return Decision("submit", fresh, (), "no job runs" if known else "first start")


def nodes(answer: Any) -> list[RayNode]:
    """Nodes in the answer of GET /api/v0/nodes?detail=true."""
    data = (answer or {}).get("data") or {} if isinstance(answer, dict) else {}
    rows = (data.get("result") or {}).get("result") or []
    return [
        RayNode(
            name=str(row.get("node_name") or ""),
            address=str(row.get("node_ip") or ""),
            alive=str(row.get("state")) == "ALIVE",
            gpus=int(float((row.get("resources_total") or {}).get("GPU", 0))),
            head=bool(row.get("is_head_node")),
        )
        for row in rows
    ]


@dataclass(frozen=True)
class Membership:
    """How Ray's nodes compare with the plan."""

    missing: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    extra: tuple[str, ...] = field(default=())

    @property
    def complete(self) -> bool:
        return not (self.missing or self.wrong or self.extra)

    def text(self) -> str:
        parts = [f"{name} is not in Ray" for name in self.missing] + list(self.wrong) + [f"{name} is in Ray, not in the plan" for name in self.extra]
        return "; ".join(parts)


def compare(found: Iterable[RayNode], layout: Layout) -> Membership:
    """Every planned node ALIVE with as many GPUs as planned, and no other one."""
    alive = {node.address: node for node in found if node.alive}
    wrong = []
    missing = []
    for member in layout.members:
        node = alive.pop(member.address, None)
        if node is None:
            missing.append(member.name)
        elif node.gpus != member.gpus:
            wrong.append(f"{member.name} offers {node.gpus} GPUs to Ray, planned are {member.gpus}")
    return Membership(tuple(missing), tuple(wrong), tuple(node.name or node.address for node in alive.values()))


# Phases of a start, by what the newest telling line of the log says.
_PHASES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"Application startup complete|Uvicorn running on"), "the API answers soon"),
    (re.compile(r"Starting vLLM API server|Starting vLLM server"), "the API server starts"),
    (re.compile(r"Graph capturing finished|init engine \(.*took"), "warm-up ends"),
    (re.compile(r"Capturing CUDA graph|Graph capturing"), "CUDA graphs are captured"),
    (re.compile(r"KV cache size|# (?:GPU|CPU) blocks|Available KV cache memory"), "the KV cache is made"),
    (re.compile(r"torch\.compile takes|Compiling a graph|Dynamo bytecode"), "kernels are compiled"),
    (re.compile(r"Model loading took|Loading weights took"), "memory is profiled"),
    (re.compile(r"Loading safetensors|Starting to load model|Loading weights"), "weights are loaded"),
    (re.compile(r"[Dd]ownloading|Fetching \d+ files"), "the model is downloaded"),
    (re.compile(r"rank \d+ in world size|creating a placement group|init_process_group|Connecting to existing Ray"), "workers are placed"),
    (re.compile(r"Initializing (?:a V1 LLM engine|an LLM engine)|non-default args|vLLM API server version"), "the engine is configured"),
)
_PERCENT = re.compile(r"(\d{1,3})% ?(?:Completed)?\s*\|")


def phase(text: str) -> str:
    """Which part of its start the engine is in, from its log."""
    for line in reversed(logs.strip_ansi(text).splitlines()):
        for pattern, name in _PHASES:
            if pattern.search(line):
                share = _PERCENT.search(line)
                return f"{name}, {share[1]} %" if share else name
    return "the engine starts"


def failure(job: Job, text: str, *, node: str) -> MotleyError:
    """Why a job ended: the first known error with its remedy, else the lines that look like errors."""
    known = logs.faults(text)
    lines = logs.error_lines(text, last=6) or [line for line in logs.strip_ansi(text).splitlines() if line.strip()][-6:]
    if known:
        first = known[0]
        return MotleyError(
            f"the engine's job {job.id} has ended ({job.status.lower()}): {first.cause}",
            node=node,
            hint=first.remedy,
            evidence=[first.line, *[line for line in lines if line != first.line][-3:]],
        )
    reason = job.message.strip().splitlines()[0] if job.message.strip() else "no reason given"
    return MotleyError(
        f"the engine's job {job.id} has ended ({job.status.lower()}): {reason}"[:400],
        node=node,
        hint="the lines above are the last errors of its log; with the cause removed, --tags vllm_serve starts it again",
        evidence=lines,
    )


# What `ray start` says when a node does not come up.
_START_PROBLEMS: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (
        re.compile(r"Version mismatch: The cluster was started with:\s*(?:Ray: \S+\s*Python: \S+)?", re.DOTALL),
        "Ray or Python of this node differ from the head's",
        "use one image with both architectures (run --tags container_image)",
    ),
    (
        re.compile(r"ray: (?:command )?not found|executable file not found|exec: \"ray\""),
        "the image holds no Ray",
        "name an image with Ray in motley_image",
    ),
    (
        re.compile(r"AuthenticationError|Unauthenticated|[Ii]nvalid (?:auth|authentication) token"),
        "the head does not accept this node's token",
        "run --tags ray_cluster -e motley_rebuild=true: it gives all Pods one token",
    ),
    (
        re.compile(r"Address already in use|bind: address already|port \d+ is already in use"),
        "another program on the node holds one of Ray's ports",
        "end it: an earlier Pod that is not gone yet, or a Ray outside of Kubernetes",
    ),
    (
        re.compile(r"Unable to connect to GCS|Failed to connect to GCS"),
        "the node does not reach the head's port 6379",
        "check the link between the nodes and the firewall",
    ),
    (
        re.compile(r"object store memory .* larger than|exceeds the available shared memory"),
        "the object store does not fit into /dev/shm",
        "raise motley_shm_size",
    ),
)


def start_problem(log: str) -> tuple[str, str] | None:
    """(cause, remedy) of a container that ends, from its log."""
    for pattern, cause, cure in _START_PROBLEMS:
        if pattern.search(log):
            return cause, cure
    return None


def version_problem(version: str | None) -> str:
    """Why a Ray release must not be used; empty if it may be. Unknown is no problem here: the start itself tells."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version or "")
    if not match:
        return ""
    numbers = (int(match[1]), int(match[2]), int(match[3] or 0))
    if numbers < LEAST_RAY:
        return f"Ray {version} has no token authentication: whoever reaches its ports can run code on every node"
    return ""
