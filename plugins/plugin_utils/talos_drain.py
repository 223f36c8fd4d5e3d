# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What runs on a node, and how it is emptied before a reboot.

talosctl's own drain comes after the installation, needs Kubernetes to answer, and leaves the node cordoned when it fails.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.plugin_utils.action import Context
from ansible_collections.motley.inference.plugins.plugin_utils.kube import Kube, KubeError, KubeUnreachable

_MIRROR = "kubernetes.io/config.mirror"
_DRAIN_SECONDS = 300


def connect(kubeconfig: Path) -> Kube | None:
    """The cluster's API, or None before there is one."""
    return Kube(kubeconfig, timeout=10) if kubeconfig.is_file() else None


def workloads(kube: Kube, node: str) -> list[dict[str, Any]]:
    """Pods that a reboot of the node would end: not of the system, not of a DaemonSet, not finished."""
    pods = kube.list_objects("v1", "Pod", fields=f"spec.nodeName={node}")
    return [pod for pod in pods if _counts(pod, node)]


def _counts(pod: dict[str, Any], node: str) -> bool:
    metadata = pod.get("metadata", {})
    owners = {owner.get("kind") for owner in metadata.get("ownerReferences") or []}
    return (
        pod.get("spec", {}).get("nodeName") == node
        and metadata.get("namespace") != "kube-system"
        and not owners & {"DaemonSet", "Node"}
        and _MIRROR not in (metadata.get("annotations") or {})
        and pod.get("status", {}).get("phase") in ("Running", "Pending")
        and not metadata.get("deletionTimestamp")
    )


def serving(kubeconfig: Path, node: str) -> str:
    """What runs on the node, in words; empty for nothing. Where Kubernetes does not answer that is unknown, and said so."""
    try:
        kube = connect(kubeconfig)
        pods = workloads(kube, node) if kube else []
    except KubeUnreachable:
        return "a service that cannot be seen (the Kubernetes API does not answer)"
    names = [f"{pod['metadata'].get('namespace')}/{pod['metadata'].get('name')}" for pod in pods]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def set_schedulable(kube: Kube, node: str, *, schedulable: bool) -> bool:
    """Cordon or uncordon; False when there is no such node or it is that way already."""
    path = f"/api/v1/nodes/{quote(node)}"
    try:
        now = bool(kube.request("GET", path).get("spec", {}).get("unschedulable"))
    except KubeError as error:
        if error.status == 404:
            return False
        raise
    if now != schedulable:
        return False
    kube.request(
        "PATCH",
        path,
        body={"spec": {"unschedulable": None if schedulable else True}},
        content_type="application/strategic-merge-patch+json",
    )
    return True


def drain(context: Context, kube: Kube, node: str) -> None:
    """Evict what runs on the node and wait until it is gone; a disruption budget that blocks it is named."""
    refused: dict[str, str] = {}

    def look() -> bool:
        left = workloads(kube, node)
        for pod in left:
            reason = _evict(kube, pod)
            if reason:
                refused[f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"] = reason
        return not left

    try:
        context.wait("its pods to end", look, timeout=_DRAIN_SECONDS, every=2, key=node)
    except MotleyError as error:
        raise MotleyError(
            "the node could not be emptied, so it was left as it was",
            node=node,
            hint="end these pods by hand, or run later",
            evidence=[f"{name}: {reason}" for name, reason in refused.items()],
        ) from error


def _evict(kube: Kube, pod: dict[str, Any]) -> str:
    metadata = pod["metadata"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]}}
    try:
        kube.request("POST", f"/api/v1/namespaces/{quote(metadata['namespace'])}/pods/{quote(metadata['name'])}/eviction", body=body)
    except KubeError as error:
        return "" if error.status == 404 else error.message
    return ""
