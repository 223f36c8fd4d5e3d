# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine's job, Ray's answers, and what they mean."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.serving import ray

from .builders import places

PLAN, OTHER, SPEC = "0123456789ab", "ffffffffffff", "spec-1"


def job(number: int, status: str, *, plan: str = PLAN, spec: str = SPEC) -> ray.Job:
    return ray.Job(f"motley-{plan}-{number}", status, spec, "", number)


@pytest.mark.parametrize(
    ("jobs", "action", "wanted", "stop"),
    [
        pytest.param([], "submit", 1, [], id="first"),
        pytest.param([job(1, "RUNNING")], "keep", 1, [], id="runs"),
        pytest.param([job(1, "PENDING")], "keep", 1, [], id="pending"),
        pytest.param([job(1, "FAILED")], "submit", 2, [], id="failed"),
        pytest.param([job(1, "FAILED"), job(2, "RUNNING")], "keep", 2, [], id="second-runs"),
        pytest.param([job(1, "STOPPED"), job(2, "SUCCEEDED")], "submit", 3, [], id="ended"),
        pytest.param([job(1, "RUNNING", plan=OTHER)], "submit", 1, [f"motley-{OTHER}-1"], id="older-plan"),
        pytest.param([job(1, "RUNNING", spec="other")], "submit", 2, [f"motley-{PLAN}-1"], id="other-arguments"),
        pytest.param([job(1, "RUNNING", plan=OTHER), job(1, "RUNNING")], "keep", 1, [f"motley-{OTHER}-1"], id="both-run"),
    ],
)
def test_decisions(jobs: list[ray.Job], action: str, wanted: int, stop: list[str]) -> None:
    found = ray.decide(jobs, plan=PLAN, spec=SPEC)
    assert (found.action, found.id, list(found.stop)) == (action, f"motley-{PLAN}-{wanted}", stop)


def test_a_failed_start_is_remembered_until_another_one() -> None:
    failed = ray.decide([job(1, "FAILED")], plan=PLAN, spec=SPEC).failed
    assert failed
    assert failed.id.endswith("-1")
    assert ray.decide([job(1, "FAILED"), job(2, "STOPPED")], plan=PLAN, spec=SPEC).failed is None
    assert ray.decide([job(1, "FAILED", spec="other")], plan=PLAN, spec=SPEC).failed is None


def test_rebuild_stops_what_runs() -> None:
    found = ray.decide([job(1, "RUNNING"), job(2, "FAILED")], plan=PLAN, spec=SPEC, rebuild=True)
    assert (found.action, found.id, found.stop) == ("submit", f"motley-{PLAN}-3", (f"motley-{PLAN}-1",))


def test_the_job_carries_what_the_plan_says_and_nothing_of_a_node() -> None:
    spec = ray.specification("a/b c", ["--max-model-len", "512"], {"VLLM_PP_LAYER_PARTITION": "22,20,38", "N": "1"})
    assert spec["entrypoint"] == "vllm serve 'a/b c' --max-model-len 512"
    assert spec["runtime_env"]["env_vars"] == {"RAY_DEDUP_LOGS": "0", "VLLM_PP_LAYER_PARTITION": "22,20,38", "N": "1"}
    for name in ("NCCL_SOCKET_IFNAME", "VLLM_HOST_IP", "VLLM_API_KEY", "HF_TOKEN"):
        with pytest.raises(MotleyError, match=name):
            ray.specification("m", [], {name: "x"})


def test_the_digest_follows_arguments_and_environment() -> None:
    base = ray.spec_digest(ray.specification("m", ["--a"], {"X": "1"}))
    assert base == ray.spec_digest(ray.specification("m", ["--a"], {"X": "1"}))
    assert len({base, *(ray.spec_digest(ray.specification(*args)) for args in (("n", ["--a"], {"X": "1"}), ("m", ["--b"], {"X": "1"}), ("m", ["--a"], {"X": "2"})))}) == 4
    body = ray.submission(ray.specification("m", [], {}), job="motley-x-1", plan="d" * 64)
    assert body["submission_id"] == "motley-x-1"
    assert body["metadata"]["motley_plan"] == "d" * 64


def test_jobs_of_others_do_not_count() -> None:
    rows: list[dict[str, Any]] = [
        {"submission_id": "motley-0123456789ab-2", "status": "RUNNING", "metadata": {"motley_spec": SPEC}, "start_time": 5},
        {"submission_id": "raysubmit_x", "status": "RUNNING"},
        {"submission_id": None, "job_id": "01000000", "type": "DRIVER", "status": "RUNNING"},
        {"submission_id": "motley-0123456789ab-1", "status": "FAILED", "message": "boom", "start_time": 1},
    ]
    assert [(j.id, j.status, j.spec) for j in ray.jobs(rows)] == [("motley-0123456789ab-1", "FAILED", ""), ("motley-0123456789ab-2", "RUNNING", SPEC)]
    assert ray.jobs("no list") == []


def state(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"result": True, "data": {"result": {"result": list(rows)}}}


def node(address: str, gpus: float = 1.0, state_: str = "ALIVE", name: str = "") -> dict[str, Any]:
    return {"node_ip": address, "node_name": name or address, "state": state_, "resources_total": {"CPU": 8.0, "GPU": gpus}, "is_head_node": False}


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([node("10.0.0.20", 2.0), node("10.0.0.10")], ""),
        ([node("10.0.0.20", 2.0)], "spark-01 is not in Ray"),
        ([node("10.0.0.20", 2.0), node("10.0.0.10", state_="DEAD")], "spark-01 is not in Ray"),
        ([node("10.0.0.20", 1.0), node("10.0.0.10")], "x86-01 offers 1 GPUs to Ray, planned are 2"),
        ([node("10.0.0.20", 2.0), node("10.0.0.10"), node("10.0.0.99", name="old-01")], "old-01 is in Ray, not in the plan"),
        ([node("10.0.0.20", 2.0), node("10.0.0.10"), node("10.0.0.10", state_="DEAD")], ""),
        ([], "x86-01 is not in Ray; spark-01 is not in Ray"),
    ],
)
def test_membership(rows: list[dict[str, Any]], text: str) -> None:
    found = ray.compare(ray.nodes(state(*rows)), places())
    assert found.text() == text
    assert found.complete is (text == "")


LOG = """INFO 11-30 22:24:53 api_server.py:100] vLLM API server version 0.32.0
INFO 11-30 22:25:01 core.py:90] Initializing a V1 LLM engine (v0.32.0)
(RayWorkerProc pid=7) INFO parallel_state.py:2351] rank 0 in world size 3 is assigned as DP rank 0, PP rank 0, TP rank 0
"""


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("", "workers are placed"),
        ("Loading safetensors checkpoint shards:  40% Completed | 2/5 [00:01<00:02]", "weights are loaded, 40 %"),
        ("INFO Model loading took 9.11 GiB memory and 3.2 seconds", "memory is profiled"),
        ("INFO GPU KV cache size: 157,936 tokens", "the KV cache is made"),
        ("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  50%|#####     | 10/20", "CUDA graphs are captured, 50 %"),
        ("INFO Starting vLLM API server 0 on http://0.0.0.0:8000", "the API server starts"),
        ("\x1b[36m(APIServer pid=1)\x1b[0m INFO:     Application startup complete.", "the API answers soon"),
    ],
)
def test_phases(line: str, phase: str) -> None:
    assert ray.phase(LOG + line) == phase


def test_a_log_that_says_nothing_yet() -> None:
    assert ray.phase("") == "the engine starts"


def test_a_known_failure_is_named_with_its_remedy() -> None:
    log = "INFO fine\nValueError: sum(partitions)=29 does not match num_hidden_layers=28.\nRuntimeError: Engine core initialization failed.\n"
    error = ray.failure(job(1, "FAILED"), log, node="x86-01")
    assert "29 layers, and the model has 28" in error.message
    assert error.evidence[0].startswith("ValueError: sum(partitions)=29")
    assert error.node == "x86-01"


def test_an_unknown_failure_shows_its_error_lines() -> None:
    ended = ray.Job("motley-x-1", "FAILED", "", "Job entrypoint command failed with exit code 1\nmore", 0)
    error = ray.failure(ended, "INFO a\nWARNING b\nKeyError: 'new_thing'\nINFO c\n", node="x86-01")
    assert "exit code 1" in error.message
    assert list(error.evidence) == ["KeyError: 'new_thing'"]


@pytest.mark.parametrize(("version", "bad"), [("2.51.1", True), ("2.52.0", False), ("2.60.0", False), ("3.0.0", False), (None, False), ("2.9.3", True)])
def test_ray_without_token_authentication(version: str | None, bad: bool) -> None:
    assert bool(ray.version_problem(version)) is bad


@pytest.mark.parametrize(
    ("log", "word"),
    [
        ("RuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.43.0\n    Python: 3.11.10\nThis process on node 10.0.0.10 was started with:", "differ"),
        ("/bin/bash: line 1: ray: command not found", "holds no Ray"),
        ("OSError: [Errno 98] Address already in use", "ports"),
        ("Failed to connect to GCS at 10.0.0.20:6379", "6379"),
    ],
)
def test_what_a_node_says_that_does_not_come_up(log: str, word: str) -> None:
    found = ray.start_problem(log)
    assert found
    assert word in found[0]


def test_a_healthy_start_is_no_problem() -> None:
    assert ray.start_problem("Ray runtime started.") is None
