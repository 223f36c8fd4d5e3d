# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the server fills in: defaults per kind, and what a new object starts with."""

from __future__ import annotations

import base64
import random
from typing import Any

from motley_lab.kube.errors import Json

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


def suffix() -> str:
    """Five characters, as generateName and volumes of service accounts get them."""
    return "".join(random.choices(_ALPHABET, k=5))


def fill(target: Json, **values: Any) -> Json:
    for key, value in values.items():
        target.setdefault(key, value)
    return target


def _probe(probe: Json) -> None:
    fill(probe, timeoutSeconds=1, periodSeconds=10, successThreshold=1, failureThreshold=3)
    if "httpGet" in probe:
        fill(probe["httpGet"], path="/", scheme="HTTP")


def _container(container: Json, spec: Json, *, pod: bool) -> None:
    image = container.get("image", "").rsplit("/", 1)[-1]
    fresh = "@" not in image and (":" not in image or image.endswith(":latest"))
    resources = fill(container, resources={}, terminationMessagePath="/dev/termination-log", terminationMessagePolicy="File",
                     imagePullPolicy="Always" if fresh else "IfNotPresent")["resources"]
    for port in container.get("ports", []):
        fill(port, protocol="TCP")
        if pod and spec.get("hostNetwork") and "containerPort" in port:
            fill(port, hostPort=port["containerPort"])
    for entry in container.get("env", []):
        if "fieldRef" in entry.get("valueFrom", {}):
            fill(entry["valueFrom"]["fieldRef"], apiVersion="v1")
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if name in container:
            _probe(container[name])
    if pod and resources.get("limits"):
        resources["requests"] = {**resources["limits"], **resources.get("requests", {})}


def pod_spec(spec: Json, *, pod: bool) -> None:
    for container in [*spec.get("initContainers", []), *spec.get("containers", [])]:
        _container(container, spec, pod=pod)
    fill(spec, restartPolicy="Always", terminationGracePeriodSeconds=30, dnsPolicy="ClusterFirst", securityContext={},
         schedulerName="default-scheduler")
    if pod:
        fill(spec, enableServiceLinks=True)
    if "serviceAccountName" in spec or "serviceAccount" in spec:
        account = spec.get("serviceAccountName") or spec.get("serviceAccount")
        spec.update(serviceAccountName=account, serviceAccount=account)
    for volume in spec.get("volumes", []):
        if not volume.keys() - {"name"}:
            volume["emptyDir"] = {}
        if "hostPath" in volume:
            fill(volume["hostPath"], type="")
        for source in ("secret", "configMap", "projected", "downwardAPI"):
            if source in volume:
                fill(volume[source], defaultMode=420)


def _service(document: Json) -> None:
    spec = fill(document.setdefault("spec", {}), type="ClusterIP", sessionAffinity="None")
    for port in spec.get("ports", []):
        fill(port, protocol="TCP", targetPort=port.get("port"))
    if spec["type"] != "ExternalName":
        fill(spec, internalTrafficPolicy="Cluster", ipFamilies=["IPv4"], ipFamilyPolicy="SingleStack")
    if spec["type"] in ("NodePort", "LoadBalancer"):
        fill(spec, externalTrafficPolicy="Cluster")
    fill(document, status={"loadBalancer": {}})


def _job(document: Json) -> None:
    spec = document.setdefault("spec", {})
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    fill(spec, parallelism=1, backoffLimit=6, completionMode="NonIndexed", suspend=False, manualSelector=False,
         podReplacementPolicy="TerminatingOrFailed")


def _secret(document: Json) -> None:
    fill(document, type="Opaque")
    for key, value in document.pop("stringData", {}).items():
        document.setdefault("data", {})[key] = base64.b64encode(value.encode()).decode()


def _definition(document: Json) -> None:
    spec = document.setdefault("spec", {})
    names = spec.get("names", {})
    if "kind" in names:
        fill(names, singular=names["kind"].lower(), listKind=f"{names['kind']}List")
    fill(spec, conversion={"strategy": "None"})


def apply_defaults(kind: str, document: Json) -> None:
    """Defaults of a built-in kind, in place; idempotent."""
    spec: Json = document.get("spec") or {}
    match kind:
        case "Pod":
            pod_spec(document.setdefault("spec", {}), pod=True)
        case "DaemonSet":
            strategy = fill(fill(spec, updateStrategy={}, revisionHistoryLimit=10)["updateStrategy"], type="RollingUpdate")
            if strategy["type"] == "RollingUpdate":
                fill(fill(strategy, rollingUpdate={})["rollingUpdate"], maxUnavailable=1, maxSurge=0)
        case "Deployment":
            strategy = fill(fill(spec, replicas=1, strategy={}, revisionHistoryLimit=10, progressDeadlineSeconds=600)["strategy"],
                            type="RollingUpdate")
            if strategy["type"] == "RollingUpdate":
                fill(fill(strategy, rollingUpdate={})["rollingUpdate"], maxUnavailable="25%", maxSurge="25%")
        case "ReplicaSet" | "StatefulSet":
            fill(spec, replicas=1)
        case "Job":
            _job(document)
            spec = document["spec"]
        case "Service":
            _service(document)
        case "Secret":
            _secret(document)
        case "PersistentVolumeClaim":
            fill(spec, volumeMode="Filesystem")
        case "Namespace":
            name = document["metadata"].get("name", "")
            document["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = name
        case "CustomResourceDefinition":
            _definition(document)
        case "StorageClass":
            fill(document, reclaimPolicy="Delete", volumeBindingMode="Immediate")
        case "PriorityClass":
            fill(document, preemptionPolicy="PreemptLowerPriority")
        case "ClusterRoleBinding" | "RoleBinding":
            fill(document.get("roleRef", {}), apiGroup="rbac.authorization.k8s.io")
    if kind != "Pod" and isinstance(template := spec.get("template"), dict) and isinstance(template.get("spec"), dict):
        fill(template, metadata={})
        pod_spec(template["spec"], pod=False)


def quality(spec: Json) -> str:
    """QoS class of a Pod."""
    every = [container.get("resources", {}) for container in [*spec.get("initContainers", []), *spec.get("containers", [])]]
    plain = [{kind: {k: v for k, v in entry.get(kind, {}).items() if k in ("cpu", "memory")} for kind in ("limits", "requests")}
             for entry in every]
    if not any(entry["limits"] or entry["requests"] for entry in plain):
        return "BestEffort"
    full = all(len(entry["limits"]) == 2 and entry["limits"] == entry["requests"] for entry in plain)
    return "Guaranteed" if full else "Burstable"


def starting(kind: str, document: Json) -> None:
    """What the server sets on a new object, whatever the client said (status above all)."""
    metadata, spec = document["metadata"], document.get("spec", {})
    match kind:
        case "Pod":
            document["status"] = {"phase": "Pending", "qosClass": quality(spec)}
            if spec.get("schedulingGates"):
                document["status"]["conditions"] = [{
                    "type": "PodScheduled", "status": "False", "lastProbeTime": None, "lastTransitionTime": metadata["creationTimestamp"],
                    "reason": "SchedulingGated", "message": "Scheduling is blocked due to non-empty scheduling gates"}]
        case "Namespace":
            document["spec"] = {"finalizers": ["kubernetes"]}
            document["status"] = {"phase": "Active"}
        case "Node":
            taints = document.setdefault("spec", {}).setdefault("taints", [])
            if not any(taint["key"] == "node.kubernetes.io/not-ready" for taint in taints):
                taints.append({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"})
            fill(document.setdefault("status", {}), daemonEndpoints={"kubeletEndpoint": {"Port": 0}}, nodeInfo=dict.fromkeys((
                "machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion", "kubeletVersion",
                "kubeProxyVersion", "operatingSystem", "architecture"), ""))
        case "DaemonSet":
            metadata.setdefault("annotations", {})["deprecated.daemonset.template.generation"] = "1"
            document["status"] = dict.fromkeys(("currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady"), 0)
        case "Job":
            document["status"] = {}
            if not spec.get("manualSelector"):
                labels = {"controller-uid": metadata["uid"], "job-name": metadata.get("name", "")}
                labels = {**{f"batch.kubernetes.io/{key}": value for key, value in labels.items()}, **labels}
                spec.setdefault("selector", {"matchLabels": {"batch.kubernetes.io/controller-uid": metadata["uid"]}})
                inner = spec.get("template", {}).setdefault("metadata", {})
                inner["labels"] = {**labels, **inner.get("labels", {})}
                metadata["labels"] = metadata.get("labels") or dict(inner["labels"])
        case "PersistentVolumeClaim":
            metadata.setdefault("finalizers", []).append("kubernetes.io/pvc-protection")
            document["status"] = {"phase": "Pending"}
        case "PersistentVolume":
            document["status"] = {"phase": "Available"}
        case "PodDisruptionBudget":
            document["status"] = dict.fromkeys(("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"), 0)
        case "Deployment" | "ReplicaSet" | "StatefulSet" | "CronJob":
            document["status"] = {}
