# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`motley-lab`: a two-node cluster on one Linux machine."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from motley_lab import faults, net
from motley_lab.lab import BIN, REPOSITORY, Lab, LabError


def out(text: str = "") -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in [head, *rows])


def up(lab: Lab, chosen: argparse.Namespace) -> int:
    start = time.monotonic()
    names = ("engine", "port", "cards", "hardware", "talos_version")
    options = {name: getattr(chosen, name) for name in names}
    with lab.lock():
        did = lab.up(options, say=lambda text: out(f"{time.monotonic() - start:6.1f} s  {text}"))
    took = f" after {time.monotonic() - start:.1f} s" if did else " already"
    out(f"The lab {lab.name!r} is up{took}.")
    _show(lab)
    return 0


def down(lab: Lab, chosen: argparse.Namespace) -> int:
    with lab.lock():
        there = lab.down()
    out(f"The lab {lab.name!r} is {'gone' if there else 'not there: nothing to do'}.")
    return 0


def _stage(lab: Lab, node: str) -> str:
    """The machine stage as the machine process keeps it; without that process the machine has no power."""
    if lab.pid(f"{node}-machine") is None:
        return "off"
    try:
        state = json.loads((lab.dir / "nodes" / node / "machine.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return "starting"
    return str(state.get("stage", "unknown"))


def _status(lab: Lab) -> dict[str, Any]:
    facts = lab.require()
    nodes = {
        name: {
            "address": node["address"],
            "arch": node["arch"],
            "interface": node["interface"],
            "devices": [device["accelerator"] for device in node["hardware"]["devices"]],
            "stage": _stage(lab, name),
        }
        for name, node in facts["nodes"].items()
    }
    recorded = {file.name for file in (lab.dir / "pids").glob("*") if file.suffix != ".new"}
    names = [process.name for process in lab.processes(facts)]
    return {
        "name": lab.name,
        "engine": facts["engine"],
        "cards": facts["cards"],
        "talos_version": facts["talos_version"],
        "directory": str(lab.dir),
        "network": net.complete(lab.name, facts["nodes"], facts["services"]["address"]),
        "nodes": nodes,
        "processes": {name: lab.pid(name) for name in [*names, *sorted(recorded.difference(names))]},
        "faults": faults.listed(lab.dir),
        "forwards": {f"127.0.0.1:{facts['forward']['port']}": f"port {net.ENGINE_PORT} of the engine node"},
    }


def _show(lab: Lab) -> None:
    state = _status(lab)
    rows = [
        [name, node["address"], node["arch"], node["interface"], " ".join(node["devices"]), node["stage"]]
        for name, node in state["nodes"].items()
    ]
    out(table(["NODE", "ADDRESS", "ARCH", "NIC", "DEVICES", "STAGE"], rows))
    ended = [name for name, pid in state["processes"].items() if pid is None]
    out(f"processes: {len(state['processes']) - len(ended)} run" + (f", ended: {', '.join(ended)}" if ended else ""))
    for fault in state["faults"]:
        out(f"fault: {_describe(fault)}")
    for outside, inside in state["forwards"].items():
        out(f"forward: {outside} -> {inside}")
    out(f"engine: {state['engine']}; directory: {state['directory']}")


def status(lab: Lab, chosen: argparse.Namespace) -> int:
    """Exit code 0 if all is up, 3 if not."""
    if lab.facts() is None:
        out(json.dumps({"name": lab.name, "up": False}) if chosen.json else f"There is no lab {lab.name!r}.")
        return 3
    state = _status(lab)
    whole = state["network"] and all(state["processes"].values())
    if chosen.json:
        out(json.dumps({**state, "up": whole}, indent=1))
    else:
        _show(lab)
        if not whole:
            out(f"The lab is not whole: `motley-lab up --name {lab.name}` repairs it.")
    return 0 if whole else 3


def run(lab: Lab, chosen: argparse.Namespace) -> int:
    """Become the command: its exit code, its signals and its terminal are then its own."""
    command = chosen.command
    if not command:
        raise LabError("no command", hint="motley-lab exec controller -- talosctl version --client")
    netns = lab.netns(chosen.machine)
    if not net.exists(netns):
        raise LabError(f"the namespace {netns} is gone", hint=f"motley-lab up --name {lab.name}")
    os.execvpe("ip", ["ip", "netns", "exec", netns, *command], lab.environment())


def _logs(lab: Lab, name: str | None) -> dict[str, Path]:
    """Logs by name: `services`, `forward`, `x86-01-machine`, and whatever else writes one below a node."""
    lab.require()
    found = {file.stem: file for file in sorted(lab.dir.glob("*.log"))}
    found |= {f"{file.parent.name}-{file.stem}": file for file in sorted(lab.dir.glob("nodes/*/*.log"))}
    if name is None:
        return found
    chosen = {key: file for key, file in found.items() if key == name or key.startswith(f"{name}-")}
    if not chosen:
        raise LabError(f"no log {name!r}", hint=f"there are {', '.join(found)}")
    return chosen


def logs(lab: Lab, chosen: argparse.Namespace) -> int:
    files = _logs(lab, chosen.log)
    read = dict.fromkeys(files, 0)
    while True:
        for name, file in files.items():
            if not file.exists():  # the lab went down
                return 0
            with file.open(encoding="utf-8", errors="replace") as lines:
                lines.seek(read[name])
                for line in lines:
                    out(f"{name} | {line.rstrip()}" if len(files) > 1 else line.rstrip())
                read[name] = lines.tell()
        if not chosen.follow:
            return 0
        time.sleep(0.3)


def _describe(fault: dict[str, Any]) -> str:
    where = f" on {fault['node']}" if fault.get("node") else ""
    settings = " ".join(f"{key}={value}" for key, value in fault.items() if key not in ("name", "node"))
    return f"{fault['name']}{where} {settings}".rstrip()


def fault(lab: Lab, chosen: argparse.Namespace) -> int:
    if chosen.what == "list":
        on = {entry["name"] for entry in faults.listed(lab.dir)}
        rows = [["*" if name in on else "", name, text] for name, text in sorted(faults.FAULTS.items())]
        out(table(["ON", "FAULT", "WHERE AND WHAT"], rows))
        return 0
    if chosen.node is not None:
        lab.netns(chosen.node)
    else:
        lab.require()
    if chosen.what == "remove":
        was_on = faults.remove(lab.dir, chosen.fault, node=chosen.node)
        out(f"{chosen.fault} is off" + ("" if was_on else " already"))
        return 0
    pairs = [setting.partition("=") for setting in chosen.settings]
    if wrong := [key for key, sign, _value in pairs if not sign or not key.isidentifier()]:
        raise LabError(f"{wrong[0]!r} is no setting", hint="KEY=VALUE")
    entry = faults.add(lab.dir, chosen.fault, node=chosen.node, settings={key: value for key, _sign, value in pairs})
    out(f"{_describe(entry)} is on")
    return 0


def talosctl(lab: Lab, chosen: argparse.Namespace) -> int:
    out(str(BIN / "talosctl"))
    return 0


def kube_api(lab: Lab, chosen: argparse.Namespace) -> int:
    """The Kubernetes API alone and empty, on this machine; needs no lab and no root."""
    command = [sys.executable, "-m", "motley_lab.kube.server", "--alone", "--port", str(chosen.port)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "lab"), "MOTLEY_LAB_KUBE_TOKEN": chosen.token}
    os.execve(sys.executable, command, environment)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="motley-lab", description="A two-node cluster simulated on one Linux machine.")
    commands = top.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    named = argparse.ArgumentParser(add_help=False)
    named.add_argument("--name", default=os.environ.get("MOTLEY_LAB_NAME", "lab"), help="which lab (default: lab)")

    def add(verb: str, text: str, function: Any) -> argparse.ArgumentParser:
        command = commands.add_parser(verb, help=text, description=text, parents=[named])
        command.set_defaults(function=function)
        return command

    command = add("up", "create the lab, or repair it; a whole lab is left alone", up)
    command.add_argument("--engine", choices=["real", "stub"], help="vLLM and Ray, or a stand-in (default: real)")
    command.add_argument("--port", type=int, help="forward the endpoint to 127.0.0.1:PORT (default: 8000)")
    command.add_argument("--cards", metavar="SIZE", help="size of the cards, a row of hardware.yml (default: small)")
    command.add_argument("--hardware", metavar="FILE", help="another hardware.yml")
    command.add_argument("--talos-version", metavar="V", help="what the machines are booted from (default: v1.14.1)")
    add("down", "take the lab away without a trace", down)
    add("status", "nodes, processes, faults, forwards", status).add_argument("--json", action="store_true")
    command = add("exec", "run a command on a node or on the controller", run)
    command.add_argument("machine", help="a node, or `controller`")
    command.add_argument("command", nargs="*", metavar="-- COMMAND")
    command = add("logs", "what the lab's processes wrote", logs)
    command.add_argument("log", nargs="?", metavar="LOG", help="a node or one log (default: all)")
    command.add_argument("-f", "--follow", action="store_true")
    switches = add("fault", "switch a fault on or off", fault).add_subparsers(dest="what", required=True)
    for what in ("add", "remove"):
        command = switches.add_parser(what, parents=[named])
        command.add_argument("fault")
        command.add_argument("--node", help="on this node only")
        if what == "add":
            command.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    switches.add_parser("list", parents=[named])
    add("talosctl", "print the path of the talosctl stand-in", talosctl)
    command = add("kube-api", "serve the Kubernetes API alone over HTTPS, without kubelets", kube_api)
    command.add_argument("--port", type=int, required=True)
    command.add_argument("--token", required=True, help="the bearer token of an administrator")
    return top


def _split(arguments: list[str]) -> tuple[list[str], bool, list[str]]:
    """What stands after `--` belongs to the command that `exec` runs."""
    if "--" not in arguments:
        return arguments, False, []
    place = arguments.index("--")
    return arguments[:place], True, arguments[place + 1 :]


def main(arguments: Sequence[str] | None = None) -> int:
    own, found, command = _split(list(sys.argv[1:] if arguments is None else arguments))
    chosen = parser().parse_args(own)
    if found:
        chosen.command = command
    try:
        result: int = chosen.function(Lab(chosen.name), chosen)
    except LabError as error:
        sys.stderr.write(f"motley-lab: {error}\n" + (f"  try: {error.hint}\n" if error.hint else ""))
        return 1
    except faults.UnknownFault as error:
        sys.stderr.write(f"motley-lab: {error}\n")
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    return result
