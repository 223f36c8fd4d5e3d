# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node of a kubelet: its facts, its Node object and lease, its devices, and what its containers see of them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import pathlib
import platform
import sys
import time
import typing

import aiohttp

from motley_lab.device.meter import FACTS, FOLDER

from .api import MERGE, STRATEGIC, Api, ApiError, Events, micro_now, now
from .images import Image, Store
from .runtime import root_view
from .volumes import RuntimeRefusal

JSON = dict[str, typing.Any]
GPU, PORT, PLUGIN_FRESH = "nvidia.com/gpu", 10250, 3.0
_DEVICE = pathlib.Path(__file__).parents[1] / "device"
_STUB = pathlib.Path(__file__).parents[1] / "engine" / "stub.py"


def device_uuid(node: str, index: int) -> str:
    text = hashlib.sha256(f"{node}/{index}".encode()).hexdigest()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"


def taints(given: typing.Any) -> list[JSON]:
    """Taints as a list of objects, or in Talos' form `{key: value:effect}`."""
    if isinstance(given, dict):
        split = {key: str(value).rpartition(":") for key, value in given.items()}
        return [{"key": key, "effect": effect, **({"value": value} if value else {})} for key, (value, _, effect) in split.items()]
    return list(given or [])


@dataclasses.dataclass
class Node:
    """Everything that the Pods of this node share."""

    lab: pathlib.Path
    key: str  # the lab's name of the machine; `name` is the hostname, by which Kubernetes knows it
    facts: JSON  # lab.json
    api: Api

    def __post_init__(self) -> None:
        self.home = self.lab / "nodes" / self.key
        self.json: JSON = json.loads((self.home / "node.json").read_text())
        self.name, self.address = self.json["name"], self.json["address"]
        self.hardware: JSON = self.facts["nodes"][self.key]["hardware"]
        self.var, self.run = self.home / "var", self.home / "run"
        self.meters = self.run / "gpu"
        for folder in (self.meters, self.var / "lib/kubelet/device-plugins", self.var / "log/pods"):
            folder.mkdir(parents=True, exist_ok=True)
        self.hosts = self.run / "hosts"
        names = {entry["address"]: key for key, entry in self.facts["nodes"].items()} | {self.address: self.name}
        self.hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for address, name in sorted(names.items())))
        service = self.facts["services"]
        self.service = f"http://{service['address']}:{service['port']}"
        self.images = Store(self.var / "lib/containerd/lab-images.json", architecture=self.json["arch"], service=self.service,
                            mirrors=self.json.get("registry_mirrors") or {})
        self.events = Events(self.api, self.name)
        self.allocated: dict[str, list[int]] = {}
        self.devices: list[JSON] = [
            {**device, "index": index, "uuid": device_uuid(self.name, index)} for index, device in enumerate(self.hardware.get("devices") or [])
        ]

    @property
    def gpu(self) -> JSON:
        return self.json.get("gpu") or {}

    # -- the Node object -------------------------------------------------------------------------------------------

    def plugin_devices(self) -> int:
        """How many devices a living device plugin offers."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            path = self.var / "lib/kubelet/device-plugins/nvidia-gpu.json"
            if time.time() - path.stat().st_mtime <= PLUGIN_FRESH:
                return len(json.loads(path.read_text())["devices"])
        return 0

    def allocatable(self) -> JSON:
        memory = int(self.hardware.get("memory_bytes") or 8 * 2**30)
        made = {"cpu": str(self.hardware.get("cpus", 4)), "memory": f"{memory // 1024}Ki", "pods": "110", "ephemeral-storage": "100Gi"}
        return made | ({GPU: str(self._offered)} if self._registered else {})

    _offered, _registered = 0, False

    def status(self) -> JSON:
        stamp, since = now(), self._since
        conditions = [
            {"type": kind, "status": state, "reason": reason, "message": text, "lastHeartbeatTime": stamp, "lastTransitionTime": since}
            for kind, state, reason, text in (
                ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
                ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
                ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
                ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
            )
        ]  # fmt: skip
        version, talos = self.json["kubernetes_version"], self.json["talos_version"]
        return {
            "addresses": [{"type": "InternalIP", "address": self.address}, {"type": "Hostname", "address": self.name}],
            "capacity": self.allocatable(), "allocatable": self.allocatable(), "conditions": conditions,
            "daemonEndpoints": {"kubeletEndpoint": {"Port": PORT}},
            "nodeInfo": {
                "architecture": self.json["arch"], "operatingSystem": "linux", "osImage": f"Talos ({talos})", "kubeletVersion": version,
                "kernelVersion": self.json.get("kernel_version") or f"{platform.release().split('-')[0]}-talos", "kubeProxyVersion": "",
                "containerRuntimeVersion": "containerd://2.1.4", "bootID": self._boot, "machineID": self.key, "systemUUID": self.key,
            },
        }  # fmt: skip

    async def register(self) -> None:
        self._since, self._boot = now(), hashlib.sha256(f"{self.key}{time.time()}".encode()).hexdigest()[:32]
        labels = {"kubernetes.io/arch": self.json["arch"], "kubernetes.io/os": "linux", "kubernetes.io/hostname": self.name,
                  "beta.kubernetes.io/arch": self.json["arch"], "beta.kubernetes.io/os": "linux", **(self.json.get("labels") or {})}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name, "labels": labels},
                "spec": {"taints": taints(self.json.get("taints"))} if self.json.get("taints") else {}}
        try:
            await self.api.request("POST", "/api/v1/nodes", body=body)
        except ApiError as error:
            if error.status != 409:
                raise
            # Labels and taints of the machine config follow it; what others have set stays.
            there = await self.api.get(f"/api/v1/nodes/{self.name}")
            self._registered = GPU in (there.get("status", {}).get("capacity") or {})  # zero until the plugin comes back
            wanted = taints(self.json.get("taints"))
            kept = [t for t in there["spec"].get("taints") or [] if t["key"].startswith("node.kubernetes.io/")]
            await self.api.request("PATCH", f"/api/v1/nodes/{self.name}", kind=MERGE,
                                   body={"metadata": {"labels": labels}, "spec": {"taints": (kept + wanted) or None}})
        await self.push()

    async def push(self) -> None:
        await self.api.request("PATCH", f"/api/v1/nodes/{self.name}/status", body={"status": self.status()}, kind=STRATEGIC)

    async def heartbeat(self) -> None:
        """Renew the lease each 2 s, the status each 5 min, and at once when the device plugin comes or goes."""
        renewed = pushed = -1e9
        path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        while True:
            offered = self.plugin_devices()
            changed, self._offered = offered != self._offered, offered
            self._registered = self._registered or offered > 0
            with contextlib.suppress(ApiError, aiohttp.ClientError, TimeoutError):
                if changed or time.monotonic() - pushed > 300:
                    await self.push()
                    pushed = time.monotonic()
                if time.monotonic() - renewed > 2:
                    spec = {"holderIdentity": self.name, "leaseDurationSeconds": 8, "renewTime": micro_now()}
                    try:
                        await self.api.request("PATCH", f"{path}/{self.name}", body={"spec": spec}, kind=MERGE)
                    except ApiError as error:
                        if error.status != 404:
                            raise
                        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self.name}, "spec": spec}
                        await self.api.request("POST", path, body=body)
                    renewed = time.monotonic()
            await asyncio.sleep(0.5)

    # -- devices ---------------------------------------------------------------------------------------------------

    def allocate(self, pod: JSON) -> bool:
        """Hand out the lowest free devices for the Pod's GPU limits; False if there are too few."""
        uid, containers = pod["metadata"]["uid"], pod["spec"]["containers"]
        wanted = sum(int((c.get("resources") or {}).get("limits", {}).get(GPU, 0)) for c in containers)
        if uid in self.allocated or not wanted:
            return True
        used = {index for indices in self.allocated.values() for index in indices}
        free = [device["index"] for device in self.devices[: self._offered] if device["index"] not in used]
        if len(free) < wanted:
            return False
        self.allocated[uid] = free[:wanted]
        return True

    def visible(self, pod: JSON, container: JSON) -> list[JSON] | None:
        """The devices that the container's limits give it; None without a limit (then the image's NVIDIA_VISIBLE_DEVICES rules)."""
        taken = list(self.allocated.get(pod["metadata"]["uid"], []))
        for other in pod["spec"]["containers"]:
            count = int((other.get("resources") or {}).get("limits", {}).get(GPU, 0))
            mine, taken = taken[:count], taken[count:]
            if other["name"] == container["name"] and count:
                return [self.devices[index] for index in mine]
        return None

    # -- what a container sees -------------------------------------------------------------------------------------

    def image_environment(self, image: Image) -> dict[str, str]:
        """The environment that the lab's images carry: what is special about a CPU belongs here, not into the product."""
        made = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", **image.environment}
        if image.view == "engine":
            folder = "/opt/lab-engine/bin" if self.facts["engine"] == "stub" else f"{self.facts['engine_venv']}/bin"
            made |= {
                "PATH": f"{folder}:{made['PATH']}", "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "MOTLEY_LAB_MP": "fork", "TORCH_COMPILE_DISABLE": "1",  # compiling for two CPUs takes minutes
                "HF_ENDPOINT": self.service, "HF_HUB_DISABLE_XET": "1", "VLLM_NO_USAGE_STATS": "1", "NVIDIA_VISIBLE_DEVICES": "all",
                "NVIDIA_DRIVER_CAPABILITIES": "compute,utility", "PYTHONUNBUFFERED": "1",
            }  # fmt: skip
        if image.view == "plugin":
            made |= {"PATH": f"/opt/lab-engine/bin:{made['PATH']}", "NVIDIA_VISIBLE_DEVICES": "all"}
        return made

    def view(self, pod: JSON, container: JSON, image: Image, *, environment: dict[str, str], folder: pathlib.Path, nvidia: bool) -> list[str]:
        """The root of a container: the system, the image's programs, and with the NVIDIA runtime the devices."""
        spec = pod["spec"]
        hostname = self.name if spec.get("hostNetwork") else spec.get("hostname") or pod["metadata"]["name"]
        made = root_view(hostname=hostname, hosts=self.hosts, share_ipc=bool(spec.get("hostIPC")))
        programs = folder / "programs"
        programs.mkdir(parents=True, exist_ok=True)
        python = self.facts["python"]
        if image.view == "engine" and self.facts["engine"] != "stub":
            python = f"{self.facts['engine_venv']}/bin/python"
        elif image.view == "engine":
            made += ["--ro-bind", str(_STUB), "/opt/lab-engine/stub.py", "--ro-bind", str(_DEVICE / "libcuda.py"), "/opt/lab-site/sitecustomize.py"]
            for name in ("ray", "vllm"):
                _script(programs / name, f'exec {python} /opt/lab-engine/stub.py {name} "$@"')
            for name in ("python3", "python"):
                _script(programs / name, f'PYTHONPATH="$PYTHONPATH:/opt/lab-site" exec {python} "$@"')
        made += _python_binds(python)
        if image.view == "plugin":
            _script(programs / "nvidia-device-plugin", f'exec {python} /opt/lab-device/plugin.py "$@"')
        made += ["--ro-bind", str(_DEVICE), "/opt/lab-device"]
        if nvidia:
            made += self._device_view(pod, container, environment, folder)
            _script(programs / "nvidia-smi", f'exec {python} -S /opt/lab-device/smi.py "$@"')
            if "/opt/lab-engine/bin" not in environment["PATH"]:
                environment["PATH"] += ":/opt/lab-engine/bin"
        return [*made, "--ro-bind", str(programs), "/opt/lab-engine/bin"]

    def _device_view(self, pod: JSON, container: JSON, environment: dict[str, str], folder: pathlib.Path) -> list[str]:
        devices = self.visible(pod, container)
        if devices is not None:
            environment["NVIDIA_VISIBLE_DEVICES"] = ",".join(device["uuid"] for device in devices)
        asked = environment.get("NVIDIA_VISIBLE_DEVICES", "void")
        if asked in ("", "void", "none"):
            return []
        if devices is None:
            names = asked.split(",")
            devices = [device for device in self.devices if asked == "all" or str(device["index"]) in names or device["uuid"] in names]
            if not devices and asked != "all":
                raise RuntimeRefusal(f"nvidia-container-cli: device error: {names[0]}: unknown device: unknown")
        facts = folder / "gpu.json"
        facts.write_text(json.dumps({"devices": devices, "gpu": self.gpu}))
        environment["MOTLEY_LAB_DEVICE_BYTES"] = ",".join(str(device["memory_bytes"]) for device in devices)
        environment["MOTLEY_LAB_OVERHEAD_BYTES"] = ",".join(str(device.get("reserve_bytes", 0)) for device in devices)
        return ["--ro-bind", str(facts), FACTS, "--bind", str(self.meters), FOLDER]


def _script(path: pathlib.Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def _python_binds(python: str) -> list[str]:
    """The folders that a Python (of a venv) needs and that are not below /usr."""
    link = pathlib.Path(python)
    venv = link.parent.parent
    places = {str(venv), str(venv.resolve()), str(link.resolve().parent.parent)}
    config = venv / "pyvenv.cfg"
    if config.is_file():
        home = dict(line.split(" = ", 1) for line in config.read_text().splitlines() if " = " in line).get("home", "")
        places.add(str(pathlib.Path(home).parent))
    if sys.executable == python:
        places.add(sys.base_prefix)
    return [word for place in sorted(places) if place != "/usr" and not place.startswith("/usr/") for word in ("--ro-bind", place, place)]
