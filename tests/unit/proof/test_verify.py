"""Evidence against a plan: what passes, what fails, what was not seen."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.motley.inference.plugins.module_utils.diagnosis import probe, readings, verify

MIB = 2**20
DIGEST = "sha256:" + "a" * 64
LAYERS = (8, 9, 11)
PLACES = (("x86-01", 0, "10.0.0.20"), ("x86-01", 1, "10.0.0.20"), ("spark-01", 0, "10.0.0.10"))
WEIGHTS = (20 * MIB, 19 * MIB, 25 * MIB)
FACES = {"x86-01": "enp3s0", "spark-01": "enP7s7"}


def plan() -> dict[str, Any]:
    stages = []
    for rank, (node, device, _) in enumerate(PLACES):
        card = "rtx4090" if node == "x86-01" else "gb10"
        worker = {"rank": rank, "tensor_rank": 0, "node": node, "device": device, "accelerator": card, "weights_gib": WEIGHTS[rank] / 2**30}
        stages.append({"rank": rank, "layers": LAYERS[rank], "workers": [worker]})
    return {"stages": stages, "kv_tokens": 1664, "block_size": 128, "layer_partition": "8,9,11"}


def nodes() -> dict[str, Any]:
    return {name: {"address": address, "interface": FACES[name], "devices": [0, 1] if name == "x86-01" else [0],
                   "env": {"NCCL_SOCKET_IFNAME": f"={FACES[name]}", "GLOO_SOCKET_IFNAME": FACES[name], "VLLM_HOST_IP": address}}
            for name, address in (("x86-01", "10.0.0.20"), ("spark-01", "10.0.0.10"))}


def events() -> list[dict[str, Any]]:
    found, first = [], 0
    for rank, (node, device, address) in enumerate(PLACES):
        found.append({
            "event": "kv", "rank": rank, "world_size": 3, "pp_rank": rank, "tp_rank": 0, "node": node, "host_ip": address, "pid": 100 + rank,
            "device": "cuda:0", "physical_device": device, "layers": [first, first + LAYERS[rank] - 1, LAYERS[rank]], "load_bytes": WEIGHTS[rank],
            "kv_blocks": 13, "block_size": 128, "env": {**nodes()[node]["env"], "VLLM_PP_LAYER_PARTITION": "8,9,11"}})
        first += LAYERS[rank]
    return found


def text_of(lines: list[dict[str, Any]]) -> str:
    return "\n".join("MOTLEY_STAGE" + json.dumps(e, separators=(",", ":")) for e in lines)


def net(**moved: int) -> dict[str, str]:
    def reading(extra: dict[str, int]) -> str:
        return "Inter-| Receive\n face |bytes\n" + "\n".join(
            f"  {name}: {1000 + extra.get(name, 0)} 1 0 0 0 0 0 0 500 1 0 0 0 0 0 0" for name in ("lo", "enp3s0", "enP7s7", "wlP9s9", "br0"))
    return {"before": reading({}), "after": reading({"lo": 10**9, **moved})}


def smi(*loads: tuple[str, str]) -> str:
    return "\n".join(f"{i}, GPU-{i}, NVIDIA GB10, {load}, {state}" for i, (load, state) in enumerate(loads))


def evidence() -> dict[str, Any]:
    return {
        "log": text_of(events()) + "\nINFO GPU KV cache size: 1,664 tokens",
        "job": {"id": "motley-abc-1", "status": "RUNNING"},
        "actors": [{"name": f"vllm_Worker_x_PP{r}", "class_name": "RayWorkerProc", "node_id": PLACES[r][2], "pid": 100 + r, "state": "ALIVE"}
                   for r in range(3)] + [{"class_name": "JobSupervisor", "state": "ALIVE", "node_id": "10.0.0.20", "pid": 9}],
        "ray_nodes": [{"node_id": a, "node_ip": a} for a in ("10.0.0.20", "10.0.0.10")],
        "gpu_samples": {"x86-01": [smi(("0", "P2"), ("35", "P2")), smi(("41", "P2"), ("0", "P2"))], "spark-01": [smi(("93", "P0"))]},
        "net": {"x86-01": net(enp3s0=500_000), "spark-01": net(enP7s7=500_000)}, "tokens": 256,
        "health": {"status": 200}, "unauthorized": {"status": 401}, "completion": {"ok": True, "output_tokens": 16, "seconds": 0.5},
        "images": {n: {"image": f"registry/vllm@{DIGEST}", "image_id": f"registry/vllm@{DIGEST}"} for n in FACES},
        "locked": {"image": "registry/vllm:v1", "digest": DIGEST},
    }


def run(seen: dict[str, Any], *, quick: bool = False) -> dict[tuple[str, str | None], verify.Check]:
    return {(c.id, c.node): c for c in verify.checks(plan(), nodes(), seen, quick=quick)}


def failed(seen: dict[str, Any]) -> set[str]:
    return {ident for (ident, _), c in run(seen).items() if c.passed is False}


def unseen(seen: dict[str, Any]) -> set[str]:
    return {ident for (ident, _), c in run(seen).items() if c.passed is None}


def test_a_service_that_is_the_plan_passes_everything() -> None:
    found = run(evidence())
    assert {c.passed for c in found.values()} == {True}, [c for c in found.values() if not c.passed]
    assert verify.passed(found.values())
    assert len(found) == 25
    assert all(c.remedy == "" for c in map(lambda c: verify.Check(**c.as_dict()), found.values()))


def test_the_quick_form_looks_at_placement_health_and_a_completion() -> None:
    assert [i for i, _ in run(evidence(), quick=True)] == [
        "job", "world-size", "rank-0", "rank-1", "rank-2", "layers-0", "layers-1", "layers-2", "health", "completion"]


# -- one thing wrong at a time --------------------------------------------------------------------------------------
def reports(change: Callable[[list[dict[str, Any]]], None]) -> Callable[[dict[str, Any]], None]:
    def edit(seen: dict[str, Any]) -> None:
        lines = events()
        change(lines)
        seen["log"] = text_of(lines)
    return edit


def reversed_partition(lines: list[dict[str, Any]]) -> None:
    first = 0
    for line, count in zip(lines, reversed(LAYERS), strict=True):
        line["layers"] = [first, first + count - 1, count]
        line["load_bytes"] = WEIGHTS[LAYERS.index(count)]
        first += count


def swapped_nodes(lines: list[dict[str, Any]]) -> None:
    for rank, node, address in ((0, "spark-01", "10.0.0.10"), (2, "x86-01", "10.0.0.20")):
        lines[rank].update(node=node, host_ip=address)


def packed(seen: dict[str, Any]) -> None:
    lines = events()
    for line in lines:
        line.update(node="x86-01", host_ip="10.0.0.20")
    seen["log"] = text_of(lines)
    for actor in seen["actors"]:
        actor["node_id"] = "10.0.0.20"


def other_processes(seen: dict[str, Any]) -> None:
    for actor in seen["actors"]:
        actor["pid"] += 50


def changed_places(lines: list[dict[str, Any]]) -> None:
    lines[0]["physical_device"], lines[1]["physical_device"] = 1, 0


def put(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def edit(seen: dict[str, Any]) -> None:
        target = seen
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = value
    return edit


WRONG: dict[str, tuple[Callable[[dict[str, Any]], None], set[str]]] = {
    "partition reversed": (reports(reversed_partition), {"layers-0", "layers-1", "layers-2", "weights-0", "weights-2"}),
    "nodes swapped": (reports(swapped_nodes), {"rank-0", "rank-2", "environment"}),
    "packed on one node": (packed, {"world-size", "rank-2", "environment"}),
    "a stage replicated": (reports(lambda e: e[1].update(layers=[0, 27, 28], load_bytes=64 * MIB)), {"layers-1", "weights-1"}),
    "weights 3 % heavier": (reports(lambda e: e[0].update(load_bytes=int(WEIGHTS[0] * 1.03))), {"weights-0"}),
    "KV 3 % smaller": (put("log", value=text_of(events()) + "\nGPU KV cache size: 1,612 tokens"), {"kv-tokens"}),
    "blocks differ": (reports(lambda e: e[2].update(kv_blocks=12)), {"kv-tokens"}),
    "the head's interface on the other node": (reports(lambda e: e[2]["env"].update(NCCL_SOCKET_IFNAME="=enp3s0")), {"environment"}),
    "Gloo's interface unset": (reports(lambda e: e[2]["env"].pop("GLOO_SOCKET_IFNAME")), {"environment"}),
    "two ranks on one device": (reports(lambda e: e[1].update(physical_device=0)), {"devices"}),
    "an idle card": (put("gpu_samples", "x86-01", value=[smi(("40", "P2"), ("0", "P8"))] * 3), {"busy-1"}),
    "an idle GB10 without load figures": (put("gpu_samples", "spark-01", value=[smi(("[N/A]", "P8"))]), {"busy-0"}),
    "traffic on Wi-Fi": (put("net", "spark-01", value=net(enP7s7=70_000, wlP9s9=400_000)), {"traffic"}),
    "no traffic but loopback": (put("net", "spark-01", value=net()), {"traffic"}),
    "NCCL says another link": (
        lambda s: s.update(log=s["log"] + "\n(RayWorkerProc pid=102, ip=10.0.0.10) NCCL INFO NET/Socket : Using [0]wlP9s9:192.168.1.5<0>"),
        {"traffic"}),
    "another image": (put("images", "spark-01", value={"image": "registry/vllm:v1", "image_id": "registry/vllm@sha256:" + "b" * 64}), {"image"}),
    "no key asked": (put("unauthorized", value={"status": 200}), {"api-key"}),
    "healthy but dead": (put("completion", value={"ok": False, "problem": "HTTP 500: engine is dead"}), {"completion"}),
    "unhealthy": (put("health", value={"status": 503}), {"health"}),
    "nobody answers": (put("health", value={"status": 0, "problem": "cannot reach"}), {"health"}),
    "job failed": (put("job", value={"id": "motley-abc-1", "status": "FAILED", "message": "exit 1"}), {"job"}),
    "reports of a dead start": (other_processes, {"rank-0", "rank-1", "rank-2"}),
    "a worker died": (lambda s: s["actors"][2].update(state="DEAD"), {"world-size", "rank-2"}),
}


@pytest.mark.parametrize("edit, expected", WRONG.values(), ids=WRONG)
def test_what_is_wrong_fails_by_name(edit: Callable[[dict[str, Any]], None], expected: set[str]) -> None:
    seen = copy.deepcopy(evidence())
    edit(seen)
    assert failed(seen) == expected
    found = verify.checks(plan(), nodes(), seen)
    assert not verify.passed(found)
    assert all(c.remedy for c in found if c.passed is False), "each failure says what to do"


def test_packing_is_called_by_its_name() -> None:
    seen = evidence()
    packed(seen)
    assert run(seen)[("world-size", None)].seen == "3 ranks: 3 on x86-01: all ranks are packed on one node"


RIGHT: dict[str, Callable[[dict[str, Any]], None]] = {
    "weights 1.9 % heavier": reports(lambda e: e[0].update(load_bytes=int(WEIGHTS[0] * 1.019))),
    "cards of one kind changed places": reports(changed_places),
    "a GB10 that tells its clocks only": put("gpu_samples", "spark-01", value=[smi(("[N/A]", "P8")), smi(("[N/A]", "P0"))]),
    "a bridge above its port": put("net", "x86-01", value=net(enp3s0=400_000, br0=500_000)),
    "the runtime reports a platform's digest": put("images", "x86-01", value={"image": f"r@{DIGEST}", "image_id": "r@sha256:" + "c" * 64}),
    "an earlier start in the same log": lambda s: s.update(log=text_of([{**e, "pid": 7, "world_size": 4} for e in events()] + [
        {**events()[0], "rank": 3, "pid": 8, "world_size": 4}]) + "\n" + s["log"]),
    "no actor list": lambda s: s.pop("actors"),
    "no job": lambda s: s.pop("job"),
}


@pytest.mark.parametrize("edit", RIGHT.values(), ids=RIGHT)
def test_what_is_right_passes(edit: Callable[[dict[str, Any]], None]) -> None:
    seen = copy.deepcopy(evidence())
    edit(seen)
    assert (failed(seen), unseen(seen)) == (set(), set())


# -- without the best evidence --------------------------------------------------------------------------------------
def test_without_reporter_the_engines_lines_speak() -> None:
    seen = evidence()
    seen["actors"] = None
    seen["log"] = (
        "(RayWorkerProc pid=100) rank 0 in world size 3 is assigned as DP rank 0, PP rank 0, PCP rank 0, TP rank 0, EP rank 0\n"
        "(RayWorkerProc pid=102, ip=10.0.0.10) rank 2 in world size 3 is assigned as DP rank 0, PP rank 2, PCP rank 0, TP rank 0, EP rank 0\n"
        "(RayWorkerProc pid=102, ip=10.0.0.10) Model loading took 0.02 GiB memory and 1.0 seconds\n"
        "(Worker_PP0 pid=100) Model loading took 0.50 GiB memory and 1.0 seconds\n"
        "GPU KV cache size: 1,664 tokens\n")
    found = run(seen)
    assert {i: c.passed for (i, _), c in found.items() if i.startswith(("rank", "weights"))} == {
        "rank-0": True, "rank-1": None, "rank-2": True, "weights-0": False, "weights-1": None, "weights-2": True}
    assert found[("kv-tokens", None)].passed is True
    assert found[("layers-0", "x86-01")].passed is None
    assert not verify.passed(found.values()), "a placement that nobody saw is no proof"


def test_without_any_log_the_actors_names_tell_the_placement() -> None:
    seen = evidence()
    seen["log"] = ""
    found = run(seen)
    assert [found[(f"rank-{r}", PLACES[r][0])].passed for r in range(3)] == [True] * 3
    seen["actors"][0]["node_id"], seen["actors"][2]["node_id"] = seen["actors"][2]["node_id"], seen["actors"][0]["node_id"]
    assert failed(seen) == {"rank-0", "rank-2"}


def test_nothing_seen_is_nothing_passed() -> None:
    found = run({})
    assert {c.passed for c in found.values()} == {None}
    assert not verify.passed(found.values())


def test_memory_that_nvml_does_not_tell_is_no_obstacle() -> None:
    (gpu,) = readings.gpus("0, GPU-1a, NVIDIA GB10, 0, P8\nFailed to get memory: Not Supported\n")
    assert (gpu.utilization, gpu.pstate) == (0, 8)
    (busy,) = readings.busiest(["0, GPU-1a, NVIDIA GB10, [Not Supported], [N/A]"])
    assert busy.busy is None


@pytest.mark.parametrize("count, text", [(0, "0 B"), (2048, "2.00 KiB"), (25 * MIB, "25.00 MiB"), (9777250624, "9.11 GiB")])
def test_sizes(count: int, text: str) -> None:
    assert readings.size(count) == text


def test_a_counter_that_was_reset_says_nothing() -> None:
    assert readings.moved({"a": 10, "b": 5, "c": 0}, {"a": 3, "b": 9, "c": 20}) == {"c": 20, "b": 4}


def test_the_table_has_a_row_per_check_in_words() -> None:
    lines = verify.table([c.as_dict() for c in verify.checks(plan(), nodes(), evidence())])
    assert len(lines) == 26
    assert lines[3].split() == ["ok", "placement", "of", "rank", "0", "x86-01", "stage", "0", "on", "x86-01", "stage", "0", "on", "x86-01"]


def test_one_device_alone_has_no_traffic_to_show() -> None:
    document = {"stages": [{"rank": 0, "layers": 28, "workers": [{"rank": 0, "tensor_rank": 0, "node": "x86-01", "device": 0, "weights_gib": 0.5}]}],
                "kv_tokens": 100}
    ids = [c.id for c in verify.checks(document, {"x86-01": nodes()["x86-01"] | {"devices": [0]}}, {})]
    assert "traffic" not in ids and "devices" not in ids and "busy-0" in ids


# -- Ray's answers --------------------------------------------------------------------------------------------------
def rows(*found: dict[str, Any]) -> tuple[int, Any]:
    return 200, {"result": True, "data": {"result": {"result": list(found)}}}


def job(ident: str, status: str, start: int) -> dict[str, Any]:
    return {"submission_id": ident, "status": status, "start_time": start, "message": "", "type": "SUBMISSION"}


@pytest.mark.parametrize("jobs, expected", [
    ([job("motley-abc-1", "FAILED", 1), job("motley-abc-2", "RUNNING", 2)], ("motley-abc-2", "RUNNING")),
    ([job("motley-abc-1", "RUNNING", 1), job("motley-abc-2", "FAILED", 2)], ("motley-abc-1", "RUNNING")),
    ([job("motley-old-1", "RUNNING", 1)], (None, None)),
    ([{"submission_id": None, "type": "DRIVER", "status": "RUNNING"}], (None, None)),
    ([], (None, None)),
], ids=["the newer one runs", "the older one runs", "a job of another plan", "a driver without a name", "none"])
def test_the_job_of_this_plan_is_found(jobs: list[dict[str, Any]], expected: tuple[str | None, str | None]) -> None:
    seen = probe.evidence([(200, jobs), rows(), rows()], prefix="motley-abc-")
    assert (seen["job"]["id"], seen["job"]["status"]) == expected


def test_what_ray_does_not_answer_is_not_seen() -> None:
    seen = probe.evidence([(200, []), (0, "connection refused"), (500, {"msg": "no"})], prefix="motley-")
    assert (seen["actors"], seen["ray_nodes"]) == (None, None)
    assert seen["errors"] == ["list of actors answers connection refused", "list of nodes answers 500"]


def test_a_log_is_asked_for_its_telling_lines() -> None:
    call = probe.log_call("motley-abc-1")
    assert call["path"] == "/api/jobs/motley-abc-1/logs"
    assert "MOTLEY_STAGE" in call["keep"]["words"]


def test_weights_of_other_layers_are_no_reason_to_plan_again() -> None:
    seen = evidence()
    reports(reversed_partition)(seen)
    found = run(seen)
    assert found[("weights-0", "x86-01")].remedy == found[("layers-0", "x86-01")].remedy
    assert "observed" not in found[("weights-0", "x86-01")].remedy
