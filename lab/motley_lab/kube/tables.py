# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Objects as tables, for clients that ask for them (kubectl)."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import Any

from motley_lab.kube.errors import Json
from motley_lab.kube.resources import Resource

_COLUMNS = {
    "Node": "Status Roles Age Version *Internal-IP *External-IP *OS-Image *Kernel-Version *Container-Runtime",
    "Pod": "Ready Status Restarts Age *IP *Node *Nominated_Node *Readiness_Gates",
    "DaemonSet": "#Desired #Current #Ready #Up-to-date #Available Node_Selector Age *Containers *Images *Selector",
    "Job": "Status Completions Duration Age *Containers *Images *Selector",
    "Namespace": "Status Age", "RuntimeClass": "Handler Age", "ConfigMap": "#Data Age", "Secret": "Type #Data Age",
    "Service": "Type Cluster-IP External-IP Port(s) Age *Selector",
    "Event": "Last_Seen Type Reason Object *Subobject *Source Message",
    "Lease": "Holder Age", "ServiceAccount": "Age", "CustomResourceDefinition": "Created_At",
}
"""Columns after Name; `*` is shown by -o wide only, `#` is a number."""


def age(stamp: str | None, until: str | None = None) -> str:
    """A duration in kubectl's short form."""
    if not stamp:
        return "<unknown>"
    end = datetime.datetime.fromisoformat(until) if until else datetime.datetime.now(datetime.UTC)
    seconds = max(0, int((end - datetime.datetime.fromisoformat(stamp)).total_seconds()))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    return f"{days}d{hours % 24}h" if days < 8 and hours % 24 else f"{days}d"


def _pairs(selector: Json | None) -> str:
    return ",".join(f"{key}={value}" for key, value in (selector or {}).items()) or "<none>"


def _node(node: Json) -> list[Any]:
    status, labels = node.get("status", {}), node["metadata"].get("labels", {})
    ready = {entry["type"]: entry["status"] for entry in status.get("conditions", [])}.get("Ready")
    shown = "Ready" if ready == "True" else "NotReady" if ready else "Unknown"
    shown += ",SchedulingDisabled" if node.get("spec", {}).get("unschedulable") else ""
    roles = ",".join(sorted(key.split("/", 1)[1] for key in labels if key.startswith("node-role.kubernetes.io/"))) or "<none>"
    addresses = {entry["type"]: entry["address"] for entry in status.get("addresses", [])}
    info = status.get("nodeInfo", {})
    return [shown, roles, age(node["metadata"].get("creationTimestamp")), info.get("kubeletVersion", ""),
            addresses.get("InternalIP", "<none>"), addresses.get("ExternalIP", "<none>"),
            *(info.get(key) or "<unknown>" for key in ("osImage", "kernelVersion", "containerRuntimeVersion"))]


def _pod_status(pod: Json) -> str:
    status = pod.get("status", {})
    shown = status.get("reason") or status.get("phase", "Unknown")
    for entry in status.get("conditions", []):
        if entry["type"] == "PodScheduled" and entry.get("reason") == "SchedulingGated":
            shown = "SchedulingGated"
    for container in status.get("containerStatuses", []):
        for state in container.get("state", {}).values():
            if isinstance(state, dict) and state.get("reason"):
                shown = state["reason"]
    if "deletionTimestamp" in pod["metadata"]:
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return str(shown)


def _pod(pod: Json) -> list[Any]:
    status, spec = pod.get("status", {}), pod["spec"]
    states = status.get("containerStatuses", [])
    restarts = sum(entry.get("restartCount", 0) for entry in states)
    return [f"{sum(bool(entry.get('ready')) for entry in states)}/{len(spec['containers'])}", _pod_status(pod), str(restarts),
            age(pod["metadata"].get("creationTimestamp")), status.get("podIP") or "<none>", spec.get("nodeName") or "<none>",
            status.get("nominatedNodeName") or "<none>", "<none>"]


def _template(document: Json) -> list[Any]:
    containers = document["spec"]["template"]["spec"].get("containers", [])
    return [",".join(entry["name"] for entry in containers), ",".join(entry["image"] for entry in containers),
            _pairs(document["spec"].get("selector", {}).get("matchLabels"))]


def _daemonset(document: Json) -> list[Any]:
    status = document.get("status", {})
    numbers = ("desiredNumberScheduled", "currentNumberScheduled", "numberReady", "updatedNumberScheduled", "numberAvailable")
    return [*(status.get(key, 0) for key in numbers), _pairs(document["spec"]["template"]["spec"].get("nodeSelector")),
            age(document["metadata"].get("creationTimestamp")), *_template(document)]


def _job(job: Json) -> list[Any]:
    status = job.get("status", {})
    true = [entry["type"] for entry in status.get("conditions", []) if entry["status"] == "True"]
    shown = next((kind for kind in ("Complete", "Failed", "Suspended", "FailureTarget", "SuccessCriteriaMet") if kind in true), "Running")
    duration = age(status["startTime"], status.get("completionTime")) if "startTime" in status else ""
    return [shown, f"{status.get('succeeded', 0)}/{job['spec'].get('completions', 1)}", duration,
            age(job["metadata"].get("creationTimestamp")), *_template(job)]


def _service(service: Json) -> list[Any]:
    spec = service["spec"]
    ports = ",".join(f"{entry['port']}{':' + str(entry['nodePort']) if 'nodePort' in entry else ''}/{entry.get('protocol', 'TCP')}"
                     for entry in spec.get("ports", [])) or "<none>"
    return [spec.get("type"), spec.get("clusterIP") or "<none>", ",".join(spec.get("externalIPs", [])) or "<none>", ports,
            age(service["metadata"].get("creationTimestamp")), _pairs(spec.get("selector"))]


def _event(event: Json) -> list[Any]:
    about = event.get("involvedObject") or event.get("regarding") or {}
    seen = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp")
    return [age(seen), event.get("type", ""), event.get("reason", ""), f"{about.get('kind', '').lower()}/{about.get('name', '')}",
            about.get("fieldPath", ""), event.get("reportingComponent") or "", (event.get("message") or event.get("note") or "").strip()]


_ROWS: dict[str, Callable[[Json], list[Any]]] = {
    "Node": _node, "Pod": _pod, "DaemonSet": _daemonset, "Job": _job, "Service": _service, "Event": _event,
    "Namespace": lambda d: [d.get("status", {}).get("phase", ""), age(d["metadata"].get("creationTimestamp"))],
    "RuntimeClass": lambda d: [d.get("handler", ""), age(d["metadata"].get("creationTimestamp"))],
    "ConfigMap": lambda d: [len(d.get("data", {})) + len(d.get("binaryData", {})), age(d["metadata"].get("creationTimestamp"))],
    "Secret": lambda d: [d.get("type", ""), len(d.get("data", {})), age(d["metadata"].get("creationTimestamp"))],
    "Lease": lambda d: [d.get("spec", {}).get("holderIdentity", ""), age(d["metadata"].get("creationTimestamp"))],
    "ServiceAccount": lambda d: [age(d["metadata"].get("creationTimestamp"))],
}


def _at(document: Any, path: str) -> Any:
    for key in re.findall(r"[^.\[\]]+", path):
        document = document.get(key) if isinstance(document, dict) else None
    return document


def _custom_cell(document: Json, column: Json) -> Any:
    value = _at(document, column["jsonPath"])
    return age(value) if column["type"] == "date" and value else value


def render(documents: list[Json], resource: Resource, *, revision: str, include: str = "Metadata") -> Json:
    """A Table of the objects; `include`: Metadata, Object or None."""
    name: Json = {"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0}
    if resource.columns:
        definitions = [name, *({"format": "", "description": "", "priority": 0, **{k: v for k, v in column.items() if k != "jsonPath"}}
                               for column in resource.columns)]
    else:
        definitions = [name]
        for text in (_COLUMNS.get(resource.kind) or "Created_At").split():
            definitions.append({"name": text.lstrip("*#").replace("_", " "), "type": "integer" if text.startswith("#") else "string",
                                "format": "", "description": "", "priority": int(text.startswith("*"))})
    rows: list[Json] = []
    for document in documents:
        meta = document["metadata"]
        cells = ([_custom_cell(document, column) for column in resource.columns] if resource.columns
                 else _ROWS[resource.kind](document) if resource.kind in _ROWS else [meta.get("creationTimestamp")])
        row: Json = {"cells": [meta["name"], *cells]}
        if include != "None":
            row["object"] = document if include == "Object" else {
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": meta}
        rows.append(row)
    return {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": revision},
            "columnDefinitions": definitions, "rows": rows}
