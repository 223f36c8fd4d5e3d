#!/usr/bin/env python3
"""The long checks, resumable: what passed at this commit is not run again.

usage: run.py [NAME ...] [--again] [--seed N]

kill-*: the run's process group is killed (SIGKILL) at a seeded moment inside the named step; no process of it may be left (Ansible's
workers and their talosctl neither), and the next run must end verified with secrets, cluster and plan unchanged. real: two runs of site.yml with the real engine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests import processes  # noqa: E402  (the path is set above)
from tests.integration.conftest import BIN, LAB, Lab, free_port, own_name  # noqa: E402  (the path is set above)

RESULTS = ROOT / ".build" / "acceptance.json"
UPGRADE = ("-e", '{"motley_talos_image_kernel_args": ["quiet"], "motley_allow_reboot": true}')


@dataclass(frozen=True)
class Moment:
    """When the kill falls: seconds after what begins it (a line of the output, or a request that the lab saw), and before what ends the step."""

    begin: str
    end: str
    within: tuple[float, float]
    request: bool = False
    extra: tuple[str, ...] = ()
    finished: bool = False      # a run on a finished cluster


MOMENTS = {
    "plan": Moment("TASK [motley.inference.plan : Work out", "TASK [motley.inference.talos_image", (0.0, 0.1)),
    "talos_image": Moment("TASK [motley.inference.talos_image : Register", "TASK [motley.inference.talos_config", (0.0, 0.5)),
    "talos_config": Moment("TASK [motley.inference.talos_config : Configure each", "Prove the image of nodes that are new", (0.5, 2.5)),
    "install": Moment("machine POST /apply", "TASK [motley.inference.talos_bootstrap", (0.5, 4.5), request=True),
    "talos_bootstrap": Moment("machine POST /bootstrap", "TASK [motley.inference.container_image", (0.0, 1.0), request=True),
    "gpu_device_plugin": Moment("kube PATCH .*/daemonsets/nvidia-device-plugin", "TASK [motley.inference.nccl_interface", (0.0, 1.2), request=True),
    "ray_cluster": Moment("kube PATCH .*/pods/ray-head", "TASK [motley.inference.vllm_serve", (0.0, 0.5), request=True),
    "vllm_serve": Moment("kube PATCH .*/services/motley-endpoint", "TASK [motley.inference.verify", (0.0, 0.8), request=True),
    "upgrade": Moment("machine POST /upgrade", "Prove the new image", (0.0, 3.0), request=True, extra=UPGRADE, finished=True),
    "benchmark": Moment("TASK [motley.inference.benchmark : Measure", "TASK [motley.inference.report", (0.0, 0.4), finished=True),
}
KEPT = ("secrets.yaml", "api_key", "ray_token", "plan.json")


def start(lab: Lab, *args: str) -> tuple[subprocess.Popen[bytes], Path, str]:
    """A site run in a session of its own, its output in a file, and the mark that all its processes carry."""
    mark = f"{lab.name}-{time.monotonic_ns()}"
    output = lab.directory / f"out-{mark}"
    process = subprocess.Popen(
        [str(LAB), "exec", "--name", lab.name, "controller", "--", str(BIN / "ansible-playbook"), "site.yml", "-i", "inventories/lab",
         "-e", f"motley_state_dir={lab.state}", *args], stdout=output.open("wb"), stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", "PATH": f"{BIN}:{os.environ['PATH']}",
             processes.VARIABLE: mark})
    return process, output, mark


def begun(lab: Lab, moment: Moment, output: Path, before: int) -> bool:
    """Whether what begins the moment has been seen."""
    if not moment.request:
        return moment.begin in output.read_text(errors="replace")
    return any(re.match(moment.begin, f"{r['server']} {r['method']} {r['path']}") for r in lab.requests()[before:] if not r.get("dry_run"))


def kept_files(lab: Lab) -> dict[str, bytes]:
    """What must stay as it is once it exists."""
    return {name: (lab.state / name).read_bytes() for name in KEPT if (lab.state / name).exists()}


def kill(step: str, seed: int) -> str:
    """One kill and the run after it; returns what was seen, raises AssertionError."""
    moment = MOMENTS[step]
    delay = random.Random(f"{seed}-{step}").uniform(*moment.within)  # noqa: S311  (a moment, no secret)
    with tempfile.TemporaryDirectory() as directory:
        lab = Lab(own_name("kill"), free_port(), Path(directory))
        lab.down()
        try:
            lab.up("--engine", "stub")
            if moment.finished:
                first = lab.site()
                assert first.rc == 0, first.output[-2000:]
            if step == "benchmark":
                (lab.state / "benchmark.jsonl").unlink()
            before = len(lab.requests())
            process, output, mark = start(lab, *moment.extra)
            deadline = time.monotonic() + 240
            while not begun(lab, moment, output, before):
                assert process.poll() is None and time.monotonic() < deadline, output.read_text()[-2000:]
                time.sleep(0.03)
            time.sleep(delay)
            kept = kept_files(lab)
            with_children = processes.living(mark)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert moment.end not in output.read_text(errors="replace"), f"{delay:.1f} s were too long: the step had ended"
            gone = time.monotonic() + 10
            while left := processes.living(mark):
                assert time.monotonic() < gone, f"left over: {left}"
                time.sleep(0.1)
            after = lab.site(*moment.extra)
            assert after.rc == 0, after.output[-3000:]
            assert json.loads((lab.state / "verify.json").read_text())["passed"] is True
            now = kept_files(lab)
            changed = [name for name, text in kept.items() if now.get(name) != text]
            assert not changed, f"made anew: {changed}"
            bootstraps = [r for r in lab.requests() if r["server"] == "machine" and r["path"] == "/bootstrap" and r["status"] == 200]
            assert len(bootstraps) == 1, bootstraps
            return f"killed {delay:.1f} s into it, {len(with_children)} processes; verified {after.seconds:.0f} s after"
        finally:
            lab.down()


def real(seed: int) -> str:
    """make lab twice with the real engine."""
    del seed
    with tempfile.TemporaryDirectory() as directory:
        lab = Lab(own_name("real"), free_port(), Path(directory))
        lab.down()
        try:
            started = time.monotonic()
            lab.up()
            first = lab.site()
            total = time.monotonic() - started
            assert first.rc == 0, first.output[-3000:]
            second = lab.site()
            assert second.rc == 0 and second.changed == 0, second.output[-3000:]
            return f"first {total:.0f} s with the lab's start, second {second.seconds:.0f} s, changed=0"
        finally:
            lab.down()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--again", action="store_true", help="also what passed at this commit")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    checks: dict[str, Callable[[int], str]] = {f"kill-{step}": (lambda seed, step=step: kill(step, seed)) for step in MOMENTS}
    checks["real"] = real
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=True).stdout.strip()
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results = known.get(head, {})
    for name, check in checks.items():
        if (args.names and name not in args.names) or (not args.again and results.get(name, {}).get("passed")):
            continue
        started = time.monotonic()
        try:
            results[name] = {"passed": True, "seen": check(args.seed)}
        except (AssertionError, subprocess.SubprocessError, OSError) as error:
            results[name] = {"passed": False, "seen": str(error)[-1500:]}
        results[name]["seconds"] = round(time.monotonic() - started)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps({head: results}, indent=2))
        print(f"{'ok' if results[name]['passed'] else 'FAIL':4} {name:22} {results[name]['seconds']:4d} s  {results[name]['seen']}", flush=True)
    passed = sum(r["passed"] for r in results.values())
    print(f"{passed} of {len(checks)} passed at {head[:8]}")
    return 0 if passed == len(checks) else 1


if __name__ == "__main__":
    sys.exit(main())
