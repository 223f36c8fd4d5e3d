# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node has at this moment, seen from a container on its network: devices, memory, interface, a taken port.

Arguments: interface, port. Answer: one JSON object. The interface is asked for by system calls: /sys may show another namespace.
"""

from __future__ import annotations

import fcntl
import json
import socket
import struct
import subprocess
import sys

if __name__ == "__main__":
    interface, port = sys.argv[1], int(sys.argv[2])
    query = "--query-gpu=index,name,memory.total,memory.free,utilization.gpu"
    try:
        done = subprocess.run(["nvidia-smi", query, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=30, check=False)
        smi, smi_error = done.stdout, "" if done.returncode == 0 else (done.stderr or done.stdout).strip()[-300:]
    except (OSError, subprocess.SubprocessError) as error:
        smi, smi_error = "", str(error)
    with open("/proc/meminfo") as file:
        memory = file.read(2000)
    flags, address = None, None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        name = struct.pack("256s", interface.encode()[:15])
        try:
            flags = struct.unpack("16xH", fcntl.ioctl(probe, 0x8913, name)[:18])[0]
            address = socket.inet_ntoa(fcntl.ioctl(probe, 0x8915, name)[20:24])
        except OSError:
            pass
    with socket.socket() as probe:
        probe.settimeout(2)
        taken = probe.connect_ex(("127.0.0.1", port)) == 0
    names = [pair[1] for pair in socket.if_nameindex()]
    result = {"smi": smi, "smi_error": smi_error, "meminfo": memory, "flags": flags, "address": address, "interfaces": names, "port_taken": taken}
    sys.stdout.write(json.dumps(result))
