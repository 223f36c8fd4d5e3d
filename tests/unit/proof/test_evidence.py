"""Gathering evidence: Pods, Ray, endpoint, and watching nodes while the service works; and which form is taken."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.motley.inference.plugins.action import verify as action
from ansible_collections.motley.inference.plugins.module_utils.diagnosis import readings
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.serving.layout import Layout, Member
from ansible_collections.motley.inference.plugins.plugin_utils import evidence
from ansible_collections.motley.inference.plugins.plugin_utils.kube import Executed, KubeUnreachable

_spec = importlib.util.spec_from_file_location("fake_openai", Path(__file__).with_name("fake_openai.py"))
assert _spec and _spec.loader
fake_openai = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fake_openai)


def member(name: str, address: str, *, gpus: int = 1, visible: str | None = None, limit: int = 1) -> Member:
    return Member(name=name, address=address, arch="amd64", gpus=gpus, devices=tuple(range(gpus)), limit=limit, visible=visible, unified=False,
                  interface="enp3s0", cache_path="/var/lib/hf-cache", env={"VLLM_HOST_IP": address})


LAYOUT = Layout(head=member("x86-01", "127.0.0.1", gpus=2, limit=2), workers=(member("spark-01", "10.0.0.10", visible="1", limit=2),), plan="0123456789ab",
                world_size=3)


class FakeKube:
    """Answers exec as containers would; counters grow between looks, and it may fail by Pod."""

    kubeconfig = "unused"
    broken: dict[str, str] = {}
    calls: list[tuple[str, str]] = []
    lock = threading.Lock()

    def __init__(self, kubeconfig: Any) -> None:
        self.looks = 0

    def exec(self, namespace: str, pod: str, argv: list[str], *, container: str, timeout: float) -> Executed:
        with self.lock:
            self.calls.append((pod, argv[0]))
        if self.broken.get(pod) == "gone":
            raise KubeUnreachable(f"exec in motley/{pod} did not come about")
        if argv[0] == "nvidia-smi":
            if self.broken.get(pod) == "no nvidia-smi":
                return Executed(127, "", "nvidia-smi: not found")
            time.sleep(0.01)
            return Executed(0, "0, GPU-a, NVIDIA GB10, 55, P0\n", "")
        self.looks += 1
        return Executed(0, f"  lo: 1 0 0 0 0 0 0 0 1 0\nenp3s0: {self.looks * 1000} 0 0 0 0 0 0 0 0 0\n", "")


@pytest.fixture
def server() -> Iterator[Any]:
    with fake_openai.running() as started:
        started.first_s = started.gap_s = 0.001
        yield started


@pytest.fixture(autouse=True)
def kube(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "Kube", FakeKube)
    monkeypatch.setattr(evidence, "SAMPLE_PAUSE", 0.02)
    monkeypatch.setattr(FakeKube, "broken", {})
    monkeypatch.setattr(FakeKube, "calls", [])


def watched(server: Any, **more: Any) -> dict[str, Any]:
    return evidence.load(FakeKube(""), LAYOUT, model="tiny", key=more.pop("key", "sk-test"), port=server.server_address[1], seconds=0.1)  # type: ignore[arg-type]


def test_nodes_are_watched_while_the_service_works(server: Any) -> None:
    seen = watched(server)
    assert seen["tokens"] >= 6 * 24 and seen["probe_errors"] == []
    assert set(seen["gpu_samples"]) == set(seen["net"]) == {"x86-01", "spark-01"}
    assert all(len(samples) >= 2 for samples in seen["gpu_samples"].values())
    for reading in seen["net"].values():
        assert readings.moved(readings.counters(reading["before"]), readings.counters(reading["after"])) == {"enp3s0": 1000}
    for pod in ("ray-head", "ray-worker-spark-01"):
        own = [program for name, program in FakeKube.calls if name == pod]
        assert (own[0], own[-1], set(own[1:-1])) == ("cat", "cat", {"nvidia-smi"})


def test_a_container_without_nvidia_smi_is_not_waited_for(server: Any) -> None:
    FakeKube.broken["ray-worker-spark-01"] = "no nvidia-smi"
    since = time.monotonic()
    seen = watched(server)
    assert time.monotonic() - since < 5
    assert "not found" in seen["gpu_errors"]["spark-01"]
    assert seen["net"]["spark-01"]["after"], "its counters are read all the same"


def test_a_pod_that_cannot_be_looked_into_ends_the_probe(server: Any) -> None:
    FakeKube.broken["ray-worker-spark-01"] = "gone"
    with pytest.raises(MotleyError, match="could not be looked into"):
        watched(server)


def test_a_service_that_fails_under_load_ends_the_probe(server: Any) -> None:
    server.fail_every = 2
    assert "HTTP 500: out of luck" in watched(server)["probe_errors"]


def test_devices_are_the_ones_that_the_container_sees() -> None:
    nodes = evidence.planned_nodes(LAYOUT)
    assert (nodes["x86-01"]["devices"], nodes["spark-01"]["devices"]) == ([0, 1], [1])
    assert nodes["spark-01"]["env"] == {"VLLM_HOST_IP": "10.0.0.10"}


def test_endpoint_of_a_healthy_service(server: Any) -> None:
    seen = evidence.endpoint("127.0.0.1", server.server_address[1], "sk-test", full=True)
    assert (seen["health"]["status"], seen["unauthorized"]["status"], seen["model"]) == (200, 401, "tiny")
    assert (seen["completion"]["ok"], seen["completion"]["output_tokens"]) == (True, 16)


def test_a_health_check_proves_nothing(server: Any) -> None:
    server.fail_every = 1
    seen = evidence.endpoint("127.0.0.1", server.server_address[1], "sk-test", full=False)
    assert seen["health"]["status"] == 200
    assert (seen["completion"]["ok"], seen["completion"]["problem"]) == (False, "HTTP 500: out of luck")


def test_pods_are_read_by_container() -> None:
    item = {"metadata": {"name": "ray-head"}, "spec": {"containers": [{"name": "side"}, {"name": "ray", "image": "r@sha256:a"}]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "ray", "imageID": "r@sha256:b", "state": {"running": {}}}]}}
    fake = SimpleNamespace(list_objects=lambda *args, **more: [item])
    assert evidence.pods(fake)["ray-head"] == {"phase": "Running", "image": "r@sha256:a", "image_id": "r@sha256:b", "running": True}  # type: ignore[arg-type]


# -- which form -----------------------------------------------------------------------------------------------------
PLAN = {"inputs_sha256": "ab" * 32, "kv_tokens": 100,
        "stages": [{"rank": 0, "layers": 4, "workers": [{"rank": 0, "node": "x86-01", "device": 0, "weights_gib": 0.5}]}]}
ALONE = Layout(head=member("x86-01", "127.0.0.1"), workers=(), plan="ab" * 6, world_size=1)
JOB = {"id": "motley-abababababab-1", "status": "RUNNING", "start": 5}
REPORT = ('MOTLEY_STAGE{"event":"kv","rank":0,"world_size":1,"node":"x86-01","host_ip":"127.0.0.1","pid":7,"device":"cuda:0","layers":[0,3,4],'
          '"load_bytes":536870912,"kv_blocks":10,"block_size":10,"env":{"VLLM_HOST_IP":"127.0.0.1"}}')


class State:
    def __init__(self, proof: Any) -> None:
        self.proof = proof
        self.written: list[Any] = []

    def read_json(self, name: str) -> Any:
        return self.proof

    def write_json(self, name: str, document: Any) -> bool:
        self.written.append(document)
        return True


def prove(monkeypatch: pytest.MonkeyPatch, *, proof: Any, form: str = "auto", check_mode: bool = False, ok: bool = True, job: Any = None) -> Any:
    """Run the action's proof with everything around it made up: (result or error, forms of looks taken, proofs written)."""
    looks: list[str] = []

    def endpoint(address: str, port: int, key: str | None, *, full: bool) -> dict[str, Any]:
        looks.append("full" if full else "quick")
        return {"health": {"status": 200}, "unauthorized": {"status": 401}, "model": "tiny",
                "completion": {"ok": ok, "output_tokens": 16, "seconds": 0.1, "problem": "HTTP 500"}}

    monkeypatch.setattr(evidence, "endpoint", endpoint)
    monkeypatch.setattr(evidence, "load", lambda *args, **more: {"tokens": 100, "gpu_samples": {"x86-01": ["0, G, NVIDIA, 40, P0"]}})
    monkeypatch.setattr(action.serving, "api_key", lambda context: "sk")
    state = State(proof)
    context = SimpleNamespace(state=state, check_mode=check_mode, display=lambda line: None, cluster=lambda: {"engine": {"port": 8000}})
    seen: dict[str, Any] = {"job": job or JOB, "log": REPORT, "actors": None, "errors": [], "locked": {}, "images": {}}
    try:
        result: Any = action._Proof(context, PLAN, ALONE, FakeKube("")).run(seen, {"form": form, "probe_seconds": 1.0})  # type: ignore[arg-type]
    except MotleyError as error:
        result = error
    return result, looks, state.written


PASSED = {"passed": True, "plan": "ab" * 32, "job": "motley-abababababab-1@5", "time": "t"}


@pytest.mark.parametrize("proof, more, looks", [
    (None, {}, ["full"]),
    (PASSED, {}, ["quick"]),
    ({**PASSED, "passed": False}, {}, ["full"]),
    ({**PASSED, "plan": "cd" * 32}, {}, ["full"]),
    ({**PASSED, "job": "motley-abababababab-1@4"}, {}, ["full"]),
    (PASSED, {"form": "full"}, ["full"]),
    (None, {"form": "quick"}, ["quick"]),
    (None, {"check_mode": True}, ["quick"]),
], ids=["first", "nothing changed", "failed before", "another plan", "the job was started anew", "asked for", "quick asked for", "check mode"])
def test_form(monkeypatch: pytest.MonkeyPatch, proof: Any, more: dict[str, Any], looks: list[str]) -> None:
    result, taken, written = prove(monkeypatch, proof=proof, **more)
    assert result["passed"] is True
    assert taken == looks
    assert [w["form"] for w in written] == (["full"] if looks == ["full"] else []), "a quick look leaves the full proof as it is"


def test_a_quick_look_that_finds_something_becomes_the_full_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    result, taken, written = prove(monkeypatch, proof=PASSED, ok=False)
    assert isinstance(result, MotleyError) and taken == ["quick", "full"]
    assert written[0]["passed"] is False
    assert "completion: expected an answer with tokens, seen HTTP 500" in result.text()
    assert "What to do: look at the engine's log" in result.text()


def test_a_job_that_does_not_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    result, _, _ = prove(monkeypatch, proof=None, job={"id": "motley-abababababab-1", "status": "FAILED", "message": "exit code 1"})
    assert "x86-01: job: expected a running job of this plan, seen motley-abababababab-1 FAILED" in result.text()
