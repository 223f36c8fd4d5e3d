#!/usr/bin/env python3
"""The long checks, resumable: what passed at this commit is not run again.

usage: run.py [NAME ...] [--again] [--seed N]

kill-*: the run's process group is killed (SIGKILL) at a seeded moment inside the named step; no process of it may be left, and the
next run must end verified with secrets, cluster and plan unchanged. real: two runs of site.yml with the real engine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.integration.conftest import BIN, LAB, Lab  # noqa: E402  (the path is set above)

RESULTS = ROOT / ".build" / "acceptance.json"
# step -> text in the output after which the clock of the kill starts, seconds within which it falls, extra variables of the killed and the next run
MOMENTS: dict[str, tuple[str, float, tuple[str, ...]]] = {
    "plan": ("TASK [motley.inference.plan", 1.0, ()),
    "talos_image": ("TASK [motley.inference.talos_image", 1.0, ()),
    "talos_config": ("TASK [motley.inference.talos_config", 3.0, ()),
    "install": ("TASK [motley.inference.talos_config", 8.0, ()),
    "talos_bootstrap": ("TASK [motley.inference.talos_bootstrap", 3.0, ()),
    "gpu_device_plugin": ("TASK [motley.inference.gpu_device_plugin", 4.0, ()),
    "ray_cluster": ("TASK [motley.inference.ray_cluster", 4.0, ()),
    "vllm_serve": ("TASK [motley.inference.vllm_serve", 4.0, ()),
    "upgrade": ("TASK [motley.inference.talos_image", 6.0, ("-e", '{"motley_talos_image_kernel_args": ["quiet"], "motley_allow_reboot": true}')),
    "benchmark": ("TASK [motley.inference.benchmark", 1.0, ()),
}


def start(lab: Lab, *args: str) -> tuple[subprocess.Popen[bytes], Path]:
    """A site run in a session of its own, its output in a file."""
    output = lab.directory / f"out-{time.monotonic_ns()}"
    process = subprocess.Popen(
        [str(LAB), "exec", "--name", lab.name, "controller", "--", str(BIN / "ansible-playbook"), "site.yml", "-i", "inventories/lab",
         "-e", f"motley_state_dir={lab.state}", *args], stdout=output.open("wb"), stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", "PATH": f"{BIN}:{os.environ['PATH']}"})
    return process, output


def members(session: int) -> list[str]:
    """Living processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                if int(fields[3]) == session and fields[0] != "Z":
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120])
            except OSError:
                continue
    return found


def kill(step: str, seed: int) -> str:
    """One kill and the run after it; returns what was seen, raises AssertionError."""
    mark, within, extra = MOMENTS[step]
    delay = random.Random(f"{seed}-{step}").uniform(0, within)  # noqa: S311  (a moment, no secret)
    with tempfile.TemporaryDirectory() as directory:
        lab = Lab("kill", 8019, Path(directory))
        lab.down()
        try:
            lab.up("--engine", "stub")
            if extra or step in ("benchmark",):
                first = lab.site()
                assert first.rc == 0, first.output[-2000:]
                if step == "benchmark":
                    (lab.state / "benchmark.jsonl").unlink()
            kept = {name: (lab.state / name).read_bytes() for name in ("secrets.yaml", "api_key", "ray_token") if (lab.state / name).exists()}
            process, output = start(lab, *extra)
            deadline = time.monotonic() + 240
            while mark not in output.read_text(errors="replace"):
                assert process.poll() is None and time.monotonic() < deadline, output.read_text()[-2000:]
                time.sleep(0.05)
            time.sleep(delay)
            ended = process.poll() is not None
            kept.update({name: (lab.state / name).read_bytes() for name in ("secrets.yaml", "api_key", "ray_token") if (lab.state / name).exists()})
            if not ended:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            gone = time.monotonic() + 10
            while left := members(process.pid):
                assert time.monotonic() < gone, f"left over: {left}"
                time.sleep(0.1)
            after = lab.site(*extra)
            assert after.rc == 0, after.output[-3000:]
            assert json.loads((lab.state / "verify.json").read_text())["passed"] is True
            changed = [name for name, text in kept.items() if (lab.state / name).read_bytes() != text]
            assert not changed, f"made anew: {changed}"
            return f"killed {delay:.1f} s into it{' (it had ended)' if ended else ''}; verified {after.seconds:.0f} s after"
        finally:
            lab.down()


def real(seed: int) -> str:
    """make lab twice with the real engine."""
    del seed
    with tempfile.TemporaryDirectory() as directory:
        lab = Lab("real", 8020, Path(directory))
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
