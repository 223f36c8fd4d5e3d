# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action: it answers a request, and records the plan of an inventory."""

from __future__ import annotations

import http.server
import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_plan import SMALL_LLAMA

Run = Callable[..., "subprocess.CompletedProcess[str]"]
PLAY = """
- hosts: motley_nodes
  connection: local
  gather_facts: false
  tasks:
    - motley.inference.plan:
      run_once: true
"""


@pytest.fixture
def hub() -> Iterator[tuple[str, list[str]]]:
    """A model hub that has one config.json, and the paths that were asked for."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            found = self.path == "/example/llama-28l/resolve/main/config.json"
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(json.dumps(SMALL_LLAMA).encode() if found else b"")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", asked
    server.shutdown()
    server.server_close()


def inventory(hub: str, model: str = "example/llama-28l") -> str:
    return f"""
all:
  vars:
    motley_cluster: small
    motley_model: {model}
    motley_talos_version: v1.14.1
    motley_max_model_len: 512
    motley_engine_version: 0.32.0
    motley_engine_args: [--dtype, float32]
    motley_engine_env: {{HF_ENDPOINT: "{hub}"}}
  children:
    motley_nodes:
      hosts:
        x86-01: {{ansible_host: 10.0.0.20, motley_accelerators: [rtx4090, rtx4090], motley_install_disk: /dev/sda,
                 motley_devices: [&card {{memory_gib: 0.054, reserve_gib: 0.01, backend: cpu}}, *card]}}
        spark-01: {{ansible_host: 10.0.0.10, motley_accelerators: [gb10], motley_install_disk: /dev/sda,
                   motley_devices: [{{memory_gib: 0.067, reserve_gib: 0.01, backend: cpu}}]}}
"""


def test_the_inventorys_plan_is_recorded_once(playbook: Run, hub: tuple[str, list[str]], tmp_path: Path) -> None:
    address, asked = hub
    first = playbook(PLAY, inventory=inventory(address))
    assert first.returncode == 0, first.stdout + first.stderr
    assert "changed=1" in first.stdout
    assert "10,10,8" in first.stdout or "8,10,10" in first.stdout
    (found,) = tmp_path.rglob("plan.json")
    document = json.loads(found.read_text())
    assert document["pipeline"] == 3
    assert document["request"]["config"]["num_hidden_layers"] == 28
    assert document["inputs"]
    asked.clear()
    second = playbook(PLAY, inventory=inventory(address))
    assert "changed=0" in second.stdout
    assert not asked  # the config.json of the same model is not fetched again


def test_a_model_that_the_hub_does_not_have(playbook: Run, hub: tuple[str, list[str]]) -> None:
    result = playbook(PLAY, inventory=inventory(hub[0], "example/none"))
    assert result.returncode != 0
    assert "example/none is not in the planner's table, and" in result.stdout + result.stderr
    assert "answered 404" in result.stdout + result.stderr
    assert "Traceback" not in result.stdout + result.stderr


def test_a_request_is_answered_and_nothing_written(playbook: Run, tmp_path: Path) -> None:
    play = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - motley.inference.plan:
        request:
          model: meta-llama/Llama-3.1-70B-Instruct
          nodes:
            - {name: x86-01, address: 10.0.0.20, devices: [rtx4090]}
            - {name: spark-01, address: 10.0.0.10, devices: [gb10]}
      register: answer
    - ansible.builtin.assert:
        that:
          - not answer.changed
          - not answer.plan.feasible
          - answer.plan.changes | length > 0
"""
    result = playbook(play, inventory="all: {hosts: {localhost: {ansible_connection: local}}}")
    assert result.returncode == 0, result.stdout + result.stderr
    assert not list(tmp_path.rglob("plan.json"))
