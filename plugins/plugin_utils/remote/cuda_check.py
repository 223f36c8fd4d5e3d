# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A real CUDA call: initialise the driver, then allocate and write memory on every device that the container sees.

nvidia-smi and an allocatable GPU prove nothing (a GB10 on a kernel without SVA shows both, and cuInit fails). Argument: MiB to
allocate per device, 0 for none. Answer: one JSON line, exit code 1 if a call failed.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time

result: dict[str, object] = {"ok": False, "count": 0, "devices": [], "driver": None, "error": None}


def call(library: ctypes.CDLL, name: str, *arguments: object) -> None:
    code = getattr(library, name)(*arguments)
    if code:
        raise RuntimeError(name + " returned " + str(code))


if __name__ == "__main__":
    size = int(sys.argv[1]) << 20
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        # A fresh node creates its device files with the first call, which may come a moment too early.
        for _attempt in range(5):
            code = cuda.cuInit(0)
            if code in (0, 3):
                break
            time.sleep(1)
        if code:
            raise RuntimeError("cuInit returned " + str(code))
        number = ctypes.c_int()
        call(cuda, "cuDriverGetVersion", ctypes.byref(number))
        result["driver"] = number.value
        call(cuda, "cuDeviceGetCount", ctypes.byref(number))
        result["count"] = number.value
        devices = []
        for index in range(number.value):
            device, name, total = ctypes.c_int(), ctypes.create_string_buffer(100), ctypes.c_size_t()
            major, minor = ctypes.c_int(), ctypes.c_int()
            call(cuda, "cuDeviceGet", ctypes.byref(device), index)
            call(cuda, "cuDeviceGetName", name, 100, device)
            call(cuda, "cuDeviceTotalMem_v2", ctypes.byref(total), device)
            call(cuda, "cuDeviceGetAttribute", ctypes.byref(major), 75, device)
            call(cuda, "cuDeviceGetAttribute", ctypes.byref(minor), 76, device)
            if size:
                context, memory = ctypes.c_void_p(), ctypes.c_uint64()
                call(cuda, "cuCtxCreate_v2", ctypes.byref(context), 0, device)
                call(cuda, "cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(size))
                call(cuda, "cuMemsetD8_v2", memory, ctypes.c_ubyte(1), ctypes.c_size_t(size))
                call(cuda, "cuCtxSynchronize")
                call(cuda, "cuMemFree_v2", memory)
                call(cuda, "cuCtxDestroy_v2", context)
            capability = str(major.value) + "." + str(minor.value)
            devices.append({"name": name.value.decode(), "bytes": total.value, "capability": capability})
        result["devices"] = devices
        result["ok"] = number.value > 0
    except (OSError, RuntimeError, AttributeError) as error:
        result["error"] = str(error)
    sys.stdout.write("MOTLEY_CUDA" + json.dumps(result) + "\n")
    sys.exit(0 if result["ok"] else 1)
