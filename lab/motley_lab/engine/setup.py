# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the lab's engine: an environment with real vLLM and Ray for CPUs, kept in the cache. `python -m motley_lab.engine.setup`"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import typing

ROOT = pathlib.Path(__file__).resolve().parents[3]
LOCK = ROOT / "requirements" / "engine.txt"
VERSION = (3, 11)
NEEDED_GIB, CUDA_GIB = 5, 9
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# Where they do not match torch exactly they break its import, and no text model needs them.
UNWANTED = ("torchvision", "torchaudio", "torchcodec", "triton")
Say = typing.Callable[[str], None]
Run = typing.Callable[[list[str]], "subprocess.CompletedProcess[str]"]


class SetupError(Exception):
    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclasses.dataclass(frozen=True)
class Source:
    """One way to get torch: what it is called, pip's arguments."""

    name: str
    arguments: list[str]
    large: bool = False


def torch_sources(requirement: str) -> list[Source]:
    """The CPU build from pip's own sources or from PyTorch, else the large one of PyPI, which runs on a CPU as well."""
    return [
        Source("the configured package sources", ["--no-deps", f"{requirement}+cpu"]),
        Source("PyTorch's CPU index", ["--no-deps", "--index-url", CPU_INDEX, f"{requirement}+cpu"]),
        Source("PyPI (CUDA build, 3 GB more)", [requirement], large=True),
    ]


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})


def reason(output: str) -> str:
    """The one line of pip's output that says what went wrong."""
    lines = [line for line in output.splitlines() if line.strip() and "WARNING" not in line]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["pip said nothing"])[-1].removeprefix("ERROR: ").strip()[:300]


def install_torch(pip: list[str], requirement: str, *, run: Run = _run, say: Say, free_gib: float) -> Source:
    tried = []
    for source in torch_sources(requirement):
        if source.large and free_gib < CUDA_GIB:
            tried.append(f"{source.name}: {free_gib:.0f} GiB free, {CUDA_GIB} needed")
            continue
        done = run([*pip, "install", "-q", *source.arguments])
        if done.returncode == 0:
            say(f"torch from {source.name}")
            return source
        tried.append(f"{source.name}: {reason(done.stderr)}")
    raise SetupError(
        "torch for the lab's engine could not be had:\n" + "\n".join(f"  - {line}" for line in tried),
        f"give pip a source that has {requirement}+cpu (PIP_FIND_LINKS, PIP_INDEX_URL), or let this machine reach {CPU_INDEX}; "
        "`motley-lab up --engine stub` runs without the engine",
    )


def find_python() -> str:
    wanted = ".".join(map(str, VERSION))
    found = [shutil.which(f"python{wanted}"), *map(str, sorted(pathlib.Path.home().glob(f".pyenv/versions/{wanted}.*/bin/python")))]
    test = f"import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != {VERSION})"
    for python in (sys.executable, *filter(None, found)):
        if _run([python, "-c", test]).returncode == 0:
            return os.path.realpath(python)
    raise SetupError(f"no Python {wanted} with venv was found, which the lab's engine needs", f"install python{wanted} and python{wanted}-venv")


def requirements(text: str) -> tuple[str, list[str]]:
    """The lock's torch, and all the rest."""
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    torch = [line for line in lines if line.startswith("torch==")]
    return torch[0], [line for line in lines if line and line not in torch]


def make(venv: pathlib.Path, *, say: Say) -> None:
    """Install into a fresh folder; only a complete one gets the mark that the next run looks for."""
    free = shutil.disk_usage(venv.parent).free / 2**30
    if free < NEEDED_GIB:
        hint = "free some, or set MOTLEY_CACHE to a folder on another disk"
        raise SetupError(f"{venv.parent} has {free:.1f} GiB free, the lab's engine needs {NEEDED_GIB}", hint)
    python = find_python()
    say(f"making the lab's engine in {venv} ({_run([python, '-V']).stdout.strip()}); this takes two to five minutes")
    shutil.rmtree(venv, ignore_errors=True)
    done = _run([python, "-m", "venv", str(venv)])
    if done.returncode:
        raise SetupError(f"{python} -m venv failed: {reason(done.stderr + done.stdout)}", "apt-get install python3.11-venv")
    pip, (torch, rest) = [str(venv / "bin" / "python"), "-m", "pip"], requirements(LOCK.read_text())
    install_torch(pip, torch, say=say, free_gib=free)
    listed = venv / "rest.txt"
    listed.write_text("\n".join(rest) + "\n")
    done = _run([*pip, "install", "-q", "--no-deps", "-r", str(listed)])
    if done.returncode:
        hint = "is a package index reachable? `pip config debug` shows which are set"
        raise SetupError(f"the packages of {LOCK} could not be installed: {reason(done.stderr)}", hint)
    _run([*pip, "uninstall", "-q", "-y", *UNWANTED])


def prove(venv: pathlib.Path) -> str:
    """Import what the engine is made of, and find out about the model class now instead of at each first start."""
    script = (
        "import ray, torch, vllm\n"
        "from vllm.platforms import current_platform as p\n"
        "from vllm.model_executor.models import ModelRegistry as r\n"
        "r.models['LlamaForCausalLM'].inspect_model_cls()\n"
        "print('PROOF', vllm.__version__, ray.__version__, torch.__version__, type(p).__name__)"
    )
    share = venv / "share" / "motley-lab"
    share.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "VLLM_CACHE_ROOT": str(share), "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
        environment.pop(name, None)
    done = subprocess.run([str(venv / "bin" / "python"), "-c", script], capture_output=True, text=True, check=False, env=environment)
    match = re.search(r"PROOF (\S+) (\S+) (\S+) (\S+)", done.stdout)
    if not match or match[4] != "LabPlatform":
        tail = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise SetupError(f"the lab's engine was installed, but does not start: {tail[:300]}", f"remove {venv} and run again")
    return f"vLLM {match[1]}, Ray {match[2]}, torch {match[3]}"


def site_packages(venv: pathlib.Path) -> pathlib.Path:
    found = sorted(venv.glob("lib/python3.*/site-packages"))
    if not found:
        raise SetupError(f"no site-packages below {venv}/lib", "that folder is not a virtual environment: remove it and run again")
    return found[0]


def glue(site: pathlib.Path) -> dict[str, str]:
    """The lab's files for an engine's site-packages, so that PYTHONPATH stays free for the product."""
    here = pathlib.Path(__file__).resolve().parent
    made = {f"motley_lab_engine/{source.name}": source.read_text() for source in sorted((here / "glue" / "motley_lab_engine").glob("*.py"))}
    made |= {
        "motley_lab_engine-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: motley-lab-engine\nVersion: 1.0\n",
        "motley_lab_engine-1.0.dist-info/entry_points.txt": "[vllm.platform_plugins]\nmotley_lab = motley_lab_engine:platform\n",
        "motley_lab_engine/meter.py": (here.parent / "device" / "meter.py").read_text(),
        "sitecustomize.py": (here.parent / "device" / "libcuda.py").read_text(),
    }
    for build in site.glob("vllm_cpu-*.dist-info"):  # vLLM asks for the version of "vllm"; the CPU build is called "vllm-cpu"
        version = build.name.removeprefix("vllm_cpu-").removesuffix(".dist-info") + "+cpu"
        made[f"vllm-{version}.dist-info/METADATA"] = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
    return made


def install_glue(venv: pathlib.Path) -> list[pathlib.Path]:
    """Write the glue where it differs; which files were written."""
    site, written = site_packages(venv), []
    for name, text in glue(site).items():
        path = site / name
        if not path.is_file() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            written.append(path)
    return written


def link(path: pathlib.Path, target: pathlib.Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(path)


def setup(*, say: Say) -> pathlib.Path:
    """The engine of this lock file, made if it is not there; `~/.cache/motley/engine` and `.build/engine` point at it."""
    home = pathlib.Path.home() / ".cache" / "motley"
    cache = pathlib.Path(os.environ.get("MOTLEY_CACHE") or home)
    cache.mkdir(parents=True, exist_ok=True)
    venv = cache / f"engine-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]}"
    mark = venv / ".complete"
    with (cache / "engine.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two clones set up side by side: the second waits and finds it done
        if not mark.exists():
            make(venv, say=say)
        if install_glue(venv) or not mark.exists():
            mark.unlink(missing_ok=True)
            proof = prove(venv)
            mark.write_text(proof + "\n")
        link(home / "engine", venv)
        link(ROOT / ".build" / "engine", venv)
    say(f"engine: {mark.read_text().strip()}")
    return venv


def main() -> int:
    parser = argparse.ArgumentParser(prog="motley_lab.engine.setup", description=__doc__)
    parser.add_argument("--glue-only", metavar="VENV", type=pathlib.Path, help="write the lab's files into this environment and end")
    options = parser.parse_args()
    try:
        if options.glue_only:
            install_glue(options.glue_only)
        else:
            setup(say=lambda text: print(f"setup {text}", flush=True))
    except SetupError as error:
        sys.stderr.write(f"setup: {error}\n  what to do: {error.hint}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
