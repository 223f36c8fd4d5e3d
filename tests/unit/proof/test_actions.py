"""benchmark and report through real playbook runs, against a small OpenAI server; verify where nothing runs."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

_spec = importlib.util.spec_from_file_location("fake_openai", Path(__file__).with_name("fake_openai.py"))
assert _spec and _spec.loader
fake_openai = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fake_openai)

ROOT = Path(__file__).resolve().parents[3]
Playbook = Callable[..., CompletedProcess[str]]
KEY = "sk-test"


@pytest.fixture
def server() -> Iterator[Any]:
    with fake_openai.running() as started:
        started.first_s = started.gap_s = 0.0005
        yield started


def inventory(port: int = 8000) -> str:
    return f"""
all:
  vars: {{motley_cluster: home, motley_model: meta-llama/Llama-3.1-8B-Instruct, motley_talos_version: v1.14.1, motley_port: {port}}}
  children:
    motley_nodes:
      hosts:
        x86-01: {{ansible_host: 127.0.0.1, motley_accelerators: [rtx4090]}}
"""


def play(*tasks: str, hosts: str = "motley_nodes") -> str:
    lines = "\n".join(f"    - {task}\n      run_once: true" for task in tasks)
    return f"- hosts: {hosts}\n  gather_facts: false\n  connection: local\n  tasks:\n{lines}\n"


SMALL = "motley.inference.benchmark: {requests: 6, concurrency: 2, output_tokens: 3, prompt_tokens: 20}"
SITE = play("motley.inference.plan:", SMALL, "motley.inference.report:")


def state_with_key(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir(mode=0o700, exist_ok=True)
    (tmp_path / "state" / "api_key").write_text(KEY + "\n")
    return tmp_path / "state"


def text(done: CompletedProcess[str]) -> str:
    return done.stdout + done.stderr


def changed(done: CompletedProcess[str]) -> int:
    return int(done.stdout.rsplit("changed=", 1)[1].split()[0])


def test_any_endpoint_is_measured_without_an_inventory(playbook: Playbook, server: Any, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY)
    done = playbook(ROOT / "playbooks/benchmark.yml", "-e", json.dumps({
        "motley_url": server.url, "motley_api_key_file": str(tmp_path / "key"), "motley_benchmark_requests": 6, "motley_benchmark_concurrency": 2,
        "motley_benchmark_output_tokens": 3}), inventory="localhost:\n")
    assert done.returncode == 0, text(done)
    assert "6 requests in" in done.stdout and "none failed" in done.stdout and "TTFT (first token)" in done.stdout
    assert KEY not in text(done)
    asked = [r for r in server.seen if r.get("stream")]
    assert len(asked) == 8, "two for the warm-up, six measured"
    assert all(r["ignore_eos"] and r["max_tokens"] == 3 and r["temperature"] == 0 for r in asked)
    assert len({r["prompt"] for r in asked}) == 8, "no prompt twice, or the prefix cache answers"


def test_refusals_say_what_to_do(playbook: Playbook, server: Any, tmp_path: Path) -> None:
    """One run with a task for each: a wrong key, a server that fails, no server, a password in the address; the last one is good."""
    (tmp_path / "key").write_text(KEY)
    (tmp_path / "wrong").write_text("sk-wrong-key")
    with fake_openai.running() as broken, fake_openai.running() as plain:
        broken.fail_every = 1
        plain.owned_by, plain.key = "somebody", None
        tasks = [f"{{url: '{server.url}', api_key_file: '{tmp_path}/wrong'}}", f"{{url: '{broken.url}', api_key_file: '{tmp_path}/key'}}",
                 "{url: 'http://127.0.0.1:9', api_key_file: /nowhere/key}", "{url: 'http://me:hunter22@host:8000'}", "{requests: 0, url: 'http://h'}",
                 f"{{url: '{plain.url}', requests: 2, concurrency: 1, output_tokens: 2}}"]
        lines = "\n".join(f"    - motley.inference.benchmark: {task}\n      ignore_errors: true" for task in tasks)
        done = playbook(f"- hosts: localhost\n  gather_facts: false\n  connection: local\n  tasks:\n{lines}\n", inventory="localhost:\n")
        streamed = [r for r in plain.seen if r.get("stream")]
    assert "ok=6" in done.stdout and "ignored=5" in done.stdout, text(done)
    for words in ("give the key by api_key_file", "refuses a first request: HTTP 500: out of luck", "/nowhere/key cannot be read", "must not hold a password",
                  "requests is 0"):
        assert words in text(done), words
    assert text(done).count("What to do") >= 5
    assert "Traceback" not in text(done) and KEY not in text(done) and "sk-wrong-key" not in text(done)
    assert streamed and all("messages" in r and "ignore_eos" not in r for r in streamed), "another server than vLLM gets plain chat"


def test_a_plan_is_measured_once_and_reported_without_change(playbook: Playbook, server: Any, tmp_path: Path) -> None:
    state = state_with_key(tmp_path)
    (state / "benchmark.jsonl").write_text('{"plan": "ab')  # a run that was killed while it wrote
    port = server.server_address[1]
    first = playbook(SITE, inventory=inventory(port))
    assert first.returncode == 0, text(first)
    sent = len(server.seen)
    page = (state / "report.html").read_bytes()
    assert (state / "report.html").stat().st_mode & 0o777 == 0o600
    for words in ("curl http://127.0.0.1:", "proof      not verified yet", "benchmark  6 requests in", f"report     {state}/report.html"):
        assert words in first.stdout, words
    second = playbook(SITE, inventory=inventory(port))
    assert second.returncode == 0, text(second)
    assert (changed(first), changed(second)) == (2, 0)
    assert "measured before" in second.stdout
    assert len(server.seen) == sent, "nothing was sent again"
    assert (state / "report.html").read_bytes() == page
    lines = (state / "benchmark.jsonl").read_text().splitlines()
    row, plan = json.loads(lines[1]), json.loads((state / "plan.json").read_text())
    assert len(lines) == 2
    assert (row["plan"], row["completed"], row["total_output_tokens"], row["layer_partition"]) == (plan["inputs_sha256"], 6, 18, plan["layer_partition"])
    assert KEY not in text(first) + text(second) + lines[1] + page.decode()
    more = play(SMALL.replace("requests: 6", "requests: 4"), SMALL.replace("requests: 6", "force: true, requests: 6"))
    third = playbook(more, inventory=inventory(port))
    assert (third.returncode, changed(third)) == (0, 2), text(third)
    assert len((state / "benchmark.jsonl").read_text().splitlines()) == 4, "other settings, and force, measure again"


def test_check_mode_sends_nothing_and_writes_below_check(playbook: Playbook, server: Any, tmp_path: Path) -> None:
    state = tmp_path / "state"
    verify = play("motley.inference.plan:", "motley.inference.verify:", SMALL, "motley.inference.report:")
    done = playbook(verify, "--check", inventory=inventory(server.server_address[1]))
    assert done.returncode == 0, text(done)
    assert "nothing to verify" in done.stdout and "would send 6 requests" in done.stdout
    assert server.seen == []
    assert sorted(p.name for p in state.iterdir() if p.name != ".lock") == ["check"]
    assert (state / "check" / "report.html").exists()
