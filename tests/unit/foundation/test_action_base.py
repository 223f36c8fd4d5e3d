"""The action base through real playbook runs: tagged data, refusals and ties to the parent exist only there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.motley.inference.plugins.action import preflight
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.plugin_utils import action
from ansible_collections.motley.inference.plugins.plugin_utils.state import StateDirectory

from tests import processes

ROOT = Path(__file__).resolve().parents[3]
INVENTORY = """
all:
  vars: {motley_cluster: home, motley_model: meta-llama/Llama-3.1-8B-Instruct, motley_talos_version: v1.14.1, motley_talosctl: echo}
  children:
    motley_nodes:
      hosts:
        x86-01: {ansible_host: 127.0.0.1, motley_accelerators: [rtx4090, rtx4090]}
        spark-01: {ansible_host: 127.0.0.2, motley_accelerators: [gb10]}
"""
PLAY = """
- hosts: all
  gather_facts: false
  connection: local
  tasks:
    - motley.inference.preflight:
      run_once: true
"""


def test_preflight_passes_and_makes_a_private_state_directory(playbook, tmp_path):
    done = playbook(PLAY, inventory=INVENTORY)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("old", "new", "text"), [
    ("motley_model:", "motley_modle:", "did you mean motley_model?"),
    ("motley_talosctl: echo", "motley_talosctl: no-such-talosctl", "talosctl is missing"),
    ("motley_cluster: home", "motley_cluster: home, motley_hf_token: hf_abcdefghijklmnopqrstuvwx", "holds a secret in the clear: motley_hf_token"),
    ("motley_cluster: home", "motley_cluster: home, motley_launcher: native", "launcher native with workload pod is not supported"),
    ("motley_nodes", "motley_node", "no group motley_nodes"),
])
def test_bad_inventories_are_refused_before_anything_is_touched(playbook, tmp_path, old, new, text):
    done = playbook(PLAY, inventory=INVENTORY.replace(old, new))
    assert done.returncode != 0
    assert text in done.stdout + done.stderr
    assert "What to do:" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "hf_abcdefghijklmnopqrstuvwx" not in done.stdout
    assert not any(p for p in (tmp_path / "state").glob("*") if p.name != ".lock")


def test_an_unknown_option_is_refused(playbook):
    done = playbook(PLAY.replace("preflight:", "preflight: {scoop: reach}"), inventory=INVENTORY)
    assert done.returncode != 0
    assert "scoop" in done.stdout + done.stderr


def test_check_mode_touches_nothing(playbook, tmp_path):
    done = playbook(PLAY, "--check", inventory=INVENTORY)
    assert done.returncode == 0, done.stdout
    assert not (tmp_path / "state" / ".lock").exists() or (tmp_path / "state" / ".lock").read_text() == ""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_a_killed_run_leaves_no_process(tmp_path, number):
    slow = tmp_path / "slow-talosctl"
    slow.write_text(f"#!/bin/sh\necho started > {tmp_path}/started\nexec sleep 73\n")
    slow.chmod(0o755)
    (tmp_path / "play.yml").write_text(PLAY)
    (tmp_path / "hosts.yml").write_text(INVENTORY.replace("motley_talosctl: echo", f"motley_talosctl: {slow}"))
    run = subprocess.Popen([str(Path(sys.executable).parent / "ansible-playbook"), str(tmp_path / "play.yml"), "-i", str(tmp_path / "hosts.yml"),
                            "-e", f"motley_state_dir={tmp_path}/state"], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                           env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), processes.VARIABLE: str(tmp_path)}, start_new_session=True)
    deadline = time.monotonic() + 30
    while not (tmp_path / "started").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert any("sleep 73" in line for line in processes.living(str(tmp_path)))
    run.send_signal(number)
    run.wait()
    deadline = time.monotonic() + 6      # by itself a worker ends when talosctl's 20 s are over
    while left := processes.living(str(tmp_path)):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def test_a_worker_whose_parent_died_before_it_began_ends(monkeypatch):
    monkeypatch.setattr(action, "die_with_parent", lambda number: None)
    monkeypatch.setattr(action.multiprocessing, "parent_process", lambda: type("P", (), {"pid": os.getppid() + 1})())
    child = os.fork()
    if child == 0:
        action._tied_parent()
        os._exit(7)      # it went on
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_the_parent_is_the_one_that_multiprocessing_knows(monkeypatch):
    monkeypatch.setattr(action, "die_with_parent", lambda number: None)
    assert action._tied_parent() == os.getppid()


@pytest.mark.parametrize(("restarting", "tries"), [((), 1), (("spark-01",), 3), (("x86-01",), 1)], ids=["off", "restarts", "another restarts"])
def test_a_machine_that_a_run_left_restarting_gets_time(tmp_path, monkeypatch, restarting, tries):
    asked = []

    def answers(host, port):
        asked.append(host)
        return "refused" if host == "10.0.0.10" and asked.count(host) < 3 else None

    monkeypatch.setattr(preflight, "_answers", answers)
    monkeypatch.setattr(preflight.time, "sleep", lambda seconds: None)
    state = StateDirectory(tmp_path)
    for name in restarting:
        state.record_facts(name, {"restarting": True}, source="a run")
    nodes = [{"name": "x86-01", "ansible_host": "10.0.0.20"}, {"name": "spark-01", "ansible_host": "10.0.0.10"}]
    context = SimpleNamespace(cluster=lambda: {"platform": "talos", "nodes": nodes}, state=state, check_mode=False, progress=lambda *a, **k: None)
    if tries == 1:
        with pytest.raises(MotleyError, match="not every machine answers"):
            preflight._reach(context)
    else:
        assert preflight._reach(context) == {"silent": []}
    assert asked.count("10.0.0.10") == tries
