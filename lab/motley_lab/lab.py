# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One lab: its description, its namespaces, its processes. Brings them up, repairs them, takes them down."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from motley_lab import net

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = REPOSITORY / ".build"
HARDWARE = REPOSITORY / "lab" / "hardware.yml"
MODEL_MAKER = REPOSITORY / "lab" / "motley_lab" / "engine" / "make_model.py"
BIN = REPOSITORY / "lab" / "bin"
ADDRESS = "10.0.0.1"
SERVICES_PORT = 8080
MACHINE_PORT = 50000
GIB = 2**30
START_SECONDS = 30.0

Say = Callable[[str], None]


class LabError(RuntimeError):
    """Something the person at the keyboard can put right: what failed, and what to do."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True)
class Process:
    """A long process of the lab."""

    name: str
    netns: str | None
    command: tuple[str, ...]
    log: Path


def read_hardware(path: Path, size: str) -> dict[str, dict[str, Any]]:
    """The nodes as `lab.json` holds them, without their namespaces."""
    try:
        table = yaml.safe_load(path.read_text(encoding="utf-8"))
        cards = table["sizes"][size]
        return {name: _node(entry, cards, table["accelerators"]) for name, entry in table["nodes"].items()}
    except FileNotFoundError:
        raise LabError(f"no hardware file {path}", hint="take lab/hardware.yml as the pattern") from None
    except KeyError as missing:
        sizes = ", ".join(table.get("sizes", {}))
        hint = f"sizes there: {sizes}; lab/hardware.yml is the pattern"
        raise LabError(f"{path} has no entry {missing} (cards {size!r})", hint=hint) from None


def _node(entry: Mapping[str, Any], cards: Mapping[str, Any], accelerators: Mapping[str, Any]) -> dict[str, Any]:
    devices = [
        {
            "accelerator": kind,
            "name": accelerators[kind]["name"],
            "memory_bytes": int(cards[kind]["memory_gib"] * GIB),
            "reserve_bytes": int(cards[kind]["reserve_gib"] * GIB),
            "compute_capability": accelerators[kind]["compute_capability"],
            "unified": accelerators[kind]["unified"],
        }
        for kind in entry["devices"]
    ]
    kept = {key: entry[key] for key in ("arch", "cpus", "disks", "links")}
    hardware = {**kept, "memory_bytes": int(entry["memory_gib"] * GIB), "devices": devices}
    return {"address": entry["address"], "interface": entry["links"][0]["name"], "arch": entry["arch"], "hardware": hardware}


def engine_venv() -> Path:
    """Where the engine's virtual environment is; resolved, because its scripts name the real path."""
    default = Path.home() / ".cache" / "motley" / "engine"
    return Path(os.environ.get("MOTLEY_LAB_ENGINE_VENV") or default).resolve()


def check_tools(engine: str) -> None:
    """Refuse before anything is made, with what to do."""
    if os.geteuid() != 0:
        raise LabError("the lab makes network namespaces, and this user may not", hint="run it as root: `sudo make lab`")
    for tool, package in (("ip", "iproute2"), ("bwrap", "bubblewrap"), ("nsenter", "util-linux")):
        if shutil.which(tool) is None:
            raise LabError(f"the lab needs `{tool}`", hint=f"apt-get install {package}")
    for module in ("aiohttp", "cryptography", "kubernetes"):
        if importlib.util.find_spec(module) is None:
            raise LabError(f"the Python package `{module}` is missing in {sys.executable}", hint="make setup")
    if engine == "real" and not (engine_venv() / "bin" / "python").exists():
        raise LabError(
            f"the lab's engine (vLLM and Ray for CPUs) is not in {engine_venv()}",
            hint="`make lab` installs it; `motley-lab up --engine stub` does without",
        )


class Lab:
    """A lab by its name; it need not exist."""

    def __init__(self, name: str, *, base: Path = BUILD) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9]{0,9}", name):
            raise LabError(f"{name!r} is no name for a lab", hint="one to ten small letters and digits")
        self.name = name
        self.base = base
        self.dir = base / "lab" / name
        self.file = self.dir / "lab.json"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """One `up` or `down` at a time. The lock is on the build folder itself, so that no lock file stays behind."""
        self.base.mkdir(parents=True, exist_ok=True)
        folder = os.open(self.base, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def facts(self) -> dict[str, Any] | None:
        """What `lab.json` says, or None."""
        try:
            return dict(json.loads(self.file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None

    def require(self) -> dict[str, Any]:
        facts = self.facts()
        if facts is None:
            raise LabError(f"there is no lab {self.name!r}", hint=f"motley-lab up --name {self.name}")
        return facts

    def netns(self, machine: str) -> str:
        """The namespace of a node or of the controller."""
        names: dict[str, str] = self.require()["netns"]
        wanted = net.CONTROLLER if machine == "controller" else machine
        if wanted not in names:
            known = ", ".join(["controller", *(name for name in names if name != net.CONTROLLER)])
            raise LabError(f"no machine {machine!r} in the lab {self.name!r}", hint=f"there are {known}")
        return names[wanted]

    # -- coming up ---------------------------------------------------------------------------------------------------

    def up(self, options: Mapping[str, Any], *, say: Say) -> bool:
        """Bring the lab up as far as it is not. True if anything was done; `options` hold only what was asked for."""
        facts = self.facts()
        if facts is None:
            facts = self._describe(options)
        else:
            self._refuse_other(facts, options)
        check_tools(facts["engine"])
        self._refuse_used_port(facts["forward"]["port"])
        if not self.file.exists():
            self._write(facts)
        did = self._make_model(facts, say)
        if not net.complete(self.name, facts["nodes"], ADDRESS):
            self._make_network(facts, say)
            did = True
        started = [process for process in self.processes(facts) if self.pid(process.name) is None]
        for process in started:
            if process.netns not in (None, facts["netns"][net.CONTROLLER]):  # a machine without power runs nothing
                self._end_processes(process.netns)
            self._start(process)
        if started:
            say(f"started {', '.join(process.name for process in started)}")
        self._wait(facts, say=say if started else lambda text: None)
        return did or bool(started)

    def _describe(self, options: Mapping[str, Any]) -> dict[str, Any]:
        size = options.get("cards") or "small"
        nodes = read_hardware(Path(options.get("hardware") or HARDWARE), size)
        for name, node in nodes.items():
            node["netns"] = net.namespace(self.name, name)
        return {
            "name": self.name,
            "root": str(REPOSITORY),
            "dir": str(self.dir),
            "engine": options.get("engine") or "real",
            "cards": size,
            "talos_version": options.get("talos_version") or "v1.14.1",
            "kubernetes_version": "v1.36.1",
            "netns": {name: net.namespace(self.name, name) for name in (net.CONTROLLER, *nodes)},
            "services": {"address": ADDRESS, "port": SERVICES_PORT},
            "forward": {"address": "127.0.0.1", "port": options.get("port") or 8000},
            "nodes": nodes,
            "engine_venv": str(engine_venv()),
            "model_dir": str(self.base / "lab-model"),
            "python": sys.executable,
        }

    def _refuse_other(self, facts: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        there = {**facts, "port": facts["forward"]["port"]}
        for option in ("engine", "cards", "talos_version", "port"):
            if options.get(option) is not None and options[option] != there[option]:
                hint = f"motley-lab down --name {self.name}, or another --name"
                raise LabError(f"the lab {self.name!r} is there with {option} {there[option]}, not {options[option]}", hint=hint)
        if options.get("hardware"):
            nodes = read_hardware(Path(options["hardware"]), facts["cards"])
            if any(facts["nodes"].get(name, {}).get("hardware") != node["hardware"] for name, node in nodes.items()):
                raise LabError(f"the lab {self.name!r} is there with other hardware", hint=f"motley-lab down --name {self.name}")

    def _refuse_used_port(self, port: int) -> None:
        if self.pid("forward") is not None:
            return
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                text = f"127.0.0.1:{port}, to which the lab's endpoint would be forwarded, is in use"
                raise LabError(text, hint=f"motley-lab up --port {port + 1}") from None

    def _write(self, facts: Mapping[str, Any]) -> None:
        folders = [f"nodes/{node}/{part}" for node in facts["nodes"] for part in ("var", "run")]
        for folder in ("pids", "faults", "services", *folders):
            (self.dir / folder).mkdir(parents=True, exist_ok=True)
        self.dir.chmod(0o700)
        fresh = self.file.with_suffix(".new")
        fresh.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        fresh.replace(self.file)

    def _make_model(self, facts: Mapping[str, Any], say: Say) -> bool:
        folder = Path(facts["model_dir"])
        if (folder / "config.json").exists():
            return False
        say("making the lab's model")
        fresh = folder.with_name(f"{folder.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        python = engine_venv() / "bin" / "python"
        command = [str(python), str(MODEL_MAKER), str(fresh)]
        if not python.exists():  # the stub engine reads no weights
            command = [sys.executable, str(MODEL_MAKER), str(fresh), "--config-only"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not (fresh / "config.json").exists():
            tail = (done.stderr.strip().splitlines() or ["it wrote nothing"])[-1]
            raise LabError(f"the lab's model could not be made: {tail}", hint=shlex.join(command))
        fresh.rename(folder)
        return True

    def _make_network(self, facts: Mapping[str, Any], say: Say) -> None:
        """A network that is not whole is made anew; the machines then start again, as after a power cut."""
        self._end_processes()
        try:
            for netns in net.namespaces(self.name):
                net.delete(netns)
            net.create(self.name, facts["nodes"], ADDRESS)
        except net.NetError as error:
            raise LabError(str(error), hint="root in a container needs CAP_SYS_ADMIN and CAP_NET_ADMIN") from None
        say(f"namespaces {', '.join(facts['netns'].values())}")

    def processes(self, facts: Mapping[str, Any]) -> list[Process]:
        """All processes that `up` starts, in order."""
        python, lab = facts["python"], str(self.dir)
        ports = str(facts["forward"]["port"])
        services = (python, "-m", "motley_lab.services", "--lab", lab)
        forward = (python, "-m", "motley_lab.net", "forward", "--lab", lab, "--port", ports)
        found = [
            Process("services", facts["netns"][net.CONTROLLER], services, self.dir / "services.log"),
            Process("forward", None, forward, self.dir / "forward.log"),
        ]
        for node, entry in facts["nodes"].items():
            command = (python, "-m", "motley_lab.talos.machine", "--lab", lab, "--node", node)
            found.append(Process(f"{node}-machine", entry["netns"], command, self.dir / "nodes" / node / "machine.log"))
        return found

    def environment(self) -> dict[str, str]:
        """The environment of a command inside the lab: the caller's, with the lab's programs first."""
        first = [str(BIN), str(Path(sys.executable).parent)]
        rest = [entry for entry in os.environ.get("PATH", os.defpath).split(os.pathsep) if entry not in first]
        return {**os.environ, "PATH": os.pathsep.join([*first, *rest]), "MOTLEY_LAB_NAME": self.name}

    def _start(self, process: Process) -> None:
        inside = ("ip", "netns", "exec", process.netns) if process.netns else ()
        note = self.dir / "pids" / process.name
        environment = {**self.environment(), "PYTHONPATH": str(REPOSITORY / "lab"), "PYTHONUNBUFFERED": "1"}
        with process.log.open("ab") as log:
            child = subprocess.Popen(
                # It notes its own pid, so that it is known even if this program is killed right now.
                ["sh", "-c", 'echo $$ > "$0"; exec "$@"', str(note), *inside, *process.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=REPOSITORY,
                start_new_session=True,
            )
        while self.pid(process.name) != child.pid and child.poll() is None:
            time.sleep(0.002)
        child.returncode = 0  # it outlives this program on purpose: no warning about that

    def _wait(self, facts: Mapping[str, Any], *, say: Say) -> None:
        """Until services and machines answer; a process that has ended is shown with its last lines."""
        doorway = net.Doorway(facts["netns"][net.CONTROLLER])
        waiting = {"services": (ADDRESS, SERVICES_PORT)}
        for node, entry in facts["nodes"].items():
            waiting[f"{node}-machine"] = (entry["address"], MACHINE_PORT)
        deadline = time.monotonic() + START_SECONDS
        try:
            while waiting:
                for name, (address, port) in list(waiting.items()):
                    if doorway.answers(address, port, timeout=0.5):
                        say(f"{name} answers on {address}:{port}")
                        del waiting[name]
                self._refuse_ended(facts)
                if waiting and time.monotonic() > deadline:
                    raise LabError(f"no answer from {', '.join(waiting)} after {START_SECONDS:.0f} s", hint="motley-lab logs")
                time.sleep(0.05 if waiting else 0)
        finally:
            doorway.close()

    def _refuse_ended(self, facts: Mapping[str, Any]) -> None:
        for process in self.processes(facts):
            if self.pid(process.name) is None:
                lines = process.log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:]
                hint = f"motley-lab logs {process.name} --name {self.name}"
                raise LabError("\n  ".join([f"{process.name} has ended:", *lines]), hint=hint)

    # -- processes ---------------------------------------------------------------------------------------------------

    def pid(self, name: str) -> int | None:
        """The pid of a process of this lab if it runs. A pid that now belongs to somebody else does not count."""
        try:
            number = int((self.dir / "pids" / name).read_text(encoding="utf-8").split()[0])
            command = _command_line(number)
        except (OSError, ValueError, IndexError):
            return None
        return number if os.fsencode(self.dir) in command.split(b"\0") else None

    def _members(self, netns: str | None) -> set[int]:
        """Everything that belongs to this lab, or to one namespace of it; this program and its parents excepted."""
        found = {pid for name in ([netns] if netns else net.namespaces(self.name)) for pid in net.pids(name)}
        if netns is None:
            names = (file.name for file in (self.dir / "pids").glob("*"))
            found.update(pid for pid in map(self.pid, names) if pid is not None)
        return found - _ancestry()

    def _end_processes(self, netns: str | None = None) -> None:
        """SIGTERM first, so that a machine can end what it started; after two seconds SIGKILL for what is left."""
        start = time.monotonic()
        asked: set[int] = set()
        while members := self._members(netns):
            elapsed = time.monotonic() - start
            if elapsed > 10:
                raise LabError(f"processes {sorted(members)} of the lab {self.name!r} do not end")
            for pid in members if elapsed > 2 else members - asked:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if elapsed > 2 else signal.SIGTERM)
            asked |= members
            time.sleep(0.05)

    # -- going down --------------------------------------------------------------------------------------------------

    def down(self) -> bool:
        """Take everything away, in whatever state it is. True if there was anything."""
        if not self.dir.exists() and not net.namespaces(self.name):
            return False
        if os.geteuid() != 0:
            raise LabError("only root can take the lab down", hint="sudo make down")
        self._end_processes()
        for netns in net.namespaces(self.name):
            net.delete(netns)
        self._unmount()
        if self.dir.exists():
            shutil.rmtree(self.dir)
        with contextlib.suppress(OSError):
            self.dir.parent.rmdir()  # only if no other lab is there
        return True

    def _unmount(self) -> None:
        """Nothing may stay mounted below the directory: deleting it would delete what is mounted."""
        for where in reversed(_mounts_below(self.dir)):
            subprocess.run(["umount", "--lazy", where], capture_output=True, check=False)
        if left := _mounts_below(self.dir):
            raise LabError(f"{left[0]} cannot be unmounted", hint=f"umount {left[0]}, then motley-lab down")


def _command_line(pid: int) -> bytes:
    """The arguments of a process; empty for one that has ended but was not waited for, as for one amid its `exec`."""
    for _attempt in range(20):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
        if command or state in "ZX":
            return command
        time.sleep(0.005)
    return b""


def _mounts_below(folder: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    points = [line.split()[4].replace("\\040", " ") for line in lines]
    return [point for point in points if Path(point).is_relative_to(folder)]


def _ancestry() -> set[int]:
    """This process and those above it."""
    found, pid = set(), os.getpid()
    while pid > 1:
        found.add(pid)
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        pid = int(status.split("PPid:")[1].split()[0])
    return found
