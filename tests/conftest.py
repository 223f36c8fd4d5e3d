"""Shared fixtures: real playbook runs in a directory of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent


@pytest.fixture
def playbook(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a playbook (YAML text or a path in the repository) with the interpreter's own ansible-playbook; state in tmp_path/state."""

    def run(play: str | Path, *args: str, inventory: str | Path, env: dict[str, str] | None = None, timeout: float = 120,
            state: Path | None = None) -> subprocess.CompletedProcess[str]:
        if isinstance(play, str):
            path = tmp_path / "play.yml"
            path.write_text(play)
        else:
            path = play
        if isinstance(inventory, str):
            (tmp_path / "inventory").mkdir(exist_ok=True)
            hosts = tmp_path / "inventory" / "hosts.yml"
            hosts.write_text(inventory)
        else:
            hosts = inventory
        command = [str(BIN / "ansible-playbook"), str(path), "-i", str(hosts), "-e", json.dumps({"motley_state_dir": str(state or tmp_path / "state")}), *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=ROOT, check=False,
                              env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1",
                                   "PATH": f"{BIN}:{os.environ['PATH']}", **(env or {})})

    return run


@pytest.fixture
def home() -> dict[str, Any]:
    """Variables per host of the inventory that the README shows."""
    common = {"motley_cluster": "home", "motley_platform": "talos", "motley_model": "Qwen/Qwen2.5-72B-Instruct-AWQ", "motley_talos_version": "v1.14.1"}
    return {
        "x86-01": {**common, "ansible_host": "10.0.0.20", "motley_accelerators": ["rtx4090", "rtx4090"], "motley_install_disk": "/dev/nvme0n1"},
        "spark-01": {**common, "ansible_host": "10.0.0.10", "motley_accelerators": ["gb10"], "motley_install_disk": "/dev/nvme0n1"},
    }
