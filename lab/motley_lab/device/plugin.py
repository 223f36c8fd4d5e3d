# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The NVIDIA device plugin of the lab: offers the node's devices to the kubelet by a file that it renews, or fails as the real one does."""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import re
import signal
import sys
import time
import typing

JSON = dict[str, typing.Any]
FACTS = "/run/motley-lab/gpu.json"
FOLDER = pathlib.Path("/var/lib/kubelet/device-plugins")
_MEMORY = (
    "error starting plugins: error getting plugins: unable to create plugins: failed to construct resource managers: error building device map: "
    "error building device map from config.resources: error building GPU device map: "
    "error building Device: error getting device memory: Not Supported"
)
_NO_DRIVER = [
    "Incompatible platform detected", "If this is a GPU node, did you configure the NVIDIA Container Toolkit?",
    "You can check the prerequisites at: https://github.com/NVIDIA/k8s-device-plugin#prerequisites",
    "You can learn how to set the runtime at: https://github.com/NVIDIA/k8s-device-plugin#quick-start",
    "If this is not a GPU node, you should set up a toleration or nodeSelector to only deploy this plugin on GPU nodes",
    "error starting plugins: error getting plugins: unable to create plugins: failed to construct resource managers: invalid device discovery "
    "strategy",
]  # fmt: skip


def failure(facts: JSON | None, version: str) -> list[str]:
    """Why this release cannot start on these devices; empty if it can. Unified memory is understood from v0.17.4 on."""
    if not facts or not facts["devices"] or not facts["gpu"].get("modules"):
        return _NO_DRIVER
    number = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    if number < (0, 17, 4) and any(device.get("unified") for device in facts["devices"]):
        return [_MEMORY]
    return []


def say(level: str, line: int, text: str) -> None:
    sys.stderr.write(f"{level}{datetime.datetime.now():%m%d %H:%M:%S.%f}       1 main.go:{line}] {text}\n")
    sys.stderr.flush()


def main() -> int:
    facts = json.loads(pathlib.Path(FACTS).read_text()) if pathlib.Path(FACTS).exists() else None
    for line, text in ((238, f"Starting FS watcher for {FOLDER}"), (245, "Starting OS watcher."), (260, "Starting Plugins."),
                       (317, "Loading configuration.")):  # fmt: skip
        say("I", line, text)
    errors = failure(facts, os.environ.get("LAB_IMAGE_TAG", ""))
    for text in errors:
        say("E", 179, text)
    if errors or facts is None:
        return 1
    say("I", 342, "Retrieving plugins.")
    file, stopped = FOLDER / "nvidia-gpu.json", False

    def stop(*_: typing.Any) -> None:
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGTERM, stop)
    FOLDER.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"resource": "nvidia.com/gpu", "devices": [device["uuid"] for device in facts["devices"]]})
    say("I", 195, "Starting GRPC server for 'nvidia.com/gpu'")
    say("I", 139, "Registered device plugin for 'nvidia.com/gpu' with Kubelet")
    while not stopped:
        fresh = file.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(file)
        time.sleep(0.5)
    file.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
