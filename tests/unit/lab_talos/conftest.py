# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures: the command line in this process, and two machines with a small factory on loopback."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest
from motley_lab.talos import client, talosctl
from motley_lab.talos import machine as machines

NVIDIA = "customization:\n    systemExtensions:\n        officialExtensions:\n            - siderolabs/nonfree-kmod-nvidia-lts\n"
SCHEMATICS = {
    "plain": "customization: {}\n",
    "gpu": NVIDIA + "            - siderolabs/nvidia-container-toolkit-lts\n",
    "nobti": "customization:\n    extraKernelArgs:\n        - arm64.nobti\n"
    + NVIDIA.removeprefix("customization:\n")
    + "            - siderolabs/nvidia-container-toolkit-lts\n",
}


class Result(NamedTuple):
    rc: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def ctl(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run the stand-in in this process, in an empty folder, as the release that a test names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TALOSCONFIG", raising=False)

    def run(*argv: str, version: str = "1.14") -> Result:
        monkeypatch.setenv("MOTLEY_LAB_TALOSCTL_VERSION", version)
        capfd.readouterr()
        try:
            code = talosctl.main(list(argv))
        except SystemExit as ended:
            code = int(ended.code or 0)
        seen = capfd.readouterr()
        return Result(code, seen.out, seen.err)

    return run


class _Factory(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        parts = self.path.strip("/").split("/")
        body = None
        if parts[0] == "schematics":
            body = SCHEMATICS.get(parts[1])
        elif parts[0] == "version":
            names = ("nonfree-kmod-nvidia-lts:580.178.04-v1.14.1", "nvidia-container-toolkit-lts:580.178.04-v1.19.1")
            body = json.dumps([{"name": f"siderolabs/{name.split(':')[0]}", "ref": f"ghcr.io/siderolabs/{name}"} for name in names])
        elif parts[0] == "v2" and parts[2] in SCHEMATICS:
            body = "{}"
        self.send_response(200 if body is not None else 404)
        self.end_headers()
        self.wfile.write((body or "").encode())


class Lab(NamedTuple):
    directory: Path
    factory: str
    x86: str
    spark: str


def _links(name: str) -> list[dict[str, object]]:
    return [{"name": name, "mac": "02:00:5e:00:20:01", "up": True, "speed_mbit": 10000, "port": "TwistedPair", "driver": "r8169",
             "bus_path": "0000:03:00.0", "pci_id": "10EC:8127", "vendor": "Realtek", "product": "RTL8127"}]  # fmt: skip


@pytest.fixture
def lab(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """Two machines in maintenance, without Kubernetes, on addresses of their own."""
    for name in ("DOWN_S", "BOOT_S", "INSTALL_S", "GRACE_S"):
        monkeypatch.setattr(machines, name, 0.1)
    monkeypatch.setattr(machines, "TICK_S", 0.02)
    monkeypatch.setattr(client, "POLL_S", 0.05)
    monkeypatch.setattr(machines.Machine, "log", lambda machine, text: machine.kmsg.append((0.0, text)))
    directory = tmp_path_factory.mktemp("lab")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Factory)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    nodes = {}
    for name, address, arch, gpu, parts in (
        ("x86-01", "127.0.77.20", "amd64", "rtx4090", []),
        ("spark-01", "127.0.77.10", "arm64", "gb10", [{"path": "/dev/nvme0n1p1", "size": 9 * 10**9, "filesystem": "ext4", "label": "root"}]),
    ):
        disk = {"path": "/dev/nvme0n1", "size": 10**12, "model": "Lab NVMe", "partitions": parts}
        hardware = {"arch": arch, "cpus": 2, "memory_bytes": 1 << 34, "devices": [{"accelerator": gpu}], "disks": [disk],
                    "links": _links("enp3s0" if arch == "amd64" else "enP7s7")}  # fmt: skip
        nodes[name] = {"address": address, "arch": arch, "hardware": hardware}
    facts = {"talos_version": "v1.14.1", "kubernetes_version": "v1.36.1", "nodes": nodes}
    (directory / "lab.json").write_text(json.dumps(facts))
    running = [machines.Machine(directory, name, kubernetes=False) for name in nodes]
    threads = [threading.Thread(target=machine.run, daemon=True) for machine in running]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 5
    while not all(machine.listeners for machine in running) and time.monotonic() < end:
        time.sleep(0.02)
    yield Lab(directory, f"127.0.0.1:{server.server_port}", "127.0.77.20", "127.0.77.10")
    for machine in running:
        machine.events.put("stop")
    for thread in threads:
        thread.join(timeout=5)
    server.shutdown()
    server.server_close()
