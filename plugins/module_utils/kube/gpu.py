# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs in Kubernetes: RuntimeClass, device plugin, what each node offers, and the Job that makes a CUDA call."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.images.reference import Reference
from ansible_collections.motley.inference.plugins.module_utils.kube.objects import Object

RESOURCE = "nvidia.com/gpu"
PLUGIN_NAMESPACE = "kube-system"
PLUGIN = "nvidia-device-plugin"
PLUGIN_IMAGE = "nvcr.io/nvidia/k8s-device-plugin"
CUDA_MARK = "MOTLEY_CUDA"
_PART_OF = {"app.kubernetes.io/part-of": "motley"}
_TOLERATIONS = (
    {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"},
    {"key": RESOURCE, "operator": "Exists", "effect": "NoSchedule"},
)


class PluginRelease(NamedTuple):
    """One release line of the NVIDIA device plugin."""

    first: tuple[int, int, int]
    unified_memory: bool  # registers a device whose memory NVML does not know (GB10)
    source: str


PLUGIN_RELEASES: tuple[PluginRelease, ...] = (
    PluginRelease((0, 0, 0), False, "k8s-device-plugin issue 1482: 'error getting device memory: Not Supported' ends the plugin"),
    PluginRelease((0, 17, 4), True, "commit c5e473c9b on the 0.17 branch, 2025-09-04: the error is ignored"),
    PluginRelease((0, 18, 0), True, "commit e3323ce55 on main, 2025-10-21"),
)
PLUGIN_DEFAULT = "v0.20.0"  # 2026-08-19
PLUGIN_LEAST = "v0.17.4"
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")


def plugin_release(version: str) -> PluginRelease:
    """The row of a device plugin version."""
    match = _VERSION.match(version)
    if not match:
        raise MotleyError(f"{version!r} is no version of the device plugin", hint=f"write it as {PLUGIN_DEFAULT}")
    numbers = tuple(int(n) for n in match.groups())
    return next(r for r in reversed(PLUGIN_RELEASES) if numbers >= r.first)


def check_plugin(version: str, *, unified: Sequence[str]) -> None:
    """Refuse a release that can not register the planned devices. unified: nodes with unified memory."""
    release = plugin_release(version)
    if release.unified_memory:
        return
    where = f" ({', '.join(unified)})" if unified else ""
    raise MotleyError(
        f"k8s-device-plugin {version} cannot register a GB10{where}; use {PLUGIN_LEAST} or newer",
        hint=f"leave motley_device_plugin_version out ({PLUGIN_DEFAULT}), or set it to {PLUGIN_LEAST} or newer; FAIL_ON_INIT_ERROR does not help",
        evidence=["error getting device memory: Not Supported", f"source: {release.source}"],
    )


def plugin_image(version: str) -> str:
    """The device plugin's image of a version."""
    return f"{PLUGIN_IMAGE}:{version if version.startswith('v') else 'v' + version}"


def runtime_class(handler: str = "nvidia") -> Object:
    """The RuntimeClass by which a Pod gets the NVIDIA runtime. Its handler can not be changed, only made anew."""
    return {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia", "labels": _PART_OF}, "handler": handler}


def _hosts(nodes: Sequence[str]) -> Object:
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def device_plugin(image: Reference, nodes: Sequence[str]) -> Object:
    """The DaemonSet, on the planned nodes only: its RuntimeClass does not exist on nodes without the toolkit."""
    labels = {"app.kubernetes.io/name": PLUGIN}
    container = {
        "name": PLUGIN,
        "image": str(image),
        "imagePullPolicy": "IfNotPresent",
        "env": [{"name": "PASS_DEVICE_SPECS", "value": "true"}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "device-plugins", "mountPath": "/var/lib/kubelet/device-plugins"}],
    }
    spec = {
        "runtimeClassName": "nvidia",  # Talos runs containers with runc by default, and runc mounts no driver
        "priorityClassName": "system-node-critical",
        "automountServiceAccountToken": False,
        "affinity": _hosts(nodes),
        "tolerations": [dict(t) for t in _TOLERATIONS],
        "containers": [container],
        "volumes": [{"name": "device-plugins", "hostPath": {"path": "/var/lib/kubelet/device-plugins", "type": "Directory"}}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": PLUGIN, "namespace": PLUGIN_NAMESPACE, "labels": {**_PART_OF, **labels}},
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate"},
            "template": {"metadata": {"labels": {**_PART_OF, **labels}}, "spec": spec},
        },
    }


def job_name(node: str) -> str:
    return f"motley-cuda-{node}"


def cuda_job(node: str, *, arch: str, image: Reference, gpus: int, script: str, megabytes: int, namespace: str) -> Object:
    """A Job that makes a CUDA call on one node with the engine's image, on all GPUs that the plan knows there."""
    container = {
        "name": "cuda",
        "image": str(image),
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-c", script, str(megabytes)],
        "resources": {"limits": {RESOURCE: str(gpus)}, "requests": {RESOURCE: str(gpus)}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    pod = {
        "runtimeClassName": "nvidia",
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "nodeSelector": {"kubernetes.io/hostname": node, "kubernetes.io/arch": arch},
        "tolerations": [dict(t) for t in _TOLERATIONS],
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    labels = {**_PART_OF, "app.kubernetes.io/name": "cuda-check", "motley.dev/node": node}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job_name(node), "namespace": namespace, "labels": labels},
        "spec": {"backoffLimit": 0, "ttlSecondsAfterFinished": 3600, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }


def cuda_result(log: str) -> dict[str, Any] | None:
    """What the check printed, or None."""
    for line in reversed(log.splitlines()):
        at = line.find(CUDA_MARK + "{")
        if at >= 0:
            try:
                document = json.loads(line[at + len(CUDA_MARK) :])
            except ValueError:
                return None
            return dict(document) if isinstance(document, dict) else None
    return None


# cuInit and friends, by number: what it means on our nodes.
_CUDA_CAUSES = {
    "cuInit returned 3": (
        "the driver is there, but CUDA can not initialise: on a GB10 the kernel lacks SVA (Talos before v1.14.1) or the GPU is dead after a kexec",
        "upgrade the node to Talos v1.14.1 or newer (motley_talos_version), then power-cycle it once",
    ),
    "cuInit returned 100": (
        "the container sees no CUDA device",
        "run --tags talos_image: the NVIDIA modules or their kernel argument are missing on the node",
    ),
    "cuInit returned 999": ("the driver fails for an unknown reason", "power-cycle the node; look at its kernel log (talosctl dmesg) for NVRM lines"),
    "cuInit returned 803": ("driver and CUDA libraries do not fit", "run --tags talos_image: kmod and toolkit must be of one branch"),
    "libcuda.so.1": ("the driver's library is not in the container", "the RuntimeClass or the toolkit extension is missing: run --tags talos_image"),
    "cuMemAlloc_v2 returned 2": ("the device has no free memory", "end what uses the device, then run again"),
    "cuCtxCreate_v2 returned 2": ("the device has no free memory", "end what uses the device, then run again"),
}


def check_cuda(node: str, result: Mapping[str, Any] | None, *, planned: int, log: str = "") -> None:
    """Refuse a node whose CUDA call failed or that shows fewer devices than planned."""
    if result is None:
        tail = [line for line in log.strip().splitlines() if line.strip()][-5:]
        raise MotleyError(
            "the CUDA check printed no result", node=node, hint=f"kubectl logs -n motley job/{job_name(node)} shows its output", evidence=tail
        )
    if not result.get("ok"):
        error = str(result.get("error") or "no device")
        cause, remedy = next(((c, r) for key, (c, r) in _CUDA_CAUSES.items() if key in error), ("the CUDA call failed", "see the node's kernel log"))
        raise MotleyError(f"the CUDA call failed: {error}: {cause}", node=node, hint=remedy, evidence=[error])
    if int(result.get("count", 0)) < planned:
        raise MotleyError(
            f"CUDA sees {result.get('count')} devices, the inventory has {planned}",
            node=node,
            hint="correct motley_accelerators, or see why a card is missing (seated, powered, bound to the driver?)",
        )


def offered(node: Mapping[str, Any]) -> int:
    """How many GPUs a node offers for Pods."""
    status = node.get("status") or {}
    return int((status.get("allocatable") or {}).get(RESOURCE, 0) or 0)


def shortage(nodes: Mapping[str, Mapping[str, Any]], planned: Mapping[str, int]) -> dict[str, str]:
    """Nodes that offer fewer GPUs than the inventory has, with what they offer."""
    found = {}
    for name, wanted in planned.items():
        if name not in nodes:
            found[name] = "is no node of the cluster"
        elif offered(nodes[name]) < wanted:
            found[name] = f"offers {offered(nodes[name])} of {wanted} GPUs"
    return found


def plugin_problem(daemonset: Mapping[str, Any], planned: Sequence[str]) -> str:
    """Desired is compared with the plan, not ready with desired: nodes that a DaemonSet passes over are not counted by it."""
    status = daemonset.get("status") or {}
    desired, current = int(status.get("desiredNumberScheduled", 0)), int(status.get("currentNumberScheduled", 0))
    if desired < len(planned):
        return f"the device plugin is wanted on {len(planned)} nodes and scheduled for {desired}: a name, a taint or a cordon keeps it off"
    if current < desired:
        return f"the device plugin has {current} of {desired} Pods"
    ready = int(status.get("numberReady", 0))
    return f"{ready} of {desired} device plugins ready" if ready < desired else ""


def plugin_log_cause(log: str) -> tuple[str, str] | None:
    """What a device plugin that does not come up says, and what to do."""
    if "error getting device memory: Not Supported" in log:
        return "the device plugin can not read the GB10's memory", f"it must be {PLUGIN_LEAST} or newer: set motley_device_plugin_version"
    if "error getting memory info for device" in log and "Not Supported" in log:
        return "this component has no GB10 support", f"use k8s-device-plugin {PLUGIN_LEAST} or newer instead of the DRA driver"
    if "did you configure the NVIDIA Container Toolkit" in log or "invalid device discovery strategy" in log:
        return "the device plugin sees no NVIDIA driver", "run --tags talos_image: toolkit extension, modules and RuntimeClass must be there"
    return None


def cuda_key(*, image: str, boot_id: str, driver: str | None, gpus: int) -> dict[str, Any]:
    """What a CUDA result depends on; while it stays the same, the result is reused."""
    return {"image": image, "boot_id": boot_id, "driver": driver, "gpus": gpus}
