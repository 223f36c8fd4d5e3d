#!/usr/bin/env python3
"""Put faults into the core, one at a time, and see whether the unit tests notice.

usage: run.py [ID ...]      all of faults.yml, or those named

Works on a copy; prints a table; exits 0 if at least 27 of 30 (nine in ten of those asked for) are caught.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]


def copy(target: Path) -> Path:
    """A working copy of the collection below target, linked as one."""
    root = target / "ansible_collections" / "motley" / "inference"
    root.mkdir(parents=True)
    for name in ("plugins", "roles", "meta", "tests", "playbooks", "inventories", "lab", "changelogs"):
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "ansible.cfg", "galaxy.yml", "site.yml"):
        shutil.copy(ROOT / name, root)
    (root / ".build" / "collections" / "ansible_collections" / "motley").mkdir(parents=True)
    (root / ".build" / "collections" / "ansible_collections" / "motley" / "inference").symlink_to(root)
    return root


def run_tests(root: Path, tests: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:randomly", *tests], cwd=root, capture_output=True, text=True,
                          timeout=300, check=False, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})


def caught(root: Path, fault: dict[str, Any]) -> tuple[bool, str]:
    """Whether the tests of the fault's area fail with it; and the first failure."""
    path = root / fault["file"]
    text = path.read_text()
    if text.count(fault["old"]) != 1:
        return False, f"the text of the fault occurs {text.count(fault['old'])} times in {fault['file']}: mend faults.yml"
    path.write_text(text.replace(fault["old"], fault["new"]))
    try:
        done = run_tests(root, fault["tests"])
    finally:
        path.write_text(text)
    first = next((line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))), done.stdout.strip().splitlines()[-1:])
    return done.returncode == 1, str(first)


def main() -> int:
    faults = yaml.safe_load((Path(__file__).parent / "faults.yml").read_text())
    asked = [f for f in faults if not sys.argv[1:] or f["id"] in sys.argv[1:]]
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        halves = [asked[0::2], asked[1::2]]

        # Tests that fail without any fault would catch everything.
        sound = run_tests(copy(Path(directory) / "sound"), sorted({test for fault in asked for test in fault["tests"]}))
        if sound.returncode:
            print(f"the tests fail without a fault:\n{sound.stdout[-2000:]}")
            return 2

        def work(number: int) -> list[tuple[dict[str, Any], bool, str]]:
            root = copy(Path(directory) / str(number))
            return [(fault, *caught(root, fault)) for fault in halves[number]]

        with ThreadPoolExecutor(2) as pool:
            results = [row for rows in pool.map(work, range(2)) for row in rows]
    for fault, hit, first in sorted(results, key=lambda r: r[0]["id"]):
        print(f"{'caught' if hit else 'MISSED':7} {fault['id']:28} {first[:110]}")
    hits = sum(hit for _, hit, _ in results)
    print(f"{hits} of {len(asked)} caught in {time.monotonic() - started:.0f} s")
    return 0 if hits * 10 >= len(asked) * 9 else 1


if __name__ == "__main__":
    sys.exit(main())
