# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a container sees of its devices: nvidia-smi, libcuda, the device plugin, and the meters behind them."""

from __future__ import annotations

import ctypes
import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

import pytest
from motley_lab.device import libcuda, plugin, smi
from motley_lab.device.meter import Meter, processes

GPU = {"driver": "580.178.04", "modules": True, "toolkit": True, "cuda": True}
CARD = {"name": "NVIDIA GeForce RTX 4090", "uuid": "GPU-0000aaaa-1111-2222-3333-444455556666", "memory_bytes": 64 * 2**20, "compute_capability": "8.9"}
GB10 = {"name": "NVIDIA GB10", "uuid": "GPU-9", "memory_bytes": 128 * 2**20, "compute_capability": "12.1", "unified": True}
QUERY = "--query-gpu=index,name,memory.total,memory.free,utilization.gpu,pstate"


def facts(*devices: dict[str, Any], **gpu: Any) -> dict[str, Any]:
    return {"devices": list(devices), "gpu": {**GPU, **gpu}}


def use(folder: pathlib.Path, device: dict[str, Any], *, memory: int, utilisation: int, age: float = 0.0) -> None:
    entry = {"pid": 7, "name": "VLLM::Worker_PP0", "memory": memory, "utilisation": utilisation, "time": time.time() - age}
    (folder / f"{device['uuid']}.{memory}.json").write_text(json.dumps(entry))


def test_idle_and_busy_devices_differ(tmp_path: pathlib.Path) -> None:
    use(tmp_path, CARD, memory=16 * 2**20, utilisation=37)
    use(tmp_path, CARD, memory=8 * 2**20, utilisation=90, age=60)  # of a process that is gone
    code, text = smi.run([QUERY, "--format=csv,noheader,nounits"], facts(CARD, GB10), folder=str(tmp_path))
    assert code == 0
    assert text.splitlines() == ["0, NVIDIA GeForce RTX 4090, 64, 48, 37, P0", "1, NVIDIA GB10, [N/A], [N/A], 0, P8"]


@pytest.mark.parametrize(("arguments", "code", "words"), [
    (["-L"], 0, ["GPU 0: NVIDIA GB10 (UUID: GPU-9)"]), ([], 0, ["NVIDIA-SMI 580.178.04", "Not Supported", "P8", "No running processes found"]),
    (["-q"], 0, ["Addressing Mode                       : ATS", "Total                             : N/A"]),
    (["--query-gpu=nonsense", "--format=csv"], 2, ['Field "nonsense" is not a valid field to query.']),
    (["--query-gpu=memory.total", "--format=csv"], 0, ["memory.total [MiB]", "[N/A]"]), (["-i", "3"], 6, ["No devices were found"]),
])
def test_forms(tmp_path: pathlib.Path, arguments: list[str], code: int, words: list[str]) -> None:
    found, text = smi.run(arguments, facts(GB10), folder=str(tmp_path))
    assert found == code and all(word in text for word in words), text


def test_the_table_keeps_its_width(tmp_path: pathlib.Path) -> None:
    use(tmp_path, CARD, memory=16 * 2**20, utilisation=100)
    _, text = smi.run([], facts(CARD, GB10), folder=str(tmp_path))
    assert {len(line) for line in text.splitlines()[1:] if line} == {91}


def test_without_sva_the_addressing_mode_tells(tmp_path: pathlib.Path) -> None:
    assert "Addressing Mode                       : None" in smi.run(["-q"], facts(GB10, cuda="no SVA"), folder=str(tmp_path))[1]


def test_without_driver(tmp_path: pathlib.Path) -> None:
    assert smi.run([], facts(CARD, modules=False), folder=str(tmp_path)) == (9, smi.NO_DRIVER)


@pytest.mark.parametrize(("given", "code"), [(facts(CARD), 0), (facts(CARD, modules=False), 100), (facts(GB10, cuda="no SVA"), 3), (facts(), 100)])
def test_cu_init(given: dict[str, Any], code: int) -> None:
    assert libcuda.Cuda(given).cuInit(0) == code  # type: ignore[attr-defined]


def test_a_cuda_call_reaches_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    cuda: Any = libcuda.Cuda(facts(GB10, CARD))
    count, device, context, pointer = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    name, uuid, copy = ctypes.create_string_buffer(64), (ctypes.c_ubyte * 16)(), (ctypes.c_ubyte * 4)()
    assert cuda.cuDeviceGetCount(ctypes.byref(count)) == 3  # before cuInit
    assert [cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count)), cuda.cuDeviceGet(ctypes.byref(device), 0),
            cuda.cuDeviceGetName(name, 64, device), cuda.cuDeviceGetUuid(ctypes.byref(uuid), device), cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device),
            cuda.cuMemAlloc_v2(ctypes.byref(pointer), 1024), cuda.cuMemsetD8_v2(pointer, 7, 1024), cuda.cuMemcpyDtoH_v2(copy, pointer, 4)] == [0] * 9
    assert (count.value, name.value, bytes(uuid[:4]).hex(), list(copy)) == (1, b"NVIDIA GeForce RTX 4090", "0000aaaa", [7] * 4)
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), 65 * 2**20) == 2 and cuda.cuDeviceGet(ctypes.byref(device), 1) == 101


@pytest.mark.parametrize(("given", "version", "words"), [
    (facts(GB10), "v0.17.0", "error getting device memory: Not Supported"), (facts(GB10), "v0.17.3", "Not Supported"), (facts(GB10), "v0.17.4", None),
    (facts(GB10), "v0.20.0", None), (facts(CARD), "v0.17.0", None), (facts(CARD, modules=False), "v0.20.0", "Incompatible platform detected"),
    (None, "v0.20.0", "invalid device discovery strategy"),
])
def test_device_plugin_releases(given: dict[str, Any] | None, version: str, words: str | None) -> None:
    text = "\n".join(plugin.failure(given, version))
    assert (words in text) if words else not text


def burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_meter_counts_busy_time_only(tmp_path: pathlib.Path) -> None:
    meter = Meter("GPU-1", "python", folder=str(tmp_path))
    meter.memory = 5

    def published(test: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.time() + 10
        while time.time() < deadline:
            for entry in processes("GPU-1", folder=str(tmp_path)):
                if test(entry):
                    return entry
            time.sleep(0.05)
        raise AssertionError("not published")

    burn(0.3)  # outside busy(): the process works, its device does not
    assert published(lambda entry: entry["memory"] == 5)["utilisation"] == 0
    with meter.busy():
        burn(0.3)
        assert published(lambda entry: entry["utilisation"] > 0)["utilisation"] <= 100  # a step that still runs counts too
    published(lambda entry: entry["utilisation"] == 0)  # and is forgotten a second later
    assert processes("GPU-2", folder=str(tmp_path)) == []
