# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A lab comes up, is repaired and goes away. Needs root for namespaces; the machines are replaced by a small listener."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from motley_lab import cli, lab, net
from motley_lab.lab import GIB, HARDWARE, Lab, LabError, Process, read_hardware


def _may_make_namespaces() -> bool:
    if os.geteuid() != 0:
        return False
    made = subprocess.run(["ip", "netns", "add", "motley-probe"], capture_output=True, check=False).returncode == 0
    subprocess.run(["ip", "netns", "del", "motley-probe"], capture_output=True, check=False)
    return made


needs_root = pytest.mark.skipif(not _may_make_namespaces(), reason="needs root and the right to make network namespaces")

# Stands for a machine process: answers on the machine's port, writes a file when it is asked to end.
MACHINE = """
import pathlib, signal, socket, sys
def end(*_): pathlib.Path(sys.argv[1], "asked-to-end").touch(); sys.exit()
signal.signal(signal.SIGTERM, end)
listener = socket.create_server((sys.argv[2], int(sys.argv[3])))
while True: listener.accept()[0].close()
"""
# Stands for a container that ignores SIGTERM.
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"

# Stands for the engine: answers every request with the name of its node.
ENDPOINT = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.send_response(200); self.end_headers(); self.wfile.write(sys.argv[1].encode())
server = http.server.HTTPServer((sys.argv[2], 8000), Handler)
print("ready", flush=True)
server.serve_forever()
"""
# Runs `motley-lab` with another build folder.
PROGRAM = """
import pathlib, sys
from motley_lab import cli, lab
cli.Lab = lambda name: lab.Lab(name, base=pathlib.Path(sys.argv[1]))
sys.exit(cli.main(sys.argv[2:]))
"""


class SmallLab(Lab):
    def processes(self, facts: Any) -> list[Process]:
        processes = [process for process in super().processes(facts) if not process.name.endswith("-machine")]
        for node, entry in facts["nodes"].items():
            command = (sys.executable, "-c", MACHINE, str(self.dir), entry["address"], str(lab.MACHINE_PORT))
            processes.append(Process(f"{node}-machine", entry["netns"], command, self.dir / f"{node}.log"))
        return processes


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _lab(base: Path, suffix: str) -> Iterator[SmallLab]:
    (base / "lab-model").mkdir()
    (base / "lab-model" / "config.json").write_text("{}")
    found = SmallLab(f"t{os.getpid() % 1000000}{suffix}", base=base)
    yield found
    found.down()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallLab]:
    with _lab(tmp_path, "a") as found:
        yield found


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallLab]:
    """One lab for all tests that leave it whole."""
    with _lab(tmp_path_factory.mktemp("lab"), "r") as found:
        _up(found)
        yield found


def _again(running: SmallLab, **options: Any) -> bool:
    return _up(running, port=running.require()["forward"]["port"], **options)


def _up(small: SmallLab, **options: Any) -> bool:
    options.setdefault("port", _free_port())
    return small.up({"engine": "stub", **options}, say=lambda text: None)


def _left(small: SmallLab) -> list[str]:
    processes = [entry for entry in Path("/proc").glob("[0-9]*/cmdline") if os.fsencode(small.dir) in _bytes(entry)]
    return [*map(str, processes), *net.namespaces(small.name), *([str(small.dir)] if small.dir.exists() else [])]


def _bytes(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""


@needs_root
def test_up_twice_then_down_without_a_trace(small: SmallLab) -> None:
    outside = subprocess.run(["ip", "-json", "link"], capture_output=True, check=True).stdout
    assert _up(small, port=(port := _free_port())) is True
    pids = {process.name: small.pid(process.name) for process in small.processes(small.require())}
    assert all(pids.values())
    assert _up(small, port=port) is False
    assert {name: small.pid(name) for name in pids} == pids
    assert subprocess.run(["ip", "-json", "link"], capture_output=True, check=True).stdout == outside
    assert small.down() is True
    assert _left(small) == []
    assert small.down() is False


@needs_root
def test_addresses_names_and_ports_of_the_machines(running: SmallLab) -> None:
    for node, address, name, others in [
        ("x86-01", "10.0.0.20", "enp3s0", ["enp5s0"]),
        ("spark-01", "10.0.0.10", "enP7s7", ["enP2p1s0f0np0", "enP2p1s0f1np1", "enp1s0f0np0", "enp1s0f1np1"]),
    ]:
        shown = subprocess.run(["ip", "-n", running.netns(node), "-json", "address"], capture_output=True, check=True).stdout
        links = {link["ifname"]: link for link in json.loads(shown)}
        assert sorted(links) == sorted(["lo", name, *others])
        assert [entry["local"] for entry in links[name]["addr_info"] if entry["family"] == "inet"] == [address]
        assert links["lo"]["operstate"] == "UNKNOWN"  # up
        assert all(links[other]["operstate"] == "DOWN" for other in others)
    routes = subprocess.run(["ip", "-n", running.netns("controller"), "-json", "route"], capture_output=True, check=True).stdout
    assert [route["dst"] for route in json.loads(routes)] == ["10.0.0.0/24"]  # no way out


@needs_root
def test_down_ends_what_ignores_it_and_asks_first(small: SmallLab) -> None:
    _up(small)
    inside = ["ip", "netns", "exec", small.netns("spark-01"), sys.executable, "-c", STUBBORN]
    with subprocess.Popen(inside, stdout=subprocess.PIPE, start_new_session=True) as stubborn:
        assert stubborn.stdout is not None and stubborn.stdout.readline() == b"ready\n"
        asked = small.dir / "asked-to-end"
        small._end_processes()
        assert asked.exists()
        assert stubborn.wait(timeout=5) == -signal.SIGKILL
    assert small.down()
    assert _left(small) == []


@needs_root
@pytest.mark.parametrize("broken", ["process", "namespace", "link"])
def test_a_lab_in_pieces_is_repaired(running: SmallLab, broken: str) -> None:
    kept = running.dir / "nodes" / "x86-01" / "var" / "kept"
    kept.touch()
    if broken == "process":
        pid = running.pid("services")
        assert pid
        os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    elif broken == "namespace":
        net.delete(running.netns("spark-01"))
    else:
        subprocess.run(["ip", "-n", running.netns("x86-01"), "link", "del", "enp3s0"], check=True)
    assert _again(running) is True
    assert net.complete(running.name, running.require()["nodes"], lab.ADDRESS)
    assert all(running.pid(process.name) for process in running.processes(running.require()))
    assert kept.exists()


@needs_root
def test_a_machine_that_lost_its_process_starts_with_nothing_running(running: SmallLab) -> None:
    inside = ["ip", "netns", "exec", running.netns("x86-01"), "sleep", "60"]
    with subprocess.Popen(inside, start_new_session=True) as orphan:
        pid = running.pid("x86-01-machine")
        assert pid
        os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
        assert _again(running) is True
        assert orphan.wait(timeout=5) == -signal.SIGTERM
    assert running.pid("x86-01-machine") not in (None, pid)


@needs_root
def test_a_process_that_ends_is_shown_with_its_last_words(small: SmallLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "MACHINE", "raise SystemExit('no disk')")
    with pytest.raises(LabError, match="(?s)-machine has ended:.*no disk"):
        _up(small)


@needs_root
def test_two_labs_do_not_disturb_each_other(small: SmallLab) -> None:
    other = SmallLab(f"{small.name}b", base=small.base)
    try:
        _up(small, port=(port := _free_port()))
        with pytest.raises(LabError, match=f"127.0.0.1:{port}.* in use") as refused:
            _up(other, port=port)
        assert refused.value.hint == f"motley-lab up --port {port + 1}"
        assert _left(other) == []
        _up(other)
        assert other.down()
        assert net.complete(small.name, small.require()["nodes"], lab.ADDRESS)
        assert all(small.pid(process.name) for process in small.processes(small.require()))
    finally:
        other.down()


@needs_root
def test_the_endpoint_is_forwarded_to_where_it_answers(running: SmallLab) -> None:

    port = running.require()["forward"]["port"]

    def get() -> tuple[int, str]:
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        with contextlib.closing(link):
            link.request("GET", "/")
            answer = link.getresponse()
            return answer.status, answer.read().decode()

    assert get() == (502, "motley-lab: no node answers on port 8000\n")
    for node, address in [("spark-01", "10.0.0.10"), ("x86-01", "10.0.0.20"), ("spark-01", "10.0.0.10")]:
        inside = ["ip", "netns", "exec", running.netns(node), sys.executable, "-c", ENDPOINT, node, address]
        with subprocess.Popen(inside, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
            assert server.stdout is not None and server.stdout.readline() == b"ready\n"
            assert get() == (200, node)
            server.kill()


@needs_root
def test_exec_is_the_command_itself(running: SmallLab) -> None:
    start = [sys.executable, "-c", PROGRAM, str(running.base), "exec", "--name", running.name]
    environment = {**os.environ, "PYTHONPATH": str(lab.REPOSITORY / "lab"), "HOME": "/somewhere"}
    code = "import os, socket, sys; print(os.getcwd(), os.environ['HOME'], os.environ['PATH'].split(':')[0]); sys.exit(7)"
    command = [*start, "x86-01", "--", sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, cwd="/usr", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (7, ["/usr", "/somewhere", str(lab.BIN)])
    wait = "import time; print('ready', flush=True); time.sleep(60)"
    with subprocess.Popen([*start, "controller", "--", sys.executable, "-c", wait], env=environment, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGTERM)
        assert child.wait(timeout=5) == -signal.SIGTERM


@needs_root
def test_another_form_of_the_same_lab_is_refused(running: SmallLab) -> None:
    with pytest.raises(LabError, match="with cards small, not large"):
        _again(running, cards="large")
    port = running.require()["forward"]["port"]
    with pytest.raises(LabError, match=f"with port {port}, not"):
        _up(running, port=port + 1)


# -- without root


@pytest.mark.parametrize("name", ["", "Lab", "a-b", "../x", "elevenchars", "1st"])
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(LabError, match="no name for a lab"):
        Lab(name)


@pytest.mark.parametrize(("size", "x86", "spark"), [("small", 0.054, 0.067), ("large", 0.5, 0.5)])
def test_the_hardware_of_the_lab(size: str, x86: float, spark: float) -> None:
    nodes = read_hardware(HARDWARE, size)
    devices = {name: [device["memory_bytes"] for device in node["hardware"]["devices"]] for name, node in nodes.items()}
    assert devices == {"x86-01": [int(x86 * GIB)] * 2, "spark-01": [int(spark * GIB)]}
    assert [(node["address"], node["interface"], node["arch"]) for node in nodes.values()] == [
        ("10.0.0.20", "enp3s0", "amd64"), ("10.0.0.10", "enP7s7", "arm64")]  # fmt: skip
    macs = [link["mac"] for node in nodes.values() for link in node["hardware"]["links"]]
    assert len(set(macs)) == len(macs)
    assert nodes["spark-01"]["hardware"]["disks"][0]["partitions"]


def test_an_unknown_size_names_those_there_are() -> None:
    with pytest.raises(LabError) as caught:
        read_hardware(HARDWARE, "huge")
    assert "sizes there: small, large" in caught.value.hint


def test_a_missing_hardware_file(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="no hardware file"):
        read_hardware(tmp_path / "none.yml", "small")


def test_no_root_is_said_before_anything_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = Lab("noroot", base=tmp_path)
    with pytest.raises(LabError, match="this user may not"):
        found.up({}, say=lambda text: None)
    assert not found.dir.exists()


def test_a_missing_tool_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(lab.shutil, "which", lambda tool: None if tool == "bwrap" else f"/bin/{tool}")
    with pytest.raises(LabError, match="`bwrap`") as caught:
        Lab("nobwrap", base=tmp_path).up({}, say=lambda text: None)
    assert "bubblewrap" in caught.value.hint


def test_a_missing_engine_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(lab.shutil, "which", lambda tool: f"/bin/{tool}")
    monkeypatch.setenv("MOTLEY_LAB_ENGINE_VENV", str(tmp_path / "none"))
    with pytest.raises(LabError, match="engine") as caught:
        lab.check_tools("real")
    assert "--engine stub" in caught.value.hint
    lab.check_tools("stub")


def test_a_pid_of_somebody_else_does_not_count(tmp_path: Path) -> None:
    found = Lab("pids", base=tmp_path)
    (found.dir / "pids").mkdir(parents=True)
    for name, text in [("mine", str(os.getpid())), ("garbage", "x"), ("gone", "999999999")]:
        (found.dir / "pids" / name).write_text(text)
        assert found.pid(name) is None


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["status"], 3, "There is no lab 'absent'"),
        (["down"], 0, "not there: nothing to do"),
        (["exec", "controller", "--", "true"], 1, "motley-lab up --name absent"),
        (["exec", "controller"], 1, "no command"),
        (["logs"], 1, "there is no lab 'absent'"),
        (["fault", "add", "hub-down"], 1, "there is no lab 'absent'"),
        (["fault", "list"], 0, "registry: "),
        (["talosctl"], 0, "lab/bin/talosctl"),
    ],
)
def test_commands_without_a_lab(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, text: str) -> None:
    verb, *rest = arguments
    place = [verb] if verb != "fault" else [verb, rest.pop(0)]
    assert cli.main([*place, "--name", "absent", *rest]) == code
    said = capsys.readouterr()
    assert text in said.out + said.err


def test_fault_and_logs_of_a_lab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = Lab("quiet", base=tmp_path)
    found._write(found._describe({"engine": "stub"}))
    monkeypatch.setattr(cli, "Lab", lambda name: Lab(name, base=tmp_path))
    (found.dir / "services.log").write_text("one\n")
    (found.dir / "nodes" / "x86-01" / "machine.log").write_text("two\n")

    def said(*arguments: str) -> tuple[int, str]:
        code = cli.main([*arguments, "--name", "quiet"])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    assert said("logs") == (0, "services | one\nx86-01-machine | two\n")
    assert said("logs", "x86-01") == (0, "two\n")
    assert said("logs", "nothing")[0] == 1
    assert said("fault", "add", "factory-slow", "--set", "seconds=1") == (0, "factory-slow seconds=1 is on\n")
    assert said("fault", "add", "hub-down", "--node", "x86-01") == (0, "hub-down on x86-01 is on\n")
    assert said("fault", "add", "hub-down", "--node", "y") == (
        1, "motley-lab: no machine 'y' in the lab 'quiet'\n  try: there are controller, x86-01, spark-01\n")  # fmt: skip
    assert said("fault", "add", "hub-dwon") == (1, "motley-lab: no fault named 'hub-dwon': did you mean hub-down?\n")
    assert said("fault", "add", "hub-down", "--set", "x")[0] == 1
    code, text = said("status", "--json")
    state = json.loads(text)
    assert (code, state["up"], state["nodes"]["x86-01"]["stage"]) == (3, False, "off")
    assert [fault["name"] for fault in state["faults"]] == ["factory-slow", "hub-down"]
    assert said("fault", "remove", "factory-slow") == (0, "factory-slow is off\n")
