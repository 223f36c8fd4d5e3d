# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a wait waits for: one named predicate over one object, in a table by kind.

A predicate answers with a Progress: whether it is reached, whether it can no longer be reached, and one line for people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Live = Mapping[str, Any]


@dataclass(frozen=True)
class Progress:
    """Where an object stands. `failed` means that waiting longer is of no use."""

    done: bool
    text: str
    failed: bool = False


def _conditions(live: Live) -> dict[str, Mapping[str, Any]]:
    return {str(c.get("type")): c for c in ((live.get("status") or {}).get("conditions") or [])}


def _true(live: Live, condition: str) -> bool:
    return str(_conditions(live).get(condition, {}).get("status")) == "True"


# Reasons for which the kubelet would try for ever although nothing will change by itself.
FATAL_WAITING = {
    "InvalidImageName": "the image reference is wrong",
    "ErrImageNeverPull": "the image is not on the node and must not be pulled",
    "CreateContainerConfigError": "a Secret or ConfigMap that the container names is missing",
    "CreateContainerError": "the container can not be created",
    "RunContainerError": "the container can not be started",
}
_SLOW_WAITING = {"ErrImagePull", "ImagePullBackOff", "CrashLoopBackOff"}


def _containers(live: Live) -> list[Mapping[str, Any]]:
    status = live.get("status") or {}
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]


def pod_state(live: Live) -> Progress:
    """One line about a Pod: what it is doing, or what keeps it from it. done = its containers run."""
    status = live.get("status") or {}
    phase = str(status.get("phase") or "Pending")
    if (live.get("metadata") or {}).get("deletionTimestamp"):
        return Progress(False, "is being deleted")
    if phase == "Failed":
        return Progress(False, f"failed: {_ended(live) or status.get('reason') or 'no reason given'}", failed=True)
    if phase == "Succeeded":
        return Progress(False, "has ended", failed=True)
    scheduled = _conditions(live).get("PodScheduled", {})
    if str(scheduled.get("status")) == "False":
        return Progress(False, f"not scheduled: {scheduled.get('message') or scheduled.get('reason') or 'no reason given'}")
    waiting = [(c, (c.get("state") or {}).get("waiting") or {}) for c in _containers(live)]
    for container, state in waiting:
        reason = str(state.get("reason") or "")
        if reason in FATAL_WAITING or reason in _SLOW_WAITING:
            last = _last_exit(container)
            text = f"{reason}: {last or state.get('message') or FATAL_WAITING.get(reason, '')}".rstrip(": ")
            return Progress(False, text, failed=reason in FATAL_WAITING)
    if phase == "Running" and all((c.get("state") or {}).get("running") for c in status.get("containerStatuses") or [{}]):
        return Progress(True, "running")
    reasons = sorted({str(s.get("reason")) for dummy, s in waiting if s.get("reason")})
    return Progress(False, ", ".join(reasons) or phase.lower())


def _last_exit(container: Mapping[str, Any]) -> str:
    ended = (container.get("lastState") or {}).get("terminated") or {}
    if not ended:
        return ""
    return f"ended with exit code {ended.get('exitCode')} ({container.get('restartCount', 0)} restarts)"


def _ended(live: Live) -> str:
    for container in _containers(live):
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended and ended.get("exitCode") != 0:
            text = f"container {container.get('name')} ended with exit code {ended.get('exitCode')}"
            return f"{text}: {ended['message'].strip()}" if ended.get("message") else text
    return ""


def _pod_ready(live: Live) -> Progress:
    state = pod_state(live)
    if not state.done:
        return state
    return Progress(True, "ready") if _true(live, "Ready") else Progress(False, "running, not ready")


def _daemonset(live: Live) -> Progress:
    status, metadata = live.get("status") or {}, live.get("metadata") or {}
    if int(status.get("observedGeneration", 0)) < int(metadata.get("generation", 0)):
        return Progress(False, "not seen by the controller yet")
    desired = int(status.get("desiredNumberScheduled", 0))
    ready, updated = int(status.get("numberReady", 0)), int(status.get("updatedNumberScheduled", 0))
    return Progress(desired > 0 and ready >= desired and updated >= desired, f"{ready} of {desired} ready, {updated} up to date")


def _deployment(live: Live) -> Progress:
    status, spec, metadata = live.get("status") or {}, live.get("spec") or {}, live.get("metadata") or {}
    wanted, have = int(spec.get("replicas", 1)), int(status.get("availableReplicas", 0))
    seen = int(status.get("observedGeneration", 0)) >= int(metadata.get("generation", 0))
    return Progress(seen and have >= wanted and int(status.get("updatedReplicas", 0)) >= wanted, f"{have} of {wanted} available")


def _job(live: Live) -> Progress:
    if _true(live, "Complete"):
        return Progress(True, "complete")
    failed = _conditions(live).get("Failed", {})
    if str(failed.get("status")) == "True":
        return Progress(False, f"failed: {failed.get('message') or failed.get('reason')}", failed=True)
    status = live.get("status") or {}
    return Progress(False, f"{status.get('active', 0)} running, {status.get('failed', 0)} failed")


def _namespace(live: Live) -> Progress:
    phase = str((live.get("status") or {}).get("phase") or "Active")
    return Progress(phase == "Active", phase.lower())


def _node(live: Live) -> Progress:
    if _true(live, "Ready"):
        return Progress(True, "ready")
    return Progress(False, f"not ready: {_conditions(live).get('Ready', {}).get('message') or 'no word from its kubelet'}")


def _crd(live: Live) -> Progress:
    return Progress(_true(live, "Established"), "established" if _true(live, "Established") else "not established")


def _exists(live: Live) -> Progress:
    return Progress(bool(live), "exists")


# (kind, name of the wait) -> predicate. "" is the wait that `wait: true` means for that kind.
WAITS: dict[tuple[str, str], Callable[[Live], Progress]] = {
    ("Pod", ""): _pod_ready,
    ("Pod", "ready"): _pod_ready,
    ("Pod", "running"): pod_state,
    ("DaemonSet", ""): _daemonset,
    ("Deployment", ""): _deployment,
    ("Job", ""): _job,
    ("Namespace", ""): _namespace,
    ("Node", ""): _node,
    ("CustomResourceDefinition", ""): _crd,
}


def predicate(kind: str, name: str = "") -> Callable[[Live], Progress]:
    """The predicate of a kind; kinds without a row are awaited by existence."""
    return WAITS.get((kind, name)) or WAITS.get((kind, "")) or _exists


def reason_of_events(events: Iterable[Mapping[str, Any]], name: str) -> str:
    """The newest warning about an object or about what it owns (a DaemonSet's Pods are refused in events only)."""
    found = [
        e
        for e in events
        if str(e.get("type")) == "Warning" and str((e.get("involvedObject") or {}).get("name", "")).startswith(name) and e.get("message")
    ]
    found.sort(key=lambda e: str(e.get("lastTimestamp") or e.get("eventTime") or e.get("firstTimestamp") or ""))
    return f"{found[-1].get('reason')}: {found[-1]['message']}" if found else ""


# What a message of the API server, the scheduler or the kubelet means for the operator.
_REMEDIES: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("violates PodSecurity",),
        "the namespace needs the label pod-security.kubernetes.io/enforce=privileged: run --tags ray_cluster, which sets it (and audit and warn)",
    ),
    (("runtimeclass", "not found"), "the RuntimeClass was never applied: run --tags gpu_device_plugin"),
    (
        ("no runtime for", "is configured"),
        "the node's container runtime does not know the handler: its NVIDIA toolkit extension is missing (run --tags talos_image)",
    ),
    (
        ("Insufficient nvidia.com/gpu",),
        "the node offers fewer free GPUs than asked for: see which Pods hold them (kubectl get pods -A -o wide) and run --tags gpu_device_plugin",
    ),
    (("didn't match Pod's node affinity",), "no node has this name and architecture: compare kubectl get nodes --show-labels with the inventory"),
    (("untolerated taint",), "a node has a taint that these Pods do not tolerate: kubectl describe node shows it"),
    (("no match for platform",), "the image has no variant for this node's architecture: run --tags container_image"),
    (("exec format error",), "the image is for another architecture: run --tags container_image"),
    (("read-only file system",), "only /var is writable on Talos: motley_cache_path must be below /var"),
    (("free ports",), "another Pod on the host network holds one of the ports: kubectl get pods -A -o wide, or set motley_port"),
    (("Insufficient memory",), "the node has not enough memory left for this Pod: lower motley_shm_size, or stop what else runs there"),
    (("no such host",), "the node can not resolve the registry's name: check motley_nameservers"),
    (("unauthorized",), "the registry wants credentials for this image"),
)


def remedy(message: str) -> str:
    """What to do about a message; empty if it is not known."""
    said = message.lower()
    for parts, text in _REMEDIES:
        if all(part.lower() in said for part in parts):
            return text
    return ""
