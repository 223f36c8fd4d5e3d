# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Installer images: what is pulled from the registry, what is in it, and what a GPU makes of it."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from typing import Any

from motley_lab.talos import goyaml
from motley_lab.talos.generate import VANILLA
from motley_lab.talos.transport import RpcError

BASE_CMDLINE = (
    "talos.platform=metal console=tty0 init_on_alloc=1 slab_nomerge pti=on consoleblank=0 nvme_core.io_timeout=4294967295 "
    "printk.devkmsg=on selinux=1 module.sig_enforce=1"
)
NVIDIA = ("nvidia", "nvidia_uvm", "nvidia_drm", "nvidia_modeset")


def release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def vanilla(version: str) -> dict[str, Any]:
    """What a plain image of a release holds."""
    return {"version": version, "schematic": VANILLA, "schematic_text": "customization: {}\n", "extensions": [], "args": []}


def _get(url: str, accept: str = "*/*") -> bytes:
    request = urllib.request.Request(url, headers={"User-Agent": "talos", "Accept": accept})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bytes(answer.read())


def pull(image: str, mirrors: dict[str, list[str]]) -> dict[str, Any]:
    """Fetch an installer: version, schematic and extensions of the reference; RpcError as the node words it."""
    match = re.fullmatch(r"(?P<host>[^/]+)/(?P<name>[\w/.-]+):(?P<tag>[\w.-]+)(@sha256:[0-9a-f]{64})?", image)
    if not match:
        raise RpcError("InvalidArgument", f'error parsing image reference: invalid reference format: "{image}"')
    host, name, tag = match["host"], match["name"], match["tag"]
    base = (mirrors.get(host) or mirrors.get("*") or [f"http://{host}"])[0].rstrip("/")
    try:
        _get(f"{base}/v2/{name}/manifests/{tag}", "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json")
        identifier = name.split("/")[-1]
        text = _get(f"{base}/schematics/{identifier}").decode()
        official = {item["name"]: item for item in json.loads(_get(f"{base}/version/{tag}/extensions/official"))}
    except urllib.error.HTTPError as error:
        why = "not found" if error.code == 404 else f"unexpected status from HEAD request to {error.url}: {error.code} {error.reason}"
        code = "NotFound" if error.code == 404 else "Unknown"
        raise RpcError(code, f'error pulling image: failed to resolve reference "{image}": {image if error.code == 404 else ""}: {why}') from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise RpcError("Unknown", f'error pulling image: failed to resolve reference "{image}": failed to do request: {reason}') from None
    custom = (goyaml.load(text) or {}).get("customization") or {}
    names = (custom.get("systemExtensions") or {}).get("officialExtensions") or []
    extensions = []
    for entry in (official.get(full) or official.get(f"{full}-lts") for full in names):
        if entry:
            extensions.append({**entry, "tag": entry["ref"].rsplit(":", 1)[1], "name": entry["ref"].rsplit(":", 1)[0].removeprefix("ghcr.io/")})
    return {"version": tag, "schematic": identifier, "schematic_text": text, "extensions": extensions,
            "args": [str(arg) for arg in custom.get("extraKernelArgs") or []]}  # fmt: skip


def gpu(slot: dict[str, Any], requested: list[str], devices: list[dict[str, Any]]) -> dict[str, Any]:
    """What the NVIDIA driver does on these devices: which modules load, whether the toolkit fits, whether CUDA starts."""
    names = {item["name"].split("/")[-1]: item["tag"] for item in slot["extensions"]}
    kmod = next((name for name in names if name.startswith(("nonfree-kmod-nvidia", "nvidia-open-gpu-kernel-modules"))), None)
    toolkit = next((name for name in names if name.startswith("nvidia-container-toolkit")), None)
    found: dict[str, Any] = {"driver": None, "flavour": None, "modules": False, "toolkit": False, "cuda": "no driver", "loaded": [],
                             "problem": ""}  # fmt: skip
    if not devices or kmod is None:
        return found
    branch = kmod.rsplit("-", 1)[1]
    free = not kmod.startswith("nonfree")
    found |= {"driver": names[kmod].split("-")[0], "flavour": f"{'open' if free else 'nonfree'}-{branch}"}
    gb10 = any(device["accelerator"] == "gb10" for device in devices)
    if gb10 and release(slot["version"]) >= (1, 13):
        if "arm64.nobti" not in slot["args"]:
            found["problem"] = "Unexpected kernel BRK exception: BTI trap in module nvidia"
        elif free:
            found["problem"] = "rcu: INFO: rcu_preempt self-detected stall on CPU 0 in nvidia_open"
    loaded = [] if found["problem"] else [name for name in NVIDIA if name in requested]
    found["loaded"] = loaded
    found["modules"] = {"nvidia", "nvidia_uvm"} <= set(loaded)
    found["toolkit"] = toolkit is not None and toolkit.rsplit("-", 1)[1] == branch
    if not found["modules"]:
        found["cuda"] = found["problem"] or "kernel modules not loaded"
    elif not found["toolkit"]:
        found["cuda"] = "driver and toolkit of different branches" if toolkit else "no container toolkit"
    elif gb10 and release(slot["version"]) < (1, 14, 1):
        found["cuda"] = "cuInit returned 3: the kernel has no shared virtual addressing for this device"
    else:
        found["cuda"] = True
    return found
