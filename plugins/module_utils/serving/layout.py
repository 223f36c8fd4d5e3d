# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the serving side knows of one run: nodes as Pods need them, ports, names, paths. Built from cluster, plan and facts."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.network import interface as network
from ansible_collections.motley.inference.plugins.module_utils.planner.device import ACCELERATORS

NAMESPACE = "motley"
PART_OF = {"app.kubernetes.io/part-of": "motley"}
SELECTOR = "app.kubernetes.io/part-of=motley"
HEAD = "ray-head"
CONTAINER = "ray"
AT_RUN_TIME = "<found at run time>"

# Fixed ports of Ray; the range of its workers lies clear of 10001 and of vLLM's.
GCS_PORT = 6379
NODE_MANAGER_PORT = 6380
OBJECT_MANAGER_PORT = 6381
RUNTIME_ENV_PORT = 6382
AGENT_GRPC_PORT = 6383
AGENT_HTTP_PORT = 52365
METRICS_PORT = 8090
DASHBOARD_PORT = 8265
WORKER_PORTS = (11002, 11100)

# What belongs to one node and must not travel to another, whatever an executor copies; secrets likewise.
PER_NODE = (
    "CUDA_VISIBLE_DEVICES",
    "GLOO_SOCKET_IFNAME",
    "HF_TOKEN",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_HCA",
    "NCCL_SOCKET_IFNAME",
    "RAY_memory_monitor_refresh_ms",
    "TP_SOCKET_IFNAME",
    "UCX_NET_DEVICES",
    "VLLM_API_KEY",
    "VLLM_HOST_IP",
)
# Found out by Motley; an operator's value would contradict what is on the node.
_OURS = {
    "NCCL_SOCKET_IFNAME": "motley_interface, per node",
    "GLOO_SOCKET_IFNAME": "motley_interface, per node",
    "VLLM_HOST_IP": "motley_address, per node",
    "VLLM_PP_LAYER_PARTITION": "motley_layers",
    "VLLM_API_KEY": "motley_api_key_file",
    "HF_TOKEN": "motley_hf_token_file",
    "HUGGING_FACE_HUB_TOKEN": "motley_hf_token_file",
    "RAY_AUTH_TOKEN": "nothing: Motley makes it",
}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*(Ki|Mi|Gi|Ti|k|M|G|T)?")
_FACTORS = {None: 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_LEAST_SHM = 256 * 2**20


@dataclass(frozen=True)
class Member:
    """One node that takes part in the plan, as its Pod needs it."""

    name: str
    address: str
    arch: str
    gpus: int  # what Ray may use: the plan's workers on this node
    devices: tuple[int, ...]  # their indexes on the node
    limit: int  # what Kubernetes hands out to the Pod
    visible: str | None  # CUDA_VISIBLE_DEVICES where the Pod sees more devices than the plan uses
    unified: bool
    interface: str
    cache_path: str
    env: Mapping[str, str] = field(default_factory=dict)
    budget_gib: tuple[float, ...] = ()  # memory that the plan gives each of its devices

    @property
    def pod(self) -> str:
        return f"ray-worker-{self.name}"


@dataclass(frozen=True)
class Layout:
    """The engine node first, then the others in rank order."""

    head: Member
    workers: tuple[Member, ...]
    plan: str  # first 12 digits of the plan's digest
    world_size: int

    @property
    def members(self) -> tuple[Member, ...]:
        return (self.head, *self.workers)

    def pod_of(self, node: str) -> str:
        """The name of a node's Pod."""
        if node == self.head.name:
            return HEAD
        return next(m.pod for m in self.workers if m.name == node)


def bytes_of(quantity: str, *, name: str) -> int:
    """A Kubernetes quantity (`1Gi`, `500M`, `1073741824`) in bytes."""
    match = _QUANTITY.fullmatch(str(quantity).strip())
    if not match:
        raise MotleyError(f"{name} is {quantity!r}, which is no size", hint="write it as 1Gi or 512Mi")
    return int(float(match[1]) * _FACTORS[match[2]])


def shm_bytes(quantity: str) -> int:
    """The size of /dev/shm, refused when Ray and NCCL could not start in it."""
    size = bytes_of(quantity, name="motley_shm_size")
    if size < _LEAST_SHM:
        raise MotleyError(
            f"motley_shm_size is {quantity}: Ray's object store and the engine's queues need 256Mi at least",
            hint="set motley_shm_size to 1Gi; it is memory of the node, and on unified memory of the GPU too",
        )
    return size


def object_store_bytes(shm: int) -> int:
    """Ray's object store lies in /dev/shm and vLLM hardly uses it: half of it, at most 1 GiB; the rest is for queues and NCCL."""
    return max(80_000_000, min(2**30, shm // 2))


def check_host_path(path: str, *, platform: str, node: str) -> str:
    """A path for the model cache on the node. On Talos only /var can be written."""
    clean = posixpath.normpath(path)
    if not path.startswith("/"):
        raise MotleyError(f"motley_cache_path {path}: not an absolute path", node=node, hint="set it to /var/lib/hf-cache")
    if platform == "talos" and not clean.startswith("/var/"):
        raise MotleyError(
            f"hostPath {path}: Talos allows writing only below /var",
            node=node,
            hint="set motley_cache_path to /var/lib/hf-cache (or to a user volume, /var/mnt/NAME)",
        )
    return clean


def mount_type(path: str) -> str:
    """The kubelet on Talos sees user volumes (/var/mnt) read-only and can make nothing there; elsewhere it makes the directory."""
    return "Directory" if posixpath.normpath(path).startswith("/var/mnt/") else "DirectoryOrCreate"


def _devices(plan: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for stage in plan["stages"]:
        for worker in stage["workers"]:
            found.setdefault(worker["node"], []).append(worker)
    return found


def _visibility(used: Sequence[int], devices: Sequence[Mapping[str, Any]]) -> tuple[int, str | None]:
    """(GPUs to ask for, CUDA_VISIBLE_DEVICES). Equal cards are interchangeable; of unequal ones the Pod takes all and sees the planned ones."""
    if len({str(d.get("accelerator")) for d in devices}) <= 1 and len({d.get("memory_gib") for d in devices}) <= 1:
        return len(used), None
    if len(used) == len(devices):
        return len(devices), None
    return len(devices), ",".join(str(i) for i in sorted(used))


def check_env(env: Mapping[str, str], *, where: str, node: str | None = None) -> dict[str, str]:
    """Variables of the operator, refused where Motley sets them from what it found out."""
    for name in env:
        if name in _OURS:
            raise MotleyError(f"{where} sets {name}, which Motley sets itself", node=node, hint=f"take it out; what it is for: {_OURS[name]}")
    return {str(k): str(v) for k, v in env.items()}


def build(cluster: Mapping[str, Any], plan: Mapping[str, Any], facts: Mapping[str, Mapping[str, Any]], *, check_mode: bool = False) -> Layout:
    """The layout of a plan. facts: node -> {fact: value}; a missing interface is an error, in check mode a placeholder."""
    if not plan.get("feasible", True) or not plan.get("stages"):
        raise MotleyError("the plan has no stages: nothing fits", hint="run --tags plan and follow what it says")
    check_env(cluster["engine"]["env"], where="motley_engine_env")
    used = _devices(plan)
    nodes = {n["name"]: n for n in cluster["nodes"]}
    engine_node = plan["stages"][0]["workers"][0]["node"]
    members = []
    for name, workers in used.items():
        if name not in nodes:
            raise MotleyError(f"the plan uses {name}, which is no node of the inventory", hint="run --tags plan")
        members.append(_member(nodes[name], workers, cluster, plan, facts.get(name, {}), check_mode=check_mode))
    head = next(m for m in members if m.name == engine_node)
    others = tuple(m for m in members if m.name != engine_node)
    return Layout(head=head, workers=others, plan=str(plan["inputs_sha256"])[:12], world_size=sum(m.gpus for m in members))


def _member(
    node: Mapping[str, Any],
    workers: Sequence[Mapping[str, Any]],
    cluster: Mapping[str, Any],
    plan: Mapping[str, Any],
    facts: Mapping[str, Any],
    *,
    check_mode: bool,
) -> Member:
    name = node["name"]
    indexes = tuple(sorted(int(w["device"]) for w in workers))
    limit, visible = _visibility(indexes, node["devices"])
    found = facts.get("interface")
    link = str((found or {}).get("name", "")) if isinstance(found, Mapping) else str(found or "")
    if not link:
        if not check_mode:
            raise MotleyError(f"the network interface of {name} is not known", node=name, hint="run --tags nccl_interface first")
        link = AT_RUN_TIME
    accelerators = [ACCELERATORS.get(str(w["accelerator"])) for w in workers]
    planned = (plan["engine"].get("node_env") or {}).get(name) or {}
    # These depend on what the Pod sees, not on the node, and are set for it.
    ours = (*_OURS, "RAY_memory_monitor_refresh_ms", "CUDA_VISIBLE_DEVICES")
    own = {k: str(v) for k, v in planned.items() if k not in ours}
    own.update(check_env(node.get("nccl_env") or {}, where="motley_nccl_env", node=name))
    own.update(network.variables(link, node["address"]))
    return Member(
        name=name,
        address=node["address"],
        arch=str(facts.get("architecture") or node["arch"]),
        gpus=len(workers),
        devices=indexes,
        limit=limit,
        visible=visible,
        unified=any(a is not None and a.unified for a in accelerators),
        interface=link,
        cache_path=check_host_path(str(node.get("cache_path") or cluster["storage"]["cache_path"]), platform=cluster["platform"], node=name),
        env=own,
        budget_gib=tuple(float(w.get("budget_gib") or 0.0) for w in sorted(workers, key=lambda w: int(w["device"]))),
    )
