# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`nvidia-smi` of the lab: table, `-L`, `-q`, `--query-gpu` and `--query-compute-apps`. Load and P-state are what the meters say."""

from __future__ import annotations

import datetime
import json
import pathlib
import sys
import typing

if not __package__:  # run as a script in a container, beside meter.py
    sys.modules["motley_lab.device.meter"] = __import__("meter")
from motley_lab.device.meter import FACTS, FOLDER, processes

JSON = dict[str, typing.Any]
MIB = 2**20
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed "
    "and running.\n"
)
_UNITS = {"utilization.gpu": " %", "utilization.memory": " %", "memory.total": " MiB", "memory.used": " MiB", "memory.free": " MiB",
          "power.draw": " W",
          "power.limit": " W", "clocks.sm": " MHz", "clocks.current.sm": " MHz", "used_memory": " MiB", "used_gpu_memory": " MiB"}  # fmt: skip
_MEMORY = ("memory.total", "memory.used", "memory.free", "used_memory", "used_gpu_memory", "power.limit", "utilization.memory")


def observe(device: JSON, gpu: JSON, *, folder: str = FOLDER) -> JSON:
    """All fields of a device by their query names, without units; None is what the device does not support."""
    apps = processes(device["uuid"], folder=folder)
    load = min(100, sum(int(app["utilisation"]) for app in apps))
    used, total = sum(int(app["memory"]) for app in apps), int(device["memory_bytes"])
    idle, index = load == 0, int(device.get("index", 0))
    seen = {
        "index": index, "count": 1, "name": device["name"], "gpu_name": device["name"], "uuid": device["uuid"], "gpu_uuid": device["uuid"],
        "driver_version": gpu["driver"], "compute_cap": device["compute_capability"], "pstate": "P8" if idle else "P0",
        "utilization.gpu": load, "utilization.memory": load // 2, "memory.total": total // MIB, "memory.used": used // MIB,
        "memory.free": (total - used) // MIB, "temperature.gpu": 32 if idle else 45 + load // 4, "power.draw": f"{4 + load * 0.6:.2f}",
        "power.limit": "450.00", "clocks.sm": 208 if idle else 2405, "clocks.current.sm": 208 if idle else 2405, "compute_mode": "Default",
        "persistence_mode": "Enabled", "mig.mode.current": None, "pci.bus_id": f"0000000{'F' if device.get('unified') else index + 1}:01:00.0",
        "addressing_mode": "ATS" if device.get("unified") and gpu.get("cuda") is True else "None", "apps": apps,
    }  # fmt: skip
    return seen | ({key: None for key in _MEMORY} if device.get("unified") else {})


def query(rows: list[JSON], fields: list[str], form: list[str]) -> str:
    """The csv of `--query-…`; an unknown field is refused as the real one does."""
    units = "nounits" not in form
    lines = []
    if "noheader" not in form:
        lines.append(", ".join(f + (f" [{_UNITS[f].strip()}]" if units and f in _UNITS else "") for f in fields))
    for row in rows:
        cells = ["[N/A]" if row[f] is None else f"{row[f]}{_UNITS.get(f, '') if units else ''}" for f in fields]
        lines.append(", ".join(cells))
    return "".join(line + "\n" for line in lines)


def table(rows: list[JSON], driver: str) -> str:
    wide, three = "+" + "-" * 89 + "+", "+-----------------------------------------+------------------------+----------------------+"
    made = [
        datetime.datetime.now().strftime("%a %b %e %H:%M:%S %Y"), wide,
        f"| NVIDIA-SMI {driver:<23}Driver Version: {driver:<15}CUDA Version: 13.0     |",
        three,
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
        "|                                         |                        |               MIG M. |",
        "|=========================================+========================+======================|",
    ]  # fmt: skip
    for row in rows:
        memory = "Not Supported         " if row["memory.total"] is None else f"{row['memory.used']:>7}MiB /{row['memory.total']:>7}MiB"
        power = f"{float(row['power.draw']):>13.0f}W / {'N/A ' if row['power.limit'] is None else '450W':>5}"
        made += [
            f"| {row['index']:>3}  {row['name']:<31}On  | {row['pci.bus_id']:>18} Off |                  N/A |",
            f"| N/A  {row['temperature.gpu']:>3}C    {row['pstate']:<4}{power} | {memory:<22} | {row['utilization.gpu']:>6}%      Default |",
            "|                                         |                        |                  N/A |", three,
        ]  # fmt: skip
    made += ["", wide, "| Processes:" + " " * 78 + "|", "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |",
             "|        ID   ID                                                               Usage      |", "|" + "=" * 89 + "|"]  # fmt: skip
    apps = [(row, app) for row in rows for app in row["apps"]]
    for row, app in apps:
        memory = "N/A" if row["memory.total"] is None else f"{app['memory'] // MIB}MiB"
        made.append(f"| {row['index']:>4}   N/A  N/A {app['pid']:>16}      C   {app['name']:<33}{memory:>12} |")
    if not apps:
        made.append("|  No running processes found" + " " * 61 + "|")
    return "\n".join([*made, wide]) + "\n"


def details(rows: list[JSON], driver: str) -> str:
    made = ["", "==============NVSMI LOG==============", "", f"{'Timestamp':<42}: {datetime.datetime.now():%a %b %e %H:%M:%S %Y}",
            f"{'Driver Version':<42}: {driver}", f"{'CUDA Version':<42}: 13.0", "", f"{'Attached GPUs':<42}: {len(rows)}"]  # fmt: skip
    for row in rows:
        memory = {key: "N/A" if row[f"memory.{key}"] is None else f"{row[f'memory.{key}']} MiB" for key in ("total", "used", "free")}
        made += [f"GPU {row['pci.bus_id']}"]
        top = {"Product Name": "name", "Addressing Mode": "addressing_mode", "GPU UUID": "uuid", "Performance State": "pstate"}
        made += [f"    {title:<38}: {row[key]}" for title, key in top.items()]
        blocks: dict[str, dict[str, str]] = {"FB Memory Usage": {key.capitalize(): value for key, value in memory.items()}}
        blocks |= {"Utilization": {"GPU": f"{row['utilization.gpu']} %"}, "Temperature": {"GPU Current Temp": f"{row['temperature.gpu']} C"}}
        for title, entries in blocks.items():
            made += [f"    {title}"] + [f"        {key:<34}: {value}" for key, value in entries.items()]
    return "\n".join(made) + "\n"


def run(arguments: list[str], facts: JSON, *, folder: str = FOLDER) -> tuple[int, str]:
    """Exit code and output of a call."""
    gpu = facts["gpu"]
    if not gpu.get("modules"):
        return 9, NO_DRIVER
    options = {word.partition("=")[0]: word.partition("=")[2] for word in arguments}
    rows = [observe({**device, "index": index}, gpu, folder=folder) for index, device in enumerate(facts["devices"])]
    chosen = options.get("-i") or options.get("--id")
    if "-i" in arguments:
        chosen = arguments[arguments.index("-i") + 1]
    if chosen:
        rows = [row for row in rows if chosen in (str(row["index"]), row["uuid"])]
        if not rows:
            return 6, "No devices were found\n"
    if not rows:
        return 6, "No devices were found\n"
    asked = next((key for key in options if key.startswith(("--query-gpu", "--query-compute-apps"))), None)
    if asked:
        form, fields = options.get("--format", "").split(","), [word.strip() for word in options[asked].split(",")]
        if "csv" not in form:
            return 2, '"--format=" argument is required, "csv" is the one form that there is\n'
        if asked == "--query-compute-apps":
            named = {"pid": "pid", "process_name": "name", "name": "name"}
            rows = [
                {**{key: app[value] for key, value in named.items()}, **{key: row[key] for key in ("gpu_uuid", "gpu_name")},
                 **{key: None if row["memory.total"] is None else app["memory"] // MIB for key in ("used_memory", "used_gpu_memory")}}
                for row in rows for app in row["apps"]
            ]  # fmt: skip
        known = set(rows[0]) - {"apps"} if rows else set(fields)
        for name in fields:
            if name not in known:
                return 2, f'Field "{name}" is not a valid field to query.\n'
        return 0, query(rows, fields, form)
    if "-L" in options or "--list-gpus" in options:
        return 0, "".join(f"GPU {row['index']}: {row['name']} (UUID: {row['uuid']})\n" for row in rows)
    if "-q" in options or "--query" in options:
        return 0, details(rows, gpu["driver"])
    return 0, table(rows, gpu["driver"])


if __name__ == "__main__":
    code, text = run(sys.argv[1:], json.loads(pathlib.Path(FACTS).read_text()))
    sys.stdout.write(text)
    sys.exit(code)
