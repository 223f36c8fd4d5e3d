# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Admission: what is added to a Pod, and why it is turned away."""

from __future__ import annotations

from typing import Any

from motley_lab.kube import pod_security
from motley_lab.kube.defaults import suffix
from motley_lab.kube.errors import ApiError, Json, forbidden
from motley_lab.kube.resources import Resource
from motley_lab.kube.store import Store

_WAIT_FOR_NODE_S = 300
_WITH_TEMPLATE = frozenset({"DaemonSet", "Deployment", "Job", "ReplicaSet", "StatefulSet"})


def namespace_open(store: Store, resource: Resource, namespace: str, name: str) -> Json:
    """The namespace that an object is created in; it must exist and must not be going."""
    found = store.get("/namespaces", "", namespace)
    if found is None:
        raise ApiError(404, "NotFound", f'namespaces "{namespace}" not found', details={"name": namespace, "kind": "namespaces"})
    if "deletionTimestamp" in found["metadata"]:
        refusal = forbidden(resource.group, resource.plural, name,
                            f"unable to create new content in namespace {namespace} because it is being terminated")
        refusal.status["details"]["causes"] = [{"reason": "NamespaceTerminating", "message": f"namespace {namespace} is being terminated",
                                                "field": "metadata.namespace"}]
        raise refusal
    return found


def complete_pod(store: Store, pod: Json) -> None:
    """Service account, priority, tolerations, RuntimeClass: in the order of the real server's plugins."""
    _service_account(store, pod)
    _priority(store, pod)
    default_tolerations(pod["spec"])
    _runtime_class(store, pod)


def _service_account(store: Store, pod: Json) -> None:
    spec, namespace = pod["spec"], pod["metadata"]["namespace"]
    name = spec.setdefault("serviceAccountName", "default")
    spec["serviceAccount"] = name
    account = store.get("/serviceaccounts", namespace, name)
    if account is None:
        raise forbidden("", "pods", pod["metadata"]["name"],
                        f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found')
    if not spec.get("automountServiceAccountToken", account.get("automountServiceAccountToken", True)):
        return
    path = "/var/run/secrets/kubernetes.io/serviceaccount"
    volume, used = f"kube-api-access-{suffix()}", False
    for container in [*spec.get("initContainers", []), *spec.get("containers", [])]:
        mounts = container.setdefault("volumeMounts", [])
        if not any(mount.get("mountPath") == path for mount in mounts):
            mounts.append({"name": volume, "readOnly": True, "mountPath": path})
            used = True
    if used:
        sources: list[Json] = [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
        ]
        spec.setdefault("volumes", []).append({"name": volume, "projected": {"sources": sources, "defaultMode": 420}})


def _priority(store: Store, pod: Json) -> None:
    spec = pod["spec"]
    name, value, preemption = spec.get("priorityClassName"), 0, "PreemptLowerPriority"
    if name:
        found = store.get("scheduling.k8s.io/priorityclasses", "", name)
        if found is None:
            raise forbidden("", "pods", pod["metadata"]["name"], f"no PriorityClass with name {name} was found")
        value, preemption = found.get("value", 0), found.get("preemptionPolicy", preemption)
    spec["priority"] = value
    spec.setdefault("preemptionPolicy", preemption)


def default_tolerations(spec: Json) -> None:
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        entries: list[Json] = spec.setdefault("tolerations", [])
        if not any(entry.get("key") in (key, None) and entry.get("effect", "NoExecute") == "NoExecute" for entry in entries):
            entries.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _WAIT_FOR_NODE_S})


def _runtime_class(store: Store, pod: Json) -> None:
    name = pod["spec"].get("runtimeClassName")
    if not name:
        return
    found = store.get("node.k8s.io/runtimeclasses", "", name)
    if found is None:
        raise forbidden("", "pods", pod["metadata"]["name"], f'pod rejected: RuntimeClass "{name}" not found')
    scheduling: dict[str, Any] = found.get("scheduling", {})
    if scheduling.get("nodeSelector"):
        pod["spec"]["nodeSelector"] = {**scheduling["nodeSelector"], **pod["spec"].get("nodeSelector", {})}
    for entry in scheduling.get("tolerations", []):
        if entry not in pod["spec"]["tolerations"]:
            pod["spec"]["tolerations"].append(entry)
    if found.get("overhead"):
        pod["spec"]["overhead"] = found["overhead"]["podFixed"]


def pod_security_check(namespace: Json, kind: str, document: Json) -> list[str]:
    """Warnings for a Pod or a template; ApiError 403 for a Pod that the namespace does not take."""
    if kind == "Pod":
        spec = document["spec"]
        level, version = pod_security.policy(namespace, "enforce")
        if found := pod_security.violations(spec, level):
            raise forbidden("", "pods", document["metadata"]["name"], f'violates PodSecurity "{level}:{version}": {pod_security.text(found)}')
    elif kind in _WITH_TEMPLATE:
        spec = document["spec"].get("template", {}).get("spec", {})
    else:
        return []
    level, version = pod_security.policy(namespace, "warn")
    found = pod_security.violations(spec, level)
    return [f'would violate PodSecurity "{level}:{version}": {pod_security.text(found)}'] if found else []
