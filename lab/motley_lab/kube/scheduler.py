# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The scheduler: which node a Pod goes to, or why none takes it, in the words of the real one."""

from __future__ import annotations

import collections
import datetime
from decimal import Decimal
from typing import Any

from motley_lab.kube.client import STRATEGIC, Cache, Client, ClientError, Json
from motley_lab.kube.schema import quantity
from motley_lab.kube.validate import matches

_AFFINITY = "node(s) didn't match Pod's node affinity/selector"
_HELPLESS = "Preemption is not helpful for scheduling"
_NO_VICTIMS = "No preemption victims found for incoming pod"
Refusal = tuple[str, bool]
"""(reason, whether evicting other Pods could help)"""


def tolerates(tolerations: list[Json], taint: Json) -> bool:
    for entry in tolerations:
        same_key = not entry.get("key") or entry["key"] == taint["key"]
        same_effect = not entry.get("effect") or entry["effect"] == taint.get("effect")
        same_value = entry.get("operator", "Equal") == "Exists" or entry.get("value", "") == taint.get("value", "")
        if same_key and same_effect and same_value:
            return True
    return False


def untolerated(tolerations: list[Json], node: Json, effects: tuple[str, ...] = ("NoSchedule", "NoExecute")) -> list[Json]:
    taints = node.get("spec", {}).get("taints", [])
    return [taint for taint in taints if taint.get("effect") in effects and not tolerates(tolerations, taint)]


def _rule_holds(rule: Json, value: str | None) -> bool:
    values = rule.get("values", [])
    match rule["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists" | "DoesNotExist":
            return (value is not None) == (rule["operator"] == "Exists")
        case "Gt" | "Lt":
            bigger = value is not None and int(value) > int(values[0])
            return bigger if rule["operator"] == "Gt" else value is not None and int(value) < int(values[0])
    return False


def selected(spec: Json, node: Json) -> bool:
    """Whether node selector and required node affinity take the node."""
    labels = node["metadata"].get("labels", {})
    if any(labels.get(key) != value for key, value in spec.get("nodeSelector", {}).items()):
        return False
    terms = _required(spec, "nodeAffinity").get("nodeSelectorTerms", []) if spec.get("affinity") else []
    return not terms or any(
        all(_rule_holds(rule, labels.get(rule["key"])) for rule in term.get("matchExpressions", []))
        and all(_rule_holds(rule, node["metadata"]["name"]) for rule in term.get("matchFields", [])) for term in terms)


def _required(spec: Json, kind: str) -> Any:
    return (spec.get("affinity") or {}).get(kind, {}).get("requiredDuringSchedulingIgnoredDuringExecution", {} if kind == "nodeAffinity" else [])


def requests(spec: Json) -> dict[str, Decimal]:
    """What a Pod asks of a node: sum of its containers, or its largest init container."""
    total: dict[str, Decimal] = collections.defaultdict(Decimal)
    for container in spec["containers"]:
        for name, value in container.get("resources", {}).get("requests", {}).items():
            total[name] += quantity(value)
    for container in spec.get("initContainers", []):
        for name, value in container.get("resources", {}).get("requests", {}).items():
            total[name] = max(total[name], quantity(value))
    for name, value in spec.get("overhead", {}).items():
        total[name] += quantity(value)
    return total


def _ports(spec: Json) -> set[tuple[str, int]]:
    return {(port.get("protocol", "TCP"), port["hostPort"]) for container in spec["containers"]
            for port in container.get("ports", []) if port.get("hostPort")}


def _fit(spec: Json, node: Json, there: list[Json]) -> list[Refusal]:
    allocatable = {name: quantity(value) for name, value in node.get("status", {}).get("allocatable", {}).items()}
    used: dict[str, Decimal] = collections.defaultdict(Decimal)
    for pod in there:
        for name, value in requests(pod["spec"]).items():
            used[name] += value
    found: list[Refusal] = []
    if len(there) + 1 > allocatable.get("pods", 0):
        found.append(("Too many pods", True))
    for name, value in requests(spec).items():
        have = allocatable.get(name, Decimal(0))
        if value and value > have - used[name]:
            found.append((f"Insufficient {name}", value <= have))
    return found


def _interpod(pod: Json, node: Json, nodes: dict[str, Json], pods: list[Json]) -> list[Refusal]:
    def near(other: Json, key: str) -> bool:
        its = nodes.get(other["spec"].get("nodeName", ""))
        mine = node["metadata"].get("labels", {}).get(key)
        return its is not None and mine is not None and its["metadata"].get("labels", {}).get(key) == mine

    def hit(term: Json, owner: Json, other: Json) -> bool:
        spaces = term.get("namespaces") or [owner["metadata"]["namespace"]]
        return other["metadata"]["namespace"] in spaces and matches(term.get("labelSelector", {}), other["metadata"].get("labels", {}))

    for term in _required(pod["spec"], "podAffinity"):
        taken = [other for other in pods if hit(term, pod, other)]
        # The first of a group that wants its own kind near would never start otherwise.
        first = not taken and hit(term, pod, pod)
        if not first and not any(near(other, term["topologyKey"]) for other in taken):
            return [("node(s) didn't match pod affinity rules", False)]
    for term in _required(pod["spec"], "podAntiAffinity"):
        if any(hit(term, pod, other) and near(other, term["topologyKey"]) for other in pods):
            return [("node(s) didn't match pod anti-affinity rules", True)]
    for other in pods:
        if any(hit(term, other, pod) and near(other, term["topologyKey"]) for term in _required(other["spec"], "podAntiAffinity")):
            return [("node(s) didn't satisfy existing pods anti-affinity rules", True)]
    return []


def refusals(pod: Json, node: Json, nodes: dict[str, Json], pods: list[Json]) -> list[Refusal]:
    """Why a node does not take a Pod: the first filter that says no, in the order of the default profile."""
    spec = pod["spec"]
    tolerations = spec.get("tolerations", [])
    there = [other for other in pods if other["spec"].get("nodeName") == node["metadata"]["name"]]
    named = {value for term in (_required(spec, "nodeAffinity") or {}).get("nodeSelectorTerms", [])
             for rule in term.get("matchFields", []) for value in rule.get("values", [])}
    if named and node["metadata"]["name"] not in named:
        return [("node(s) didn't satisfy plugin(s) [NodeAffinity]", False)]
    cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    if node.get("spec", {}).get("unschedulable") and not tolerates(tolerations, cordon):
        return [("node(s) were unschedulable", False)]
    if untolerated(tolerations, node):
        return [("node(s) had untolerated taint(s)", False)]
    if not selected(spec, node):
        return [(_AFFINITY, False)]
    if any(_ports(spec) & _ports(other["spec"]) for other in there):
        return [("node(s) didn't have free ports for the requested pod ports", True)]
    return _fit(spec, node, there) or _interpod(pod, node, nodes, pods)


def _counted(reasons: list[str]) -> str:
    return ", ".join(sorted(f"{count} {reason}" for reason, count in collections.Counter(reasons).items()))


def decide(pod: Json, nodes: dict[str, Json], pods: list[Json], claims: dict[str, Json]) -> tuple[str, str]:
    """(node, "") or ("", why none)."""
    if not nodes:
        return "", "no nodes available to schedule pods"
    total = f"0/{len(nodes)} nodes are available"
    for volume in pod["spec"].get("volumes", []):
        name = volume.get("persistentVolumeClaim", {}).get("claimName")
        if name and name not in claims:
            return "", f'{total}: persistentvolumeclaim "{name}" not found. not found'
        if name and not claims[name]["spec"].get("volumeName"):
            return "", f"{total}: pod has unbound immediate PersistentVolumeClaims. not found"
    said = {name: refusals(pod, node, nodes, pods) for name, node in nodes.items()}
    free = [name for name, reasons in said.items() if not reasons]
    if free:
        load = collections.Counter(other["spec"].get("nodeName") for other in pods)
        return min(free, key=lambda name: (load[name], name)), ""
    helped = [_NO_VICTIMS if all(help_ for _, help_ in reasons) else _HELPLESS for reasons in said.values()]
    reasons = _counted([reason for entry in said.values() for reason, _ in entry])
    return "", f"{total}: {reasons}. no new claims to deallocate, preemption: {total}: {_counted(helped)}."


def active(pod: Json) -> bool:
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")


class Scheduler:
    """Gives every waiting Pod a node, or a condition and an event that say why not."""

    def __init__(self, client: Client, *, pods: Cache, nodes: Cache, claims: Cache) -> None:
        self._client, self._pods, self._nodes, self._claims = client, pods, nodes, claims

    async def sync(self) -> None:
        nodes = {node["metadata"]["name"]: node for node in self._nodes}
        for pod in sorted(self._pods, key=lambda pod: (-pod["spec"].get("priority", 0), pod["metadata"]["creationTimestamp"])):
            spec = pod["spec"]
            if spec.get("nodeName") or spec.get("schedulingGates") or "deletionTimestamp" in pod["metadata"] or not active(pod):
                continue
            if spec.get("schedulerName", "default-scheduler") != "default-scheduler":
                continue
            bound = [other for other in self._pods if other["spec"].get("nodeName") and active(other)]
            claims = {claim["metadata"]["name"]: claim for claim in self._claims
                      if claim["metadata"]["namespace"] == pod["metadata"]["namespace"]}
            node, why = decide(pod, nodes, bound, claims)
            try:
                await (self._bind(pod, node) if node else self._refuse(pod, why))
            except ClientError as error:
                if error.status not in (404, 409):
                    raise

    async def _bind(self, pod: Json, node: str) -> None:
        meta = pod["metadata"]
        await self._client.call("POST", self._pods.url(pod, "/binding"), {
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": meta["name"]}, "target": {"apiVersion": "v1", "kind": "Node", "name": node}})
        self._pods.assume({**pod, "spec": {**pod["spec"], "nodeName": node}})
        await self._client.event(pod, "Normal", "Scheduled", f"Successfully assigned {meta['namespace']}/{meta['name']} to {node}",
                                 action="Binding", component="default-scheduler")

    async def _refuse(self, pod: Json, why: str) -> None:
        old: list[Json] = pod["status"].get("conditions", [])
        if any(entry["type"] == "PodScheduled" and entry.get("message") == why for entry in old):
            return
        condition = {"type": "PodScheduled", "observedGeneration": pod["metadata"].get("generation", 1), "status": "False", "lastProbeTime": None,
                     "lastTransitionTime": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "reason": "Unschedulable",
                     "message": why}
        body = {"status": {"conditions": [condition]}}
        self._pods.assume(await self._client.call("PATCH", self._pods.url(pod, "/status"), body, kind=STRATEGIC))
        await self._client.event(pod, "Warning", "FailedScheduling", why, action="Scheduling", component="default-scheduler")
