"""Log parsers against lines of real engines."""

from __future__ import annotations

import json

import pytest
from ansible_collections.motley.inference.plugins.module_utils.engine import logs

THREE_GENERATIONS = {
    "0.6": (
        "model weights take 8.32GiB; non_torch_memory takes 0.34GiB; PyTorch activation peak memory takes 1.20GiB; "
        "the rest of the memory reserved for KV Cache is 8.77GiB.\nINFO 10-01 09:00:00 [executor.py:100] # GPU blocks: 1476, # CPU blocks: 512",
        8.77, None, 1476, None),
    "0.10": (
        "INFO 09-26 11:02:04 [gpu_worker.py:298] Memory profiling results: duration=12.34s, total_gpu_memory=44.35GiB "
        "initial_memory_usage=0.52GiB peak_torch_memory=9.52GiB non_torch_memory=0.34GiB kv_cache_size=8.77GiB gpu_memory_utilization=0.42",
        8.77, None, None, None),
    "2026": (
        "INFO 09-26 11:02:09 [gpu_worker.py:298] Available KV cache memory: 8.77 GiB\n"
        "(EngineCore) GPU KV cache size: 1,160,104 tokens, Maximum concurrency for 262,144 tokens per request: 4.43x",
        8.77, 1160104, None, 4.43),
    "cpu": (
        "INFO x] Explicitly set (1.0/13.34) GiB for KV cache\nINFO y] CPU KV cache size: 1,664 tokens", 1.0, 1664, None, None),
}


@pytest.mark.parametrize("text, room, tokens, blocks, concurrency", THREE_GENERATIONS.values(), ids=THREE_GENERATIONS)
def test_kv_cache_lines_of_each_generation(text: str, room: float, tokens: int | None, blocks: int | None, concurrency: float | None) -> None:
    seen = logs.kv_cache(text)
    assert [gib for _, gib in seen.available] == [room]
    assert (seen.tokens, seen.blocks, seen.concurrency) == (tokens, blocks, concurrency)


def test_kv_cache_keeps_the_latest_start_only() -> None:
    text = ("(Worker_PP0 pid=1) Available KV cache memory: 5.00 GiB\n(EngineCore pid=3) GPU KV cache size: 100 tokens\n"
            "(Worker_PP0 pid=9) Available KV cache memory: -0.77 GiB\n(Worker_PP1 pid=10) Available KV cache memory: 3.5 GiB\n")
    assert [(w.pp_rank, gib) for w, gib in logs.kv_cache(text).available] == [(0, -0.77), (1, 3.5)]


@pytest.mark.parametrize("line, gib, rounding, seconds", [
    ("Model loading took 8.3215 GiB and 25.3 seconds", 8.3215, 0.00005, 25.3),
    ("Model loading took 9.11 GiB memory and 3.415871 seconds", 9.11, 0.005, 3.415871),
    ("Model loading took 14.9889 GB", 14.9889, 0.00005, None),
    ("model weights take 8.32GiB; non_torch_memory takes 0.34GiB", 8.32, 0.005, None),
], ids=["0.9", "0.25", "in GB", "0.6"])
def test_model_loading(line: str, gib: float, rounding: float, seconds: float | None) -> None:
    (seen,) = logs.model_loading(f"(Worker_PP1_TP0 pid=25368) INFO 07-17 21:06:22 [x.py:1] {line}")
    assert (seen.gib, seen.seconds, seen.writer.pp_rank, seen.writer.tp_rank) == (gib, seconds, 1, 0)
    assert seen.rounding_gib == pytest.approx(rounding)


@pytest.mark.parametrize("line, expected", [
    ("(RayWorkerProc pid=77, ip=10.0.0.10) INFO x", logs.Writer("RayWorkerProc", 77, "10.0.0.10")),
    ("(Worker_PP1 pid=9) INFO", logs.Writer("Worker_PP1", 9, None, 1)),
    ("(RayWorkerProc pid=77, ip=10.0.0.10) (Worker_PP2_TP1 pid=77) INFO", logs.Writer("Worker_PP2_TP1", 77, "10.0.0.10", 2, 1)),
    ("\tno prefix", logs.Writer()),
])
def test_writer(line: str, expected: logs.Writer) -> None:
    assert logs.writer(line) == expected


def test_rank_lines() -> None:
    old = "rank 7 in world size 8 is assigned as DP rank 0, PP rank 7, PCP rank 0, TP rank 0, EP rank 0"
    new = ("\x1b[36m(RayWorkerProc pid=5, ip=10.0.0.10)\x1b[0m "
           "rank 1 in world size 2 is assigned as DP rank 0, PP rank 1, PCP rank 0, TP rank 0, EP rank 0")
    seen = logs.ranks(f"{old}\n{new}")
    assert list(seen) == [1], "ranks of an earlier, larger start are gone"
    assert (seen[1].world_size, seen[1].pp_rank, seen[1].writer.ip) == (2, 1, "10.0.0.10")


def test_partition_chosen_by_the_engine() -> None:
    line = "[utils.py:164] Hidden layers were unevenly partitioned: [22,21]. This can be manually overridden"
    assert logs.partition(line) == (22, 21)
    assert logs.partition("nothing") is None


def test_nccl_networks() -> None:
    text = ("node-0:152:386 [0] NCCL INFO NET/IB : Using [RO]; OOB eth0:10.0.4.51<0>\n"
            "node-0:152:386 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.4.51<0>\nnode-0:152:386 [0] NCCL INFO Using network Socket\n"
            "(W pid=3, ip=10.0.0.10) h:1:2 [0] NCCL INFO NET/IB : Using [0]rocep1s0f1:1/RoCE [RO]; OOB x")
    assert [(kind, detail) for _, kind, detail in logs.nccl_networks(text)] == [
        ("Socket", "[0]eth0:10.0.4.51<0>"), ("Socket", ""), ("IB", "[0]rocep1s0f1:1/RoCE [RO]; OOB x")]


# -- stage reporter -------------------------------------------------------------------------------------------------
def event(rank: int, kind: str = "load", *, pid: int = 100, **more: object) -> str:
    line = {"event": kind, "rank": rank, "pp_rank": rank, "tp_rank": 0, "node": f"node-{rank}", "pid": pid, "device": "cuda:0",
            "layers": [20, 31, 12], "weight_bytes": 6287466688, "load_bytes": 6287466688, "env": {}, **more}
    return "MOTLEY_STAGE" + json.dumps(line, separators=(",", ":"))


def test_a_report_is_found_in_colours_and_behind_prefixes() -> None:
    text = f"\x1b[36m(RayWorkerProc pid=5, ip=10.0.0.10)\x1b[0m INFO half a line {event(1)} tail\n"
    stage = logs.stages(text)[1]
    assert (stage.node, stage.layers, stage.loaded_bytes) == ("node-1", (20, 31, 12), 6287466688)


def test_load_and_kv_events_of_one_process_are_one_stage() -> None:
    text = "\n".join([event(0), event(0, "kv", kv_blocks=13, kv_bytes=4096, block_size=128)])
    stage = logs.stages(text)[0]
    assert (stage.kv_blocks, stage.kv_tokens, stage.layers) == (13, 1664, (20, 31, 12))


def test_the_latest_start_wins() -> None:
    first = [event(0, pid=1, world_size=3), event(1, pid=2, world_size=3), event(2, pid=3, world_size=3), event(0, "kv", pid=1, kv_blocks=99)]
    second = [event(0, pid=11, world_size=2, layers=[0, 7, 8]), event(1, pid=12, world_size=2)]
    seen = logs.stages("\n".join(first + second))
    assert sorted(seen) == [0, 1]
    assert (seen[0].pid, seen[0].layers, seen[0].kv_blocks) == (11, (0, 7, 8), None)


def test_same_pid_in_a_new_container_is_a_new_start() -> None:
    text = "\n".join([event(0), event(0, "kv", kv_blocks=5), event(0, layers=[0, 1, 2])])
    assert (logs.stages(text)[0].layers, logs.stages(text)[0].kv_blocks) == ((0, 1, 2), None)


@pytest.mark.parametrize("text", ["MOTLEY_STAGE{\"rank\":1,", "MOTLEY_STAGE{}", "MOTLEY_STAGE{\"rank\":\"x\"}", "MOTLEY_STAGE", "{\"rank\":1}"])
def test_broken_reports_are_skipped(text: str) -> None:
    assert logs.stages(text) == {}


def test_two_reports_on_one_line() -> None:
    assert sorted(logs.stages(event(0) + event(1))) == [0, 1]


def test_reporter_errors() -> None:
    assert logs.stage_errors("x MOTLEY_STAGE_ERROR load_model: KeyError('a')") == ["load_model: KeyError('a')"]


@pytest.mark.parametrize("device, physical, visible, expected", [
    ("cuda:1", None, None, 1), ("cuda:0", None, "1", 1), ("cuda:1", None, "3,5", 5), ("cuda:0", 1, "0,1", 1),
    ("cpu", None, "1", 1), ("cpu", None, "0,1", None), ("cpu", None, None, None), ("cuda", None, None, 0), ("cuda:0", None, "GPU-1a2b", None),
])
def test_device_index(device: str, physical: int | None, visible: str | None, expected: int | None) -> None:
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert logs.stages(event(0, device=device, physical_device=physical, env=env))[0].device_index == expected


def test_parameters_stand_in_where_the_engine_does_not_count() -> None:
    assert logs.stages(event(0, load_bytes=None, weight_bytes=7))[0].loaded_bytes == 7


# -- errors ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("line, fault, words", [
    ("ValueError: sum(partitions)=79 does not match num_hidden_layers=80.", "partition-sum", "79 layers"),
    ("ValueError: len(partitions)=1 does not match pp_size=2.", "partition-length", "1 numbers for 2 stages"),
    ("ValueError: To serve at least one request with the models's max seq len (202752), (71.16 GiB KV cache is needed, which is larger than "
     "the available KV cache memory (28.57 GiB). Based on the available memory, the estimated maximum model length is 81392. Try",
     "kv-too-small", "81392"),
    ("ValueError: Free memory on device cuda:0 (62.1/119.7 GiB) on startup is less than desired GPU memory utilization (0.85, 101.75 GiB).",
     "memory-taken", "to 0.51"),
    ("torch.OutOfMemoryError: CUDA out of memory.", "out-of-memory", "fewer layers"),
    ("ValueError: Total number of attention heads (32) must be divisible by tensor parallel size (3).", "heads", "32 attention heads"),
    ("RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] no error", "gloo-loopback", "nccl_interface"),
    ("RuntimeError: Unable to find address for: enp3s0", "gloo-interface", "enp3s0"),
    ("Bootstrap : no socket interface found", "nccl-interface", "nccl_interface"),
    ("RuntimeError: Version mismatch: The cluster was started with: Ray: 2.60.0", "ray-version", "one image"),
    ("ray.exceptions.OutOfMemoryError: 1 worker(s) were killed due to the node running low on memory", "ray-memory", "monitor"),
    ("torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device", "no-kernel", "compute capability"),
    ("Error while creating shared memory segment /dev/shm/nccl-x (size 33030656)", "shm", "motley_shm_size"),
])
def test_faults(line: str, fault: str, words: str) -> None:
    (seen,) = logs.faults(f"INFO fine\n\x1b[31m(EngineCore_DP0 pid=379) ERROR {line}\x1b[0m\n")
    assert seen.id == fault
    assert words in f"{seen.cause} {seen.remedy}"
    assert "\x1b" not in seen.line


def test_a_healthy_log_has_no_faults() -> None:
    text = "\n".join(t for t, *_ in THREE_GENERATIONS.values()) + "\n" + event(0) + "\nvLLM is using nccl==2.27.5"
    assert logs.faults(text) == []
    assert logs.error_lines(text) == []


def test_error_lines_are_the_last_ones() -> None:
    text = "\n".join(f"ERROR number {i}" for i in range(9)) + "\nINFO ok"
    assert logs.error_lines(text, last=2) == ["ERROR number 7", "ERROR number 8"]


def test_telling_lines_lose_nothing_that_is_read() -> None:
    noise = "\n".join(f"INFO noise {i}" for i in range(500))
    text = f"{event(0)}\n{noise}\nINFO GPU KV cache size: 10 tokens\n{noise}"
    short = logs.telling(text, tail=3)
    assert len(short.splitlines()) == 5
    assert logs.stages(short) == logs.stages(text) and logs.kv_cache(short) == logs.kv_cache(text)
