"""One lab with the stub engine for all whole runs; tests of a module run in file order and build on each other."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
LAB = ROOT / "lab" / "bin" / "motley-lab"


@dataclass
class Run:
    """How an ansible-playbook run ended."""

    rc: int
    output: str
    seconds: float
    requests: list[dict[str, Any]] = field(default_factory=list)

    @property
    def changed(self) -> int:
        return sum(int(n) for n in re.findall(r"changed=(\d+)", self.output))

    @property
    def writes(self) -> list[str]:
        """Requests that change something: no dry runs, no completions."""
        return [f"{r['server']} {r['method']} {r['path']}" for r in self.requests
                if r["method"] in ("POST", "PUT", "PATCH", "DELETE") and not r.get("dry_run") and not _harmless(r)]


def _harmless(request: dict[str, Any]) -> bool:
    """Writes of the lab's own controllers and kubelets, and questions that Kubernetes asks by POST."""
    return bool(re.search(r"motley-lab|/exec|selfsubject|/v1/(chat/)?completions", f"{request.get('agent')} {request['path']}"))


def own_name(prefix: str) -> str:
    """A lab name of this checkout: namespaces are the machine's, and another checkout may test at the same time."""
    return f"{prefix}{zlib.crc32(str(ROOT).encode()) % 0x10000:04x}"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Lab:
    """A running lab and a state directory of its own."""

    def __init__(self, name: str, port: int, directory: Path) -> None:
        self.name, self.port, self.directory = name, port, directory
        self.state = directory / "state"
        self.record = ROOT / ".build" / "lab" / name / "requests.jsonl"

    def up(self, *args: str) -> None:
        done = subprocess.run([str(LAB), "up", "--name", self.name, "--port", str(self.port), *args], capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def down(self) -> None:
        subprocess.run([str(LAB), "down", "--name", self.name], capture_output=True, timeout=120, check=False)

    def exec(self, *command: str, timeout: float = 600, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(LAB), "exec", "--name", self.name, "controller", "--", *command], capture_output=True, text=True, timeout=timeout,
                              check=False, cwd=ROOT, env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1",
                                                          "PATH": f"{BIN}:{os.environ['PATH']}", **(env or {})})

    def start(self, *args: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """A site run in a session of its own, not awaited."""
        command = [str(LAB), "exec", "--name", self.name, "controller", "--", str(BIN / "ansible-playbook"), "site.yml", "-i", "inventories/lab",
                   "-e", f"motley_state_dir={self.state}", *args]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT, start_new_session=True,
                                env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "PATH": f"{BIN}:{os.environ['PATH']}", **(env or {})})

    def site(self, *args: str, playbook: str = "site.yml", timeout: float = 600) -> Run:
        before = len(self.requests())
        started = time.monotonic()
        done = self.exec(str(BIN / "ansible-playbook"), playbook, "-i", "inventories/lab", "-e", f"motley_state_dir={self.state}", *args, timeout=timeout)
        return Run(done.returncode, done.stdout + done.stderr, time.monotonic() - started, self.requests()[before:])

    def requests(self) -> list[dict[str, Any]]:
        if not self.record.exists():
            return []
        return [json.loads(line) for line in self.record.read_text().splitlines() if line.strip()]


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    if os.geteuid() != 0:
        pytest.skip("the lab makes network namespaces: it needs root")
    if not shutil.which("bwrap"):
        pytest.skip("the lab needs bubblewrap (apt-get install bubblewrap)")
    lab = Lab(own_name("it"), free_port(), tmp_path_factory.mktemp("site"))
    lab.down()
    lab.up("--engine", "stub")
    yield lab
    lab.down()
