# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node has at this moment, seen from a container on its network: devices, memory, interface, a taken port.

Arguments: interface, port. Answer: one JSON object.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys

interface, port = sys.argv[1], int(sys.argv[2])
query = "--query-gpu=index,name,memory.total,memory.free,utilization.gpu"
try:
    done = subprocess.run(["nvidia-smi", query, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=30)
    smi, smi_error = done.stdout, "" if done.returncode == 0 else (done.stderr or done.stdout).strip()[-300:]
except (OSError, subprocess.SubprocessError) as error:
    smi, smi_error = "", str(error)


def read(name: str) -> str:
    try:
        with open(name) as file:
            return file.read()
    except OSError:
        return ""


with socket.socket() as probe:
    probe.settimeout(2)
    taken = probe.connect_ex(("127.0.0.1", port)) == 0
sys.stdout.write(
    json.dumps(
        {
            "smi": smi,
            "smi_error": smi_error,
            "meminfo": read("/proc/meminfo"),
            "operstate": read("/sys/class/net/" + interface + "/operstate").strip(),
            "port_taken": taken,
        }
    )
)
