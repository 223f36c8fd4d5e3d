from __future__ import annotations

import json
import os
import stat
import subprocess
import sys

import pytest
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.plugin_utils.state import StateDirectory


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_files_are_private_and_written_once(tmp_path):
    state = StateDirectory(tmp_path / "s")
    assert state.write_text("rendered/a.yaml", "x: 1\n") is True
    assert state.write_text("rendered/a.yaml", "x: 1\n") is False
    assert mode(tmp_path / "s") == 0o700
    assert mode(tmp_path / "s/rendered") == 0o700
    assert mode(tmp_path / "s/rendered/a.yaml") == 0o600
    assert [p.name for p in (tmp_path / "s/rendered").iterdir()] == ["a.yaml"]


def test_check_mode_writes_below_check_only_and_reads_there_first(tmp_path):
    StateDirectory(tmp_path).write_json("plan.json", {"a": 1})
    check = StateDirectory(tmp_path, check_mode=True)
    assert check.read_json("plan.json") == {"a": 1}
    assert check.write_json("plan.json", {"a": 2}) is True
    assert check.read_json("plan.json") == {"a": 2}
    assert StateDirectory(tmp_path).read_json("plan.json") == {"a": 1}
    check.empty_check()
    assert check.write_json("plan.json", {"a": 1}) is False      # what is there already
    assert (tmp_path / "check/plan.json").exists()
    check.empty_check()
    assert check.read_json("plan.json") == {"a": 1}


def test_facts_keep_source_and_old_time(tmp_path):
    state = StateDirectory(tmp_path)
    assert state.record_facts("x86-01", {"interface": "enp3s0"}, source="talosctl get links") is True
    document = json.loads((tmp_path / "nodes.json").read_text())
    document["x86-01"]["interface"]["time"] = "2000-01-01T00:00:00Z"
    (tmp_path / "nodes.json").write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
    assert state.record_facts("x86-01", {"interface": "enp3s0"}, source="again") is False
    assert state.record_facts("x86-01", {"interface": "enp4s0"}, source="again") is True
    assert state.node_facts("x86-01") == {"interface": "enp4s0"}


def test_broken_json_is_named(tmp_path):
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(MotleyError, match="plan.json is no JSON"):
        StateDirectory(tmp_path).read_json("plan.json")


def test_a_second_run_is_refused_and_a_dead_one_is_not(tmp_path):
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        StateDirectory(tmp_path).claim(other.pid)
        with pytest.raises(MotleyError, match=f"process {other.pid} on "):
            StateDirectory(tmp_path).claim(os.getpid())
        StateDirectory(tmp_path).claim(other.pid)      # its own next step
    finally:
        other.kill()
        other.wait()
    StateDirectory(tmp_path).claim(os.getpid())


def test_concurrent_updates_are_not_lost(tmp_path):
    code = (f"import sys; sys.path[:0] = {sys.path!r}\n"
            "from ansible_collections.motley.inference.plugins.plugin_utils.state import StateDirectory\n"
            f"for i in range(25): StateDirectory({str(tmp_path)!r}).record_facts('n' + sys.argv[1], {{str(i): i}}, source='t')\n")
    processes = [subprocess.Popen([sys.executable, "-c", code, str(n)]) for n in range(3)]
    assert [p.wait() for p in processes] == [0, 0, 0]
    document = json.loads((tmp_path / "nodes.json").read_text())
    assert {node: len(facts) for node, facts in document.items()} == {"n0": 25, "n1": 25, "n2": 25}
