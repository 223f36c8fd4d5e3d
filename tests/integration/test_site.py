"""The whole row on the lab with the stub engine: before, first run, second run, tags, limits, refusals."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from tests import processes
from tests.integration.conftest import BIN

ROOT = Path(__file__).resolve().parents[2]
STEPS = ("preflight", "plan", "talos_image", "talos_config", "talos_bootstrap", "container_image", "gpu_device_plugin", "nccl_interface", "ray_cluster",
         "vllm_serve", "verify", "benchmark", "report")
NODE_STEPS = ("talos_image", "talos_config", "nccl_interface")


def secrets_of(state: Path) -> set[str]:
    """Every secret value of a state directory: one-line ones and the bodies of PEM blocks."""
    found = set()
    for name in ("api_key", "ray_token"):
        found.add((state / name).read_text().strip())
    for name in ("secrets.yaml", "talosconfig", "kubeconfig"):
        found |= set(_long_strings(yaml.safe_load((state / name).read_text())))
    return {s for s in found if len(s) >= 16}


def _long_strings(node: object) -> list[str]:
    if isinstance(node, dict):
        return [s for key, value in node.items() if key not in ("ca", "crt", "certificate-authority-data", "client-certificate-data", "id", "server")
                for s in _long_strings(value)]
    if isinstance(node, list):
        return [s for value in node for s in _long_strings(value)]
    return [node] if isinstance(node, str) and re.fullmatch(r"[A-Za-z0-9+/=_.:-]{16,}", node) and "/" != node[0] else []


def test_check_before_anything_writes_nothing(lab):
    run = lab.site("--check", "--diff")
    assert run.rc == 0, run.output[-3000:]
    assert run.writes == []
    rendered = [p.relative_to(lab.state / "check").as_posix() for p in (lab.state / "check").rglob("*") if p.is_file()]
    assert "plan.json" in rendered
    assert len([r for r in rendered if r.startswith("rendered/")]) >= 6, rendered
    assert not (lab.state / "secrets.yaml").exists()


def test_first_run_ends_verified(lab):
    run = lab.site()
    assert run.rc == 0, run.output[-5000:]
    verified = json.loads((lab.state / "verify.json").read_text())
    assert verified["passed"] is True, verified
    plan = json.loads((lab.state / "plan.json").read_text())
    assert plan["pipeline"] == 3
    assert {w["node"] for s in plan["stages"] for w in s["workers"]} == {"x86-01", "spark-01"}


def test_second_run_changes_nothing(lab):
    run = lab.site()
    assert run.rc == 0, run.output[-3000:]
    assert run.changed == 0, [line for line in run.output.splitlines() if "changed" in line]


def test_check_after_writes_nothing(lab):
    run = lab.site("--check", "--diff")
    assert run.rc == 0, run.output[-3000:]
    assert run.writes == []
    assert run.changed == 0


def test_the_endpoint_answers_with_the_key_only(lab):
    body = json.dumps({"model": "motley/lab-llama-28l", "prompt": "Hello", "max_tokens": 4}).encode()
    key = (lab.state / "api_key").read_text().strip()
    url = f"http://127.0.0.1:{lab.port}/v1/completions"
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json", "Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert json.loads(answer.read())["choices"]
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"}), timeout=30)
    assert error.value.code == 401


@pytest.mark.parametrize("step", STEPS)
def test_each_tag_alone_changes_nothing(lab, step):
    run = lab.site("--tags", step)
    assert run.rc == 0, run.output[-3000:]
    assert run.changed == 0
    assert re.search(rf"TASK \[motley\.inference\.{step} : (?!Validating)", run.output), "no task of the role ran"


def test_limit_works_for_node_steps_and_is_refused_for_the_others(lab):
    for step in NODE_STEPS:
        run = lab.site("--tags", step, "--limit", "spark-01")
        assert run.rc == 0, run.output[-2000:]
    for step in ("plan", "ray_cluster", "verify"):
        run = lab.site("--tags", step, "--limit", "spark-01")
        assert run.rc != 0
        assert "--limit leaves out x86-01" in run.output


def test_a_stale_plan_is_refused(lab):
    run = lab.site("--tags", "vllm_serve", "-e", "motley_max_model_len=256")
    assert run.rc != 0
    assert "the inventory has changed since the plan" in run.output


def named_command(output: str) -> list[str]:
    """The command that a rebuild says has to follow."""
    found = re.search(r"go on with:\n\s+ansible-playbook (.*)", output)
    assert found, output[-3000:]
    return shlex.split(found[1])


@pytest.mark.parametrize("step", ["ray_cluster", "vllm_serve"])
def test_a_rebuild_and_the_command_that_it_names_end_verified(lab, step):
    job = lab.site("--tags", step, "-e", "motley_rebuild=true")
    assert job.rc == 0, job.output[-3000:]
    assert job.changed >= 1
    (lab.state / "verify.json").unlink()
    playbook, *rest = named_command(job.output)
    after = lab.exec(str(BIN / "ansible-playbook"), playbook, *rest, "-e", f"motley_state_dir={lab.state}")
    assert after.returncode == 0, after.stdout[-3000:]
    assert json.loads((lab.state / "verify.json").read_text())["passed"] is True


def test_after_the_rebuilds_a_run_changes_nothing(lab):
    run = lab.site()
    assert run.rc == 0, run.output[-3000:]
    assert run.changed == 0


def slow_talosctl(lab, tmp_path):
    """A talosctl that takes its time, once it is asked for the machines' configuration; it says so in tmp_path/started."""
    real = ROOT / "lab" / "bin" / "talosctl"
    program = tmp_path / "talosctl"
    program.write_text(f'#!/bin/sh\ncase "$*" in *apply-config*) echo $$ >> {tmp_path}/started; exec sleep 97;; esac\nexec {real} "$@"\n')
    program.chmod(0o755)
    return program


def until(look, seconds=60):
    deadline = time.monotonic() + seconds
    while not (seen := look()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)
    return seen


def test_a_second_run_at_the_same_time_is_refused_and_names_the_first(lab, tmp_path):
    mark = str(tmp_path)
    first = lab.start("-e", f"motley_talosctl={slow_talosctl(lab, tmp_path)}", "--tags", "talos_config", env={processes.VARIABLE: mark})
    try:
        until((tmp_path / "started").exists)
        second = lab.site("--tags", "plan")
        assert second.rc != 0
        assert f"another run works on {lab.state}: process {first.pid} on " in second.output
        assert "What to do:" in second.output
        assert second.writes == []
        assert first.poll() is None
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    until(lambda: not processes.living(mark), 10)
    assert lab.site("--tags", "plan").rc == 0      # the dead run holds nothing


def test_a_time_out_of_ansible_runner_leaves_no_process(lab, tmp_path):
    mark = str(tmp_path)
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "settings").write_text(json.dumps({"job_timeout": 12, "idle_timeout": 60}))
    (tmp_path / "env" / "extravars").write_text(json.dumps({"motley_state_dir": str(lab.state), "motley_talosctl": str(slow_talosctl(lab, tmp_path))}))
    shutil.copytree(ROOT / "inventories" / "lab", tmp_path / "inventory")
    driver = ("import ansible_runner, sys; r = ansible_runner.run(private_data_dir=sys.argv[1], playbook='motley.inference.site', "
              "tags='preflight,talos_config'); print('ended', r.status)")
    done = lab.exec(sys.executable, "-c", driver, str(tmp_path), env={processes.VARIABLE: mark})
    assert "ended timeout" in done.stdout, done.stdout + done.stderr
    assert (tmp_path / "started").exists(), "the time-out came before talosctl"
    until(lambda: not processes.living(mark), 10)
    artifacts = "".join(p.read_text(errors="replace") for p in (tmp_path / "artifacts").rglob("*") if p.is_file())
    assert [s[:6] for s in secrets_of(lab.state) if s in artifacts] == []


def test_no_secret_in_any_output(lab):
    run = lab.site("--check", "--diff", "-vvv")
    leaked = [s[:6] for s in secrets_of(lab.state) if s in run.output]
    assert leaked == []
    for path in (lab.state / "rendered").rglob("*"):
        if path.is_file():
            text = path.read_text()
            assert not [s[:6] for s in secrets_of(lab.state) if s in text], path
    assert all(p.stat().st_mode & 0o077 == 0 for p in lab.state.rglob("*"))
