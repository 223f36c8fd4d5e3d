# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an engine's log says: stage reporter lines, memory lines of three vLLM generations, ranks, errors and causes.

Source file and line in vLLM's brackets change with each release, so everything matches on the text alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

MARK = "MOTLEY_STAGE"
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_PREFIX = re.compile(r"\((?P<who>[A-Za-z][\w.]*)(?: pid=(?P<pid>\d+))?(?:, ip=(?P<ip>[0-9A-Fa-f.:]+))?\)")
_NUMBER = r"(-?\d+(?:\.\d+)?)"
_SIZE = rf"{_NUMBER}\s?Gi?B"  # old releases print "GB" for 2^30 bytes as well
_LOADING = re.compile(rf"Model loading took {_SIZE}(?: memory)?(?: and {_NUMBER} seconds)?")
_WEIGHTS_TAKE = re.compile(rf"model weights take {_SIZE}")
_AVAILABLE = (
    re.compile(rf"Available KV cache memory: {_SIZE}"),
    re.compile(rf"\bkv_cache_size={_SIZE}"),
    re.compile(rf"memory reserved for KV Cache is {_SIZE}"),
)
_EXPLICIT = re.compile(rf"Explicitly set \({_NUMBER}/{_NUMBER}\) GiB for KV cache")
_TOKENS = re.compile(r"(?:GPU|CPU|XPU|TPU|NPU) KV cache size: ([\d,]+) tokens")
_BLOCKS = re.compile(r"(?:GPU|CPU) blocks: (\d+)")
_CONCURRENCY = re.compile(rf"Maximum concurrency for ([\d,]+) tokens per request: {_NUMBER}x")
_RANK = re.compile(r"rank (\d+) in world size (\d+) is assigned as DP rank (\d+), PP rank (\d+),(?: PCP rank \d+,)? TP rank (\d+)")
_UNEVEN = re.compile(r"Hidden layers were unevenly partitioned: \[([\d, ]+)\]")
_NCCL_NET = re.compile(r"NCCL INFO (?:NET/(Socket|IB) : Using (.+)|Using network (\S+))")
_PP, _TP = re.compile(r"PP(\d+)"), re.compile(r"TP(\d+)")


def strip_ansi(text: str) -> str:
    """The text without terminal colours."""
    return _ANSI.sub("", text)


# -- who wrote a line -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Writer:
    """What a line's prefix tells of the process: `(RayWorkerProc pid=7, ip=10.0.0.10)`, `(Worker_PP1_TP0 pid=9)`."""

    name: str | None = None
    pid: int | None = None
    ip: str | None = None
    pp_rank: int | None = None
    tp_rank: int | None = None


def writer(line: str) -> Writer:
    """Read the prefixes of one line; Ray puts its own before the engine's, so both are looked at."""
    name = pid = ip = pp = tp = None
    for match in _PREFIX.finditer(line[:160]):
        name = match["who"]
        pid = int(match["pid"]) if match["pid"] else pid
        ip = match["ip"] or ip
        stage, tensor = _PP.search(name), _TP.search(name)
        pp = int(stage[1]) if stage else pp
        tp = int(tensor[1]) if tensor else tp
    return Writer(name, pid, ip, pp, tp)


# -- stage reporter -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Stage:
    """One rank as it reported itself in its latest start."""

    rank: int
    pp_rank: int
    tp_rank: int
    node: str
    host_ip: str | None
    pid: int
    device: str
    physical_device: int | None
    local_rank: int
    world_size: int | None
    layers: tuple[int, int, int] | None  # first, last, how many
    parameters: int | None
    weight_bytes: int | None
    load_bytes: int | None
    kv_blocks: int | None = None
    kv_bytes: int | None = None
    block_size: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def loaded_bytes(self) -> int | None:
        """What the engine counted while loading; on CPUs, where it does not count, the bytes of the parameters."""
        return self.load_bytes or self.weight_bytes

    @property
    def kv_tokens(self) -> int | None:
        return self.kv_blocks * self.block_size if self.kv_blocks is not None and self.block_size else None

    @property
    def device_index(self) -> int | None:
        """Index of the device on its node: the engine's own table, else the process's view through CUDA_VISIBLE_DEVICES."""
        if self.physical_device is not None:
            return self.physical_device
        text = self.env.get("CUDA_VISIBLE_DEVICES", "")
        visible = [int(v) for v in text.split(",") if v.strip().isdigit()]
        number = re.fullmatch(r"cuda(?::(\d+))?", self.device)
        if number:
            index = int(number[1] or 0)
            if not text:
                return index
            return visible[index] if index < len(visible) else None
        return visible[0] if len(visible) == 1 else None


def stage_events(text: str) -> list[dict[str, Any]]:
    """Every stage reporter event in the order of the log; a line that was cut or mixed up is skipped."""
    events = []
    for line in strip_ansi(text).splitlines():
        at = line.find(MARK + "{")
        while at >= 0:
            try:
                event, _end = json.JSONDecoder().raw_decode(line[at + len(MARK):])
            except ValueError:
                event = None
            if isinstance(event, dict) and isinstance(event.get("rank"), int):
                events.append(event)
            at = line.find(MARK + "{", at + 1)
    return events


def stages(text: str) -> dict[int, Stage]:
    """The ranks of the latest start, by rank.

    A start is told by its processes: a rank's newer "load" event from another process replaces what it said before, and
    ranks beyond the newest world size belong to an earlier start.
    """
    found: dict[int, dict[str, Any]] = {}
    newest: dict[str, Any] = {}
    for event in stage_events(text):
        known = found.get(event["rank"])
        if known is None or _process(known) != _process(event) or event.get("event") == "load":
            found[event["rank"]] = dict(event)
        else:
            known.update({k: v for k, v in event.items() if v is not None})
        newest = event
    world = newest.get("world_size")
    return {rank: _stage(event) for rank, event in sorted(found.items()) if world is None or rank < world}


def _process(event: Mapping[str, Any]) -> tuple[Any, Any]:
    return event.get("node"), event.get("pid")


def _stage(event: Mapping[str, Any]) -> Stage:
    layers = event.get("layers")
    return Stage(
        rank=event["rank"], pp_rank=int(event.get("pp_rank") or 0), tp_rank=int(event.get("tp_rank") or 0),
        node=str(event.get("node") or ""), host_ip=event.get("host_ip"), pid=int(event.get("pid") or 0),
        device=str(event.get("device") or ""), physical_device=event.get("physical_device"),
        local_rank=int(event.get("local_rank") or 0), world_size=event.get("world_size"),
        layers=(layers[0], layers[1], layers[2]) if isinstance(layers, list) and len(layers) == 3 else None,
        parameters=event.get("params"), weight_bytes=event.get("weight_bytes"), load_bytes=event.get("load_bytes"),
        kv_blocks=event.get("kv_blocks"), kv_bytes=event.get("kv_bytes"), block_size=event.get("block_size"),
        env={str(k): str(v) for k, v in (event.get("env") or {}).items()},
    )


def stage_errors(text: str) -> list[str]:
    """What the stage reporter itself could not find out."""
    return [line[line.index(f"{MARK}_ERROR") + len(MARK) + 7:] for line in strip_ansi(text).splitlines() if f"{MARK}_ERROR " in line]


# -- memory lines ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Loading:
    """`Model loading took X GiB`: half a unit of the last printed digit is its rounding."""

    gib: float
    rounding_gib: float
    seconds: float | None
    writer: Writer


@dataclass(frozen=True)
class KvCache:
    """KV cache lines of one start: bytes per writer, tokens and concurrency of the whole engine."""

    available: tuple[tuple[Writer, float], ...] = ()
    tokens: int | None = None
    blocks: int | None = None
    concurrency: float | None = None
    max_model_len: int | None = None


def model_loading(text: str) -> list[Loading]:
    """Each line that says how much memory the weights took, in the order of the log."""
    found = []
    for line in strip_ansi(text).splitlines():
        match = _LOADING.search(line) or _WEIGHTS_TAKE.search(line)
        if match:
            seconds = match[2] if match.re is _LOADING else None
            found.append(Loading(float(match[1]), _rounding(match[1]), float(seconds) if seconds else None, writer(line)))
    return found


def _rounding(number: str) -> float:
    digits = len(number.partition(".")[2])
    return 0.5 * 10.0 ** -digits


def kv_cache(text: str) -> KvCache:
    """The KV cache of the latest start, whichever of the three generations of lines the log has."""
    available: dict[Writer, float] = {}
    tokens = blocks = length = None
    concurrency = None
    complete = False  # the engine has summed up: more room lines belong to its next start
    for line in strip_ansi(text).splitlines():
        room = _first(_AVAILABLE, line) or _EXPLICIT.search(line)
        if room:
            available = {} if complete else available
            complete = False
            available[writer(line)] = float(room[1])
        if match := _TOKENS.search(line):
            tokens, complete = int(match[1].replace(",", "")), True
        if match := _BLOCKS.search(line):
            blocks, complete = int(match[1]), True
        if match := _CONCURRENCY.search(line):
            length, concurrency = int(match[1].replace(",", "")), float(match[2])
    return KvCache(tuple(available.items()), tokens, blocks, concurrency, length)


def _first(patterns: tuple[re.Pattern[str], ...], line: str) -> re.Match[str] | None:
    return next((m for p in patterns if (m := p.search(line))), None)


# -- ranks and network ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Rank:
    """`rank R in world size W is assigned as …`; ip is None for the node that the log comes from."""

    rank: int
    world_size: int
    dp_rank: int
    pp_rank: int
    tp_rank: int
    writer: Writer


def ranks(text: str) -> dict[int, Rank]:
    """Rank lines of the latest start; engines print one for the first rank of a node only."""
    found: dict[int, Rank] = {}
    world = 0
    for line in strip_ansi(text).splitlines():
        if match := _RANK.search(line):
            rank, world, dp, pp, tp = (int(n) for n in match.groups())
            found[rank] = Rank(rank, world, dp, pp, tp, writer(line))
    return {r: line for r, line in sorted(found.items()) if line.world_size == world}


def partition(text: str) -> tuple[int, ...] | None:
    """The split that the engine chose by itself because none was given, if it said so."""
    found = _UNEVEN.findall(strip_ansi(text))
    return tuple(int(n) for n in found[-1].split(",")) if found else None


def nccl_networks(text: str) -> list[tuple[Writer, str, str]]:
    """(writer, transport, details) of each NCCL network line: transport is Socket or IB, details name the devices."""
    found = []
    for line in strip_ansi(text).splitlines():
        match = _NCCL_NET.search(line)
        if match and not (match[2] or "").startswith("[RO]"):
            found.append((writer(line), match[1] or match[3], (match[2] or "").strip()))
    return found


# -- errors ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Fault:
    """An error that the log names, with its cause and what to do."""

    id: str
    cause: str
    remedy: str
    line: str


_Said = Callable[[re.Match[str]], str]


@dataclass(frozen=True)
class _Pattern:
    id: str
    pattern: re.Pattern[str]
    cause: str | _Said
    remedy: str | _Said


def _p(name: str, pattern: str, cause: str | _Said, remedy: str | _Said) -> _Pattern:
    return _Pattern(name, re.compile(pattern), cause, remedy)


# The first pattern that matches a line names it; the more telling ones stand first.
_FAULTS: tuple[_Pattern, ...] = (
    _p("partition-sum", r"sum\(partitions\)=(\d+) does not match num_hidden_layers=(\d+)",
       lambda m: f"VLLM_PP_LAYER_PARTITION adds up to {m[1]} layers, and the model has {m[2]}",
       "run --tags plan, then --tags vllm_serve: the plan writes the partition"),
    _p("partition-length", r"len\(partitions\)=(\d+) does not match pp_size=(\d+)",
       lambda m: f"VLLM_PP_LAYER_PARTITION has {m[1]} numbers for {m[2]} stages",
       "run --tags plan, then --tags vllm_serve: the plan writes the partition"),
    _p("partition-text", r"Invalid partition string: (.*)",
       lambda m: f"VLLM_PP_LAYER_PARTITION is {m[1].strip()!r}, not numbers with commas",
       "take it out of motley_engine_env; the plan writes it"),
    _p("kv-too-small", r"max seq len \((\d+)\),? \(?([\d.]+) GiB KV cache is needed, which is larger than the available KV cache memory "
       r"\(([\d.]+) GiB\)(?:.*estimated maximum model length is (\d+))?",
       lambda m: f"a request of {m[1]} tokens needs {m[2]} GiB of KV cache on a stage that has {m[3]} GiB",
       lambda m: f"set motley_max_model_len to {m[4]} or less, or give that stage fewer layers" if m[4]
       else "lower motley_max_model_len, or give that stage fewer layers"),
    _p("no-kv", r"No available memory for the cache blocks",
       "weights and working memory leave no room for the KV cache on a stage",
       "give that stage fewer layers (motley_layers), or raise motley_gpu_memory_utilization"),
    _p("memory-taken", r"Free memory on device (\S+) \(([\d.]+)/([\d.]+) GiB\) on startup is less than desired GPU memory utilization "
       r"\(([\d.]+), ([\d.]+) GiB\)",
       lambda m: f"{m[1]} has {m[2]} of {m[3]} GiB free, and the fraction {m[4]} asks for {m[5]} GiB",
       lambda m: f"end what else uses the device, drop the page cache on unified memory, or set motley_gpu_memory_utilization "
       f"to {int(float(m[2]) / float(m[3]) * 100) / 100:.2f}"),
    _p("memory-moved", r"Error in memory profiling\. Initial free memory",
       "another process freed device memory while the engine measured it", "run again when nothing else uses the device"),
    _p("out-of-memory", r"torch\.(?:cuda\.)?OutOfMemoryError|CUDA out of memory",
       "a device ran out of memory", "compare the layers of its stage with the plan (verify); give that stage fewer layers"),
    _p("heads", r"Total number of attention heads \((\d+)\) must be divisible by tensor parallel size \((\d+)\)",
       lambda m: f"{m[1]} attention heads cannot be divided by tensor parallel size {m[2]}", "plan without motley_engine_args that set the size"),
    _p("no-pipeline", r"Pipeline parallelism is not supported for this model", "this model class cannot be cut into stages",
       "use a plan with one stage, or another model"),
    _p("placement", r"Cannot provide a placement group|No available node types can fulfill resource request",
       "Ray has not the devices that the engine asks for", "compare the devices that each node offers (verify, ray status) with the plan"),
    _p("ip-differs", r"Every node should have a unique IP address|driver node id .* is not included in a placement group",
       "the engine and Ray know a node by different addresses", "set motley_address to the address on the inter-node network"),
    _p("no-driver-gpu", r"Current node has no GPU available", "the engine's node offers no device to Ray", "run --tags ray_cluster"),
    _p("ray-version", r"Version mismatch: The cluster was started with: (.*)",
       "Ray or Python differ between the nodes", "use one image with both architectures (run --tags container_image)"),
    _p("ray-memory", r"ray\.exceptions\.OutOfMemoryError|were killed due to the node running low on memory",
       "Ray's memory monitor ended a worker", "on unified memory the monitor must be off: run --tags ray_cluster"),
    _p("ray-token", r"Token authentication is enabled but no authentication token was found",
       "a process has no Ray token", "run --tags ray_cluster: it puts the token into every container"),
    _p("gloo-loopback", r"Gloo connectFullMesh failed|Unable to resolve hostname to a \(local\) address\. Using the loopback",
       "Gloo bound to loopback, so ranks on other nodes cannot reach it",
       "run --tags nccl_interface: GLOO_SOCKET_IFNAME must name each node's own interface"),
    _p("gloo-interface", r"Unable to find address for: (\S+)",
       lambda m: f"this node has no interface {m[1]}: the name is another node's",
       "interface names are per node: take them out of motley_engine_env and run --tags nccl_interface"),
    _p("nccl-interface", r"Bootstrap : no socket interface found",
       "NCCL found no interface that fits NCCL_SOCKET_IFNAME", "run --tags nccl_interface, then --tags ray_cluster"),
    _p("nccl", r"ncclSystemError|ncclInternalError|ncclRemoteError", "NCCL failed between the ranks",
       "look at the NCCL lines above it; check the interface per node (verify) and the link"),
    _p("shm", r"Error while creating shared memory segment|open shm in SHMManager failed", "the container's shared memory is too small or shared",
       "raise motley_shm_size and run --tags ray_cluster"),
    _p("gated", r"Cannot access gated repo|Access to model \S+ is restricted|401 Client Error", "the hub refuses this model without a token",
       "give motley_hf_token_file, after the model's licence is accepted on its page"),
    _p("no-kernel", r"no kernel image is available for execution on the device", "this build of the engine has no code for this device",
       "use an image built for the device's compute capability"),
    _p("no-driver", r"CUDA driver version is insufficient|no CUDA-capable device is detected|Failed to initialize NVML",
       "the container sees no working NVIDIA driver", "run --tags gpu_device_plugin: it makes a CUDA call on each node"),
    _p("dns", r"Temporary failure in name resolution", "a container resolves no names", "check motley_nameservers and the cluster's DNS"),
    _p("port-name", r"VLLM_PORT '(.*)' appears to be a URI", "a Service named vllm sets VLLM_PORT in the pods", "rename that Service"),
    _p("no-ray", r"No module named 'ray'|ray: (?:command )?not found", "the image holds no Ray", "use an image with Ray, or motley_launcher: native"),
    _p("quantisation", r"is not divisible by (?:weight quantization block_[kn]|group_size|\s*min_thread_n) ?= ?(\d+)",
       "the tensor parallel size does not fit the checkpoint's quantisation groups", "use a smaller tensor parallel size"),
)


def faults(text: str) -> list[Fault]:
    """Known errors in the order of the log, each kind once."""
    found: dict[str, Fault] = {}
    for line in strip_ansi(text).splitlines():
        for row in _FAULTS:
            match = row.pattern.search(line) if row.id not in found else None
            if match:
                found[row.id] = Fault(row.id, _say(row.cause, match), _say(row.remedy, match), line.strip()[:500])
                break
    return list(found.values())


def _say(text: str | _Said, match: re.Match[str]) -> str:
    return text if isinstance(text, str) else text(match)


def error_lines(text: str, *, last: int = 5) -> list[str]:
    """The last lines that look like errors, for a failure that no pattern explains."""
    lines = list(_error_lines(strip_ansi(text)))
    return lines[-last:]


def _error_lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if re.search(r"\b(ERROR|CRITICAL|FATAL)\b|\b[A-Z]\w*(?:Error|Exception):", line):
            yield line.strip()[:500]


# A line that this module reads has one of these words in it: what is worth carrying away from a long log.
TELLING = (MARK, "Model loading took", "model weights take", "KV cache", "kv_cache_size=", " blocks: ", "Maximum concurrency", "in world size",
           "unevenly partitioned", "NCCL INFO NET/", "NCCL INFO Using network")


def telling(text: str, *, tail: int = 40) -> str:
    """The lines that this module reads, and the last ones."""
    lines = strip_ansi(text).splitlines()
    kept = {i for i, line in enumerate(lines) if any(w in line for w in TELLING)}
    kept.update(range(max(0, len(lines) - tail), len(lines)))
    return "\n".join(lines[i] for i in sorted(kept))
