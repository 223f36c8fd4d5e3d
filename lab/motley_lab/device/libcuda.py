# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctypes.CDLL("libcuda.so.1")` for the lab's containers; the images' Python loads this file as its `sitecustomize`.

Without devices in the container the library is not there, as where the NVIDIA runtime did not mount it.
"""

from __future__ import annotations

import ctypes
import json
import os
import typing

_FACTS = "/run/motley-lab/gpu.json"
_NAMES = ("libcuda.so", "libcuda.so.1")
_SUCCESS, _INVALID_VALUE, _OUT_OF_MEMORY, _NOT_INITIALIZED, _NO_DEVICE, _INVALID_DEVICE = 0, 1, 2, 3, 100, 101
_ERRORS = {
    0: ("CUDA_SUCCESS", "no error"), 1: ("CUDA_ERROR_INVALID_VALUE", "invalid argument"), 2: ("CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
    3: ("CUDA_ERROR_NOT_INITIALIZED", "initialization error"), 100: ("CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"),
    101: ("CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"), 999: ("CUDA_ERROR_UNKNOWN", "unknown error"),
}


def _set(target: typing.Any, value: int | bytes) -> None:
    """Store through what a caller passed for a pointer: byref(x), pointer(x) or the array itself."""
    for attribute in ("_obj", "contents"):
        target = getattr(target, attribute, target)  # a C integer that is 0 counts as false: no `or` here
    target.value = value


class _Call:
    """One function: a result code from its Python body; restype and argtypes may be set as on the real one."""

    def __init__(self, body: typing.Callable[..., int]) -> None:
        self._body, self.restype, self.argtypes = body, ctypes.c_int, None

    def __call__(self, *arguments: typing.Any) -> int:
        return self._body(*arguments)


class Cuda:
    """The driver API as far as a check of a device needs it; any other function is absent."""

    def __init__(self, facts: dict[str, typing.Any]) -> None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        indices = range(len(facts["devices"])) if visible is None else [int(v) for v in visible.split(",") if v.strip().isdigit()]
        self._devices = [facts["devices"][index] for index in indices if index < len(facts["devices"])]
        self._facts, self._ready, self._used = facts, False, 0
        self._blocks: dict[int, bytearray] = {}
        for name in ("cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceTotalMem_v2",
                     "cuDeviceGetUuid",
                     "cuDeviceGetAttribute", "cuCtxCreate_v2", "cuCtxDestroy_v2", "cuMemAlloc_v2", "cuMemFree_v2",
                     "cuMemGetInfo_v2",
                     "cuMemsetD8_v2", "cuMemcpyDtoH_v2", "cuDevicePrimaryCtxRetain",
                     "cuDevicePrimaryCtxRelease_v2", "cuCtxSetCurrent", "cuCtxSynchronize",
                      "cuGetErrorName", "cuGetErrorString"):
            setattr(self, name, _Call(getattr(self, "_" + name)))

    def _cuInit(self, _flags: typing.Any) -> int:
        cause = self._facts["gpu"].get("cuda", True)
        if not self._facts["gpu"].get("modules") or not self._devices:
            return _NO_DEVICE
        if cause is not True:
            return _NOT_INITIALIZED  # what the GB10 answers on a kernel without SVA
        self._ready = True
        return _SUCCESS

    def _cuDriverGetVersion(self, version: typing.Any) -> int:
        _set(version, int(self._facts.get("cuda_version", 13000)))
        return _SUCCESS

    def _cuDeviceGetCount(self, count: typing.Any) -> int:
        _set(count, len(self._devices))
        return _SUCCESS if self._ready else _NOT_INITIALIZED

    def _device(self, ordinal: typing.Any) -> dict[str, typing.Any]:
        found: dict[str, typing.Any] = self._devices[int(getattr(ordinal, "value", ordinal))]
        return found

    def _cuDeviceGet(self, device: typing.Any, ordinal: typing.Any) -> int:
        index = int(getattr(ordinal, "value", ordinal))
        if not self._ready:
            return _NOT_INITIALIZED
        if index >= len(self._devices):
            return _INVALID_DEVICE
        _set(device, index)
        return _SUCCESS

    def _cuDeviceGetName(self, buffer: typing.Any, _length: typing.Any, device: typing.Any) -> int:
        _set(buffer, self._device(device)["name"].encode())
        return _SUCCESS

    def _cuDeviceTotalMem_v2(self, size: typing.Any, device: typing.Any) -> int:
        _set(size, int(self._device(device)["memory_bytes"]))
        return _SUCCESS

    def _cuDeviceGetAttribute(self, value: typing.Any, attribute: typing.Any, device: typing.Any) -> int:
        entry, number = self._device(device), int(getattr(attribute, "value", attribute))
        major, minor = (int(part) for part in entry["compute_capability"].split("."))
        known = {75: major, 76: minor, 18: int(bool(entry.get("unified")))}
        _set(value, known.get(number, 0))
        return _SUCCESS if number in known else _INVALID_VALUE

    def _cuCtxCreate_v2(self, context: typing.Any, _flags: typing.Any, device: typing.Any) -> int:
        if not self._ready:
            return _NOT_INITIALIZED
        self._current = self._device(device)
        _set(context, 0x10)
        return _SUCCESS

    def _cuDevicePrimaryCtxRetain(self, context: typing.Any, device: typing.Any) -> int:
        return self._cuCtxCreate_v2(context, 0, device)

    def _cuDevicePrimaryCtxRelease_v2(self, _device: typing.Any) -> int:
        return _SUCCESS

    def _cuCtxSetCurrent(self, _context: typing.Any) -> int:
        return _SUCCESS

    def _cuDeviceGetUuid(self, target: typing.Any, device: typing.Any) -> int:
        data = bytes.fromhex(self._device(device)["uuid"].removeprefix("GPU-").replace("-", ""))
        ctypes.memmove(getattr(target, "_obj", target), data, 16)
        return _SUCCESS

    def _cuMemAlloc_v2(self, pointer: typing.Any, size: typing.Any) -> int:
        wanted = int(getattr(size, "value", size))
        if self._used + wanted > self._current["memory_bytes"]:
            return _OUT_OF_MEMORY
        address = 0x7F0000000000 + self._used
        self._used, self._blocks[address] = self._used + wanted, bytearray(wanted)
        _set(pointer, address)
        return _SUCCESS

    def _cuMemFree_v2(self, pointer: typing.Any) -> int:
        block = self._blocks.pop(int(getattr(pointer, "value", pointer)), None)
        self._used -= len(block or b"")
        return _SUCCESS if block is not None else _INVALID_VALUE

    def _cuMemGetInfo_v2(self, free: typing.Any, total: typing.Any) -> int:
        _set(free, self._current["memory_bytes"] - self._used)
        _set(total, self._current["memory_bytes"])
        return _SUCCESS

    def _cuMemsetD8_v2(self, pointer: typing.Any, value: typing.Any, count: typing.Any) -> int:
        block, size = self._blocks.get(int(getattr(pointer, "value", pointer))), int(getattr(count, "value", count))
        if block is None or size > len(block):
            return _INVALID_VALUE
        block[:size] = bytes([int(getattr(value, "value", value))]) * size
        return _SUCCESS

    def _cuMemcpyDtoH_v2(self, target: typing.Any, pointer: typing.Any, count: typing.Any) -> int:
        block, size = self._blocks.get(int(getattr(pointer, "value", pointer))), int(getattr(count, "value", count))
        if block is None or size > len(block):
            return _INVALID_VALUE
        ctypes.memmove(getattr(target, "_obj", target), bytes(block[:size]), size)
        return _SUCCESS

    def _cuCtxSynchronize(self) -> int:
        return _SUCCESS

    def _cuCtxDestroy_v2(self, _context: typing.Any) -> int:
        return _SUCCESS

    def _text(self, error: typing.Any, target: typing.Any, part: int) -> int:
        _set(target, _ERRORS.get(int(getattr(error, "value", error)), _ERRORS[999])[part].encode())
        return _SUCCESS

    def _cuGetErrorName(self, error: typing.Any, target: typing.Any) -> int:
        return self._text(error, target, 0)

    def _cuGetErrorString(self, error: typing.Any, target: typing.Any) -> int:
        return self._text(error, target, 1)


class _CDLL(ctypes.CDLL):
    def __new__(cls, name: typing.Any = None, *_args: typing.Any, **_options: typing.Any) -> typing.Any:
        if name in _NAMES and os.path.exists(_FACTS):
            with open(_FACTS, encoding="utf-8") as file:
                facts = json.load(file)
            return Cuda(facts)
        return super().__new__(cls)


if os.path.exists(_FACTS):
    ctypes.CDLL = _CDLL  # type: ignore[misc]
