"""What users install: the built tarball holds what is named and no more, and its playbooks run without the clone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
# Every file of the collection matches one of these.
ALLOWED = re.compile(r"""
    MANIFEST\.json | FILES\.json | LICENSE | README\.md | CHANGELOG\.md | requirements/product\.txt | meta/[\w.-]+\.yml
    | playbooks/\w+\.yml | plugins/[\w/.-]+\.py | changelogs/[\w/.-]+\.ya?ml | docs/[\w/.-]+\.(md|rst|yml|svg)
    | roles/\w+/(README\.md | (defaults|meta|tasks|handlers|vars)/[\w.-]+\.yml | (files|templates)/[\w/.-]+(\.(py|pth|j2|txt|yml|json)|\.dist-info/\w+))
    | inventories/(?!lab/)\w+/((group|host)_vars/)?\w+\.yml | tests/config\.yml | tests/sanity/ignore-[\d.]+\.txt
""", re.VERBOSE)
PLANTED = (
    ".motley/home/secrets.yaml", ".motley/home/api_key", "inventories/talos_spark_x86/.motley/home/secrets.yaml", "inventories/talos_spark_x86/.motley/home/plan.yml",
    "inventories/talos_spark_x86/secrets.yaml", "inventories/lab/group_vars/all.yml", "playbooks/.motley/home/lock.yml", "roles/plan/files/kubeconfig", "roles/plan/files/talosconfig", "docs/secrets.yaml",
    "docs/api_key", "playbooks/secrets.yaml", "id_ed25519", "notes.txt", ".env",
)  # fmt: skip



def run(*command: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "MOTLEY_", "PYTHON"))}
    return subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=240, check=False,
                          env={**clean, "ANSIBLE_NOCOLOR": "1", "PATH": f"{BIN}:{ROOT}/lab/bin:{os.environ['PATH']}", **env})


@pytest.fixture(scope="module")
def tarball(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Built from a copy of the tracked and new files, with state and secrets planted where people leave them."""
    source = tmp_path_factory.mktemp("source")
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    for name in PLANTED:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("planted-secret-0123456789\n")
    done = run("ansible-galaxy", "collection", "build", "--output-path", source / "out", ".", cwd=source)
    assert done.returncode == 0, done.stderr
    (path,) = (source / "out").glob("motley-inference-*.tar.gz")
    yield path


@pytest.fixture(scope="module")
def installed(tarball: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of its own, as a user has it: collections below it and a copied inventory."""
    home = tmp_path_factory.mktemp("user")
    done = run("ansible-galaxy", "collection", "install", "--offline", "-p", home / "collections", tarball, cwd=home)
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.copytree(home / "collections/ansible_collections/motley/inference/inventories/talos_spark_x86", home / "inventory")
    return home


def test_only_what_is_allowed_is_inside(tarball: Path) -> None:
    with tarfile.open(tarball) as archive:
        files = [m for m in archive.getmembers() if m.isfile()]
        names = [m.name.removeprefix("./") for m in files]
        assert [n for n in names if not ALLOWED.fullmatch(n)] == []
        assert {n for n in names if n in PLANTED or ".motley" in n} == set()
        assert not [m.name for m in files if b"planted-secret" in archive.extractfile(m).read()]
    assert {"playbooks/site.yml", "plugins/action/plan.py", "meta/runtime.yml", "inventories/talos_spark_x86/hosts.yml"} <= set(names)


@pytest.mark.parametrize(("playbook", "args"), [("site", ["--check"]), ("plan", [])])
def test_playbooks_of_the_installed_collection_run_where_no_machine_answers(installed: Path, playbook: str, args: list[str]) -> None:
    state = installed / f"state-{playbook}"
    done = run("ansible-playbook", f"motley.inference.{playbook}", "-i", installed / "inventory", "-e", f"motley_state_dir={state}", *args, cwd=installed,
               ANSIBLE_COLLECTIONS_PATH=str(installed / "collections"))
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert re.findall(r"failed=([1-9])", done.stdout) == []
    plan = json.loads((state / ("check/plan.json" if args else "plan.json")).read_text())
    assert sum(stage["layers"] for stage in plan["stages"]) == 80
    if args:
        rendered = {p.name for p in (state / "check/rendered").rglob("*") if p.is_file()}
        assert {"machineconfig.yaml", "schematic.yaml", "gpu_device_plugin.yml", "ray_cluster.yml", "vllm_serve.yml"} <= rendered
        assert [p for p in state.iterdir() if p.name not in ("check", ".lock")] == []
