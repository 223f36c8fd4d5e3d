# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controllers: namespaces, nodes, DaemonSets, Jobs, endpoints, garbage.

All of them look at the whole of what their caches hold and do what is missing, so a restart loses nothing. They speak to the API over
HTTP only and would do so to a real server: `python -m motley_lab.kube.controllers --kubeconfig FILE`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import copy
import datetime
import hashlib
import json
import pathlib
import ssl
import sys
import time
import traceback
from collections.abc import Awaitable, Callable

import aiohttp

from motley_lab.kube.client import MERGE, STRATEGIC, Cache, Client, ClientError, Json, from_kubeconfig
from motley_lab.kube.scheduler import Scheduler, active, selected, tolerates, untolerated

_RESYNC_S = 1.0
_RETRY_S = 0.2
_BACKOFF_S = (1.0, 10.0)
_CACHED = {
    "pods": ("/api/v1/pods", "v1", "Pod"), "nodes": ("/api/v1/nodes", "v1", "Node"),
    "namespaces": ("/api/v1/namespaces", "v1", "Namespace"), "services": ("/api/v1/services", "v1", "Service"),
    "claims": ("/api/v1/persistentvolumeclaims", "v1", "PersistentVolumeClaim"),
    "accounts": ("/api/v1/serviceaccounts", "v1", "ServiceAccount"),
    "leases": ("/apis/coordination.k8s.io/v1/leases", "coordination.k8s.io/v1", "Lease"),
    "daemonsets": ("/apis/apps/v1/daemonsets", "apps/v1", "DaemonSet"), "jobs": ("/apis/batch/v1/jobs", "batch/v1", "Job"),
    "endpoints": ("/api/v1/endpoints", "v1", "Endpoints"),
}
_DAEMON_TOLERATIONS = [
    *({"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute"} for key in ("not-ready", "unreachable")),
    *({"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoSchedule"} for key in (
        "disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")),
]
_TRACKING = "batch.kubernetes.io/job-tracking"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _conditions(document: Json) -> dict[str, Json]:
    return {entry["type"]: entry for entry in document.get("status", {}).get("conditions", [])}


def _ready(pod: Json) -> bool:
    return _conditions(pod).get("Ready", {}).get("status") == "True"


def _owned(pods: Cache, owner: Json) -> list[Json]:
    uid = owner["metadata"]["uid"]
    return [pod for pod in pods if any(ref["uid"] == uid and ref.get("controller") for ref in pod["metadata"].get("ownerReferences", []))]


class _Controller:
    """What all have: the client, the caches, and how a write is followed up."""

    def __init__(self, client: Client, caches: dict[str, Cache]) -> None:
        self.client, self.caches = client, caches
        self.pods = caches["pods"]
        self._failed: dict[str, tuple[str, float, float]] = {}

    async def sync(self) -> None:
        raise NotImplementedError

    async def patch(self, cache: Cache, document: Json, body: Json, sub: str = "", *, kind: str = MERGE) -> None:
        cache.assume(await self.client.call("PATCH", cache.url(document, sub), body, kind=kind))

    async def delete(self, cache: Cache, document: Json, body: Json | None = None) -> None:
        try:
            left = await self.client.call("DELETE", cache.url(document), {"kind": "DeleteOptions", "apiVersion": "v1", **(body or {})})
        except ClientError as error:
            if error.status not in (404, 409):
                raise
            left = document if error.status == 409 else {}
        if left.get("metadata"):
            cache.assume(left)
        else:
            cache.forget(document)

    async def create_pod(self, owner: Json, body: Json, component: str) -> bool:
        """A Pod of a DaemonSet or Job. A refusal is an event, told once, and tried again ever later."""
        uid = owner["metadata"]["uid"]
        text, until, pause = self._failed.get(uid, ("", 0.0, _BACKOFF_S[0]))
        if time.monotonic() < until:
            return False
        namespace = owner["metadata"]["namespace"]
        try:
            made = await self.client.call("POST", f"/api/v1/namespaces/{namespace}/pods", body)
        except ClientError as error:
            self._failed[uid] = (error.message, time.monotonic() + pause, min(pause * 2, _BACKOFF_S[1]))
            if error.message != text:
                await self.client.event(owner, "Warning", "FailedCreate", f"Error creating: {error.message}", action="Create", component=component)
            return False
        self._failed.pop(uid, None)
        self.pods.assume(made)
        await self.client.event(owner, "Normal", "SuccessfulCreate", f"Created pod: {made['metadata']['name']}", action="Create", component=component)
        return True


def _pod_from(owner: Json, labels: dict[str, str]) -> Json:
    template, meta = copy.deepcopy(owner["spec"]["template"]), owner["metadata"]
    inner = template.get("metadata", {})
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"],
                 "controller": True, "blockOwnerDeletion": True}
    return {"apiVersion": "v1", "kind": "Pod", "spec": template["spec"],
            "metadata": {"generateName": f"{meta['name']}-", "labels": {**inner.get("labels", {}), **labels},
                         **({"annotations": inner["annotations"]} if inner.get("annotations") else {}), "ownerReferences": [reference]}}


class Namespaces(_Controller):
    """Gives every namespace its service account and root certificate; empties the ones that go."""

    def __init__(self, client: Client, caches: dict[str, Cache], ca: str) -> None:
        super().__init__(client, caches)
        self._ca, self._complete = ca, set[str]()

    async def sync(self) -> None:
        for namespace in self.caches["namespaces"]:
            if "deletionTimestamp" in namespace["metadata"]:
                await self._empty(namespace)
            else:
                await self._furnish(namespace)

    async def _furnish(self, namespace: Json) -> None:
        name, uid = namespace["metadata"]["name"], namespace["metadata"]["uid"]
        if self.caches["accounts"].get(name, "default") is not None and uid in self._complete:
            return
        for plural, body in (
                ("serviceaccounts", {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}),
                ("configmaps", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": self._ca}})):
            try:
                made = await self.client.call("POST", f"/api/v1/namespaces/{name}/{plural}", body)
                if plural == "serviceaccounts":
                    self.caches["accounts"].assume(made)
            except ClientError as error:
                if error.status not in (403, 404, 409):
                    raise
        self._complete.add(uid)

    async def _empty(self, namespace: Json) -> None:
        name, left = namespace["metadata"]["name"], 0
        groups = await self.client.call("GET", "/apis")
        paths = ["/api/v1", *(f"/apis/{version['groupVersion']}" for group in groups["groups"] for version in group["versions"])]
        for path in paths:
            for resource in (await self.client.call("GET", path))["resources"]:
                if not resource["namespaced"] or "deletecollection" not in resource["verbs"] or path.startswith("/apis/events"):
                    continue
                gone = await self.client.call("DELETE", f"{path}/namespaces/{name}/{resource['name']}",
                                              {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"})
                left += len(gone.get("items", []))
        if not left:
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}, "spec": {"finalizers": []}}
            await self.client.call("PUT", f"/api/v1/namespaces/{name}/finalize", body)
            self.caches["namespaces"].forget(namespace)
        else:
            self.caches["namespaces"].changed.set()


class Nodes(_Controller):
    """Taints by condition; a node whose lease is not renewed in its own time is no longer ready."""

    def __init__(self, client: Client, caches: dict[str, Cache]) -> None:
        super().__init__(client, caches)
        self._seen: dict[str, tuple[str, float]] = {}

    def _stale(self, node: Json) -> bool:
        """Judged by this process's clock from the last renewal seen; a node without lease never had a kubelet."""
        name = node["metadata"]["name"]
        lease = self.caches["leases"].get("kube-node-lease", name)
        if lease is None:
            return False
        renewed = str(lease["spec"].get("renewTime"))
        known, since = self._seen.get(name, ("", 0.0))
        if known != renewed:
            self._seen[name] = (renewed, since := time.monotonic())
        return time.monotonic() - since > lease["spec"].get("leaseDurationSeconds", 40)

    async def sync(self) -> None:
        for node in self.caches["nodes"]:
            try:
                await self._judge(node)
            except ClientError as error:
                if error.status not in (404, 409):
                    raise
        await self._evict()

    async def _judge(self, node: Json) -> None:
        nodes, ready = self.caches["nodes"], _conditions(node).get("Ready")
        if ready is not None and ready["status"] != "Unknown" and self._stale(node):
            ready = {**ready, "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status.",
                     "lastTransitionTime": _now()}
            await self.patch(nodes, node, {"status": {"conditions": [ready]}}, "/status", kind=STRATEGIC)
            await self.client.event(node, "Normal", "NodeNotReady", f"Node {node['metadata']['name']} status is now: NodeNotReady",
                                    action="NodeNotReady", component="node-controller")
            await self._pods_not_ready(node)
        status = (ready or {}).get("status")
        bad = {None: "not-ready", "False": "not-ready", "Unknown": "unreachable"}.get(status, "")
        wanted = [(f"node.kubernetes.io/{bad}", effect) for effect in ("NoSchedule", "NoExecute") if bad and (ready or effect == "NoSchedule")]
        if node.get("spec", {}).get("unschedulable"):
            wanted.append(("node.kubernetes.io/unschedulable", "NoSchedule"))
        managed = tuple(f"node.kubernetes.io/{key}" for key in ("not-ready", "unreachable", "unschedulable"))
        old: list[Json] = node.get("spec", {}).get("taints", [])
        kept = [taint for taint in old if taint["key"] not in managed or (taint["key"], taint["effect"]) in wanted]
        have = {(taint["key"], taint["effect"]) for taint in kept}
        kept += [{"key": key, "effect": effect, "timeAdded": _now()} for key, effect in wanted if (key, effect) not in have]
        body: Json = {"spec": {"taints": kept}} if kept != old else {}
        if "node.alpha.kubernetes.io/ttl" not in node["metadata"].get("annotations", {}):
            body["metadata"] = {"annotations": {"node.alpha.kubernetes.io/ttl": "0"}}
        if body:
            version = {"resourceVersion": node["metadata"]["resourceVersion"]} if "spec" in body else {}
            await self.patch(nodes, node, {**body, "metadata": {**body.get("metadata", {}), **version}})

    async def _pods_not_ready(self, node: Json) -> None:
        for pod in self.pods:
            if pod["spec"].get("nodeName") == node["metadata"]["name"] and _ready(pod):
                change = {"type": "Ready", "status": "False", "reason": "NodeNotReady", "lastTransitionTime": _now()}
                await self.patch(self.pods, pod, {"status": {"conditions": [change]}}, "/status", kind=STRATEGIC)

    async def _evict(self) -> None:
        """NoExecute taints, and Pods whose node is gone."""
        for pod in self.pods:
            name = pod["spec"].get("nodeName")
            node = self.caches["nodes"].get("", name) if name else None
            if name and node is None:
                await self.delete(self.pods, pod, {"gracePeriodSeconds": 0})
            if node is None or "deletionTimestamp" in pod["metadata"]:
                continue
            for taint in (entry for entry in node.get("spec", {}).get("taints", []) if entry.get("effect") == "NoExecute"):
                limits = [entry.get("tolerationSeconds") for entry in pod["spec"].get("tolerations", []) if tolerates([entry], taint)]
                since = datetime.datetime.fromisoformat(taint.get("timeAdded") or _now())
                age = (datetime.datetime.now(datetime.UTC) - since).total_seconds()
                if not limits or (None not in limits and age > min(limit for limit in limits if limit is not None)):
                    await self.delete(self.pods, pod)
                    break


class DaemonSets(_Controller):
    async def sync(self) -> None:
        for daemon in self.caches["daemonsets"]:
            if "deletionTimestamp" not in daemon["metadata"]:
                await self._manage(daemon)

    async def _manage(self, daemon: Json) -> None:
        spec, component = daemon["spec"]["template"]["spec"], "daemonset-controller"
        tolerations = [*spec.get("tolerations", []), *_DAEMON_TOLERATIONS]
        if spec.get("hostNetwork"):
            tolerations.append({"key": "node.kubernetes.io/network-unavailable", "operator": "Exists", "effect": "NoSchedule"})
        digest = hashlib.sha256(json.dumps(daemon["spec"]["template"], sort_keys=True).encode()).hexdigest()[:9]
        wanted = {node["metadata"]["name"] for node in self.caches["nodes"] if selected(spec, node) and not untolerated(tolerations, node)}
        may_stay = {node["metadata"]["name"] for node in self.caches["nodes"]
                    if selected(spec, node) and not untolerated(tolerations, node, ("NoExecute",))}
        by_node: dict[str, list[Json]] = {}
        for pod in _owned(self.pods, daemon):
            by_node.setdefault(_home(pod), []).append(pod)
        for node, pods in by_node.items():
            for pod in pods:
                if "deletionTimestamp" not in pod["metadata"] and (node not in may_stay or not active(pod)):
                    await self.delete(self.pods, pod)
        await self._replace_old(daemon, by_node, digest)
        for node in sorted(wanted):
            if not any(pod for pod in by_node.get(node, []) if active(pod)):
                body = _pod_from(daemon, {"controller-revision-hash": digest, "pod-template-generation": str(daemon["metadata"]["generation"])})
                body["spec"]["tolerations"] = tolerations
                terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
                affinity = body["spec"].setdefault("affinity", {}).setdefault("nodeAffinity", {})
                affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
                if not await self.create_pod(daemon, body, component):
                    break
        await self._report(daemon, wanted, digest)

    async def _replace_old(self, daemon: Json, by_node: dict[str, list[Json]], digest: str) -> None:
        strategy = daemon["spec"].get("updateStrategy", {})
        if strategy.get("type") == "OnDelete":
            return
        every = [pod for pods in by_node.values() for pod in pods if active(pod)]
        budget = strategy.get("rollingUpdate", {}).get("maxUnavailable", 1)
        budget = -(-int(budget[:-1]) * len(every) // 100) if isinstance(budget, str) else budget
        room = budget - sum(not _ready(pod) for pod in every)
        for pod in every:
            if pod["metadata"]["labels"].get("controller-revision-hash") == digest or "deletionTimestamp" in pod["metadata"]:
                continue
            if _ready(pod):
                room -= 1
                if room < 0:
                    continue
            await self.delete(self.pods, pod)

    async def _report(self, daemon: Json, wanted: set[str], digest: str) -> None:
        pods = [pod for pod in _owned(self.pods, daemon) if active(pod) and "deletionTimestamp" not in pod["metadata"]]
        here = [pod for pod in pods if _home(pod) in wanted]
        ready = sum(map(_ready, here))
        status = {"currentNumberScheduled": len({_home(pod) for pod in here}), "numberMisscheduled": len(pods) - len(here),
                  "desiredNumberScheduled": len(wanted), "numberReady": ready, "observedGeneration": daemon["metadata"]["generation"],
                  "updatedNumberScheduled": sum(pod["metadata"]["labels"].get("controller-revision-hash") == digest for pod in here),
                  "numberAvailable": ready, "numberUnavailable": len(wanted) - ready}
        body = {key: value if value or key in ("currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady") else None
                for key, value in status.items()}
        if {k: v for k, v in body.items() if v is not None} != daemon.get("status"):
            await self.patch(self.caches["daemonsets"], daemon, {"status": body}, "/status")


def _home(pod: Json) -> str:
    """The node that a DaemonSet's Pod is for, also before it is scheduled."""
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
    for term in affinity.get("nodeSelectorTerms", []):
        for rule in term.get("matchFields", []):
            return str(rule["values"][0])
    return str(pod["spec"].get("nodeName", ""))


class Jobs(_Controller):
    async def sync(self) -> None:
        jobs = {job["metadata"]["uid"]: job for job in self.caches["jobs"]}
        for job in jobs.values():
            if "deletionTimestamp" not in job["metadata"]:
                await self._manage(job)
        for pod in self.pods:
            owners = {ref["uid"] for ref in pod["metadata"].get("ownerReferences", []) if ref["kind"] == "Job"}
            alone = not owners & jobs.keys() or "deletionTimestamp" in pod["metadata"]
            if _TRACKING in pod["metadata"].get("finalizers", []) and (alone or not active(pod)):
                kept = [name for name in pod["metadata"]["finalizers"] if name != _TRACKING]
                await self.patch(self.pods, pod, {"metadata": {"finalizers": kept or None}})

    async def _manage(self, job: Json) -> None:
        if {"Complete", "Failed"} & _conditions(job).keys() or job["spec"].get("suspend"):
            await self._expire(job)
            return
        spec, old = job["spec"], job.get("status", {})
        pods = _owned(self.pods, job)
        succeeded = max(sum(pod["status"].get("phase") == "Succeeded" for pod in pods), old.get("succeeded", 0))
        failed = max(sum(pod["status"].get("phase") == "Failed" for pod in pods), old.get("failed", 0))
        running = [pod for pod in pods if active(pod) and "deletionTimestamp" not in pod["metadata"]]
        completions = spec.get("completions", 1)
        status: Json = {"startTime": old.get("startTime") or _now(), "active": len(running) or None, "ready": sum(map(_ready, running)),
                        "terminating": sum(active(pod) and "deletionTimestamp" in pod["metadata"] for pod in pods), "uncountedTerminatedPods": {},
                        "succeeded": succeeded or None, "failed": failed or None}
        reason = self._verdict(job, status, failed)
        if succeeded >= completions:
            await self._end(job, status, running, ("SuccessCriteriaMet", "Complete"), "CompletionsReached",
                            "Reached expected number of succeeded pods")
        elif reason:
            await self._end(job, status, running, ("FailureTarget", "Failed"), *reason)
        else:
            for _ in range(min(spec.get("parallelism", 1), completions - succeeded) - len(running)):
                body = _pod_from(job, {})
                body["metadata"]["finalizers"] = [_TRACKING]
                if not await self.create_pod(job, body, "job-controller"):
                    break
                status["active"] = (status["active"] or 0) + 1
            await self._report(job, status)

    @staticmethod
    def _verdict(job: Json, status: Json, failed: int) -> tuple[str, str] | None:
        if failed > job["spec"].get("backoffLimit", 6):
            return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        limit = job["spec"].get("activeDeadlineSeconds")
        age = (datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(status["startTime"])).total_seconds()
        return ("DeadlineExceeded", "Job was active longer than specified deadline") if limit and age > limit else None

    async def _end(self, job: Json, status: Json, running: list[Json], kinds: tuple[str, str], reason: str, message: str) -> None:
        for pod in running:
            await self.delete(self.pods, pod)
        stamp, good = _now(), kinds[1] == "Complete"
        status |= {"active": None, "ready": 0, "conditions": [
            {"type": kind, "status": "True", "lastProbeTime": stamp, "lastTransitionTime": stamp, "reason": reason, "message": message}
            for kind in kinds], **({"completionTime": stamp} if good else {})}
        await self._report(job, status)
        await self.client.event(job, "Normal" if good else "Warning", "Completed" if good else reason, "Job completed" if good else message,
                                action="Complete", component="job-controller")

    async def _report(self, job: Json, status: Json) -> None:
        if {k: v for k, v in status.items() if v is not None} != {key: value for key, value in job.get("status", {}).items()}:
            await self.patch(self.caches["jobs"], job, {"status": status}, "/status")

    async def _expire(self, job: Json) -> None:
        limit = job["spec"].get("ttlSecondsAfterFinished")
        ended = max((entry["lastTransitionTime"] for entry in _conditions(job).values()), default=None)
        if limit is None or ended is None:
            return
        if (datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(ended)).total_seconds() >= limit:
            await self.delete(self.caches["jobs"], job, {"propagationPolicy": "Background"})


class ServiceEndpoints(_Controller):
    """The addresses behind every Service with a selector."""

    async def sync(self) -> None:
        cache = self.caches["endpoints"]
        for service in self.caches["services"]:
            meta, spec = service["metadata"], service["spec"]
            if not spec.get("selector") or "deletionTimestamp" in meta:
                continue
            pods = [pod for pod in self.pods if pod["metadata"]["namespace"] == meta["namespace"] and pod["status"].get("podIP") and active(pod)
                    and spec["selector"].items() <= pod["metadata"].get("labels", {}).items() and "deletionTimestamp" not in pod["metadata"]]
            groups: Json = {"addresses": [pod for pod in pods if _ready(pod)], "notReadyAddresses": [pod for pod in pods if not _ready(pod)]}
            subset = {kind: [_address(pod) for pod in found] for kind, found in groups.items() if found}
            ports = [{key: port[key] for key in ("name", "protocol") if key in port} | {"port": _port(port, pods)} for port in spec.get("ports", [])]
            subsets = [{**subset, "ports": ports}] if subset else []
            old = cache.get(meta["namespace"], meta["name"])
            body = {"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": meta["name"], "namespace": meta["namespace"]}, "subsets": subsets}
            try:
                if old is None:
                    cache.assume(await self.client.call("POST", f"/api/v1/namespaces/{meta['namespace']}/endpoints", body))
                elif old.get("subsets", []) != subsets:
                    await self.patch(cache, old, {"subsets": subsets or None})
            except ClientError as error:
                if error.status not in (403, 404, 409):
                    raise
        for old in cache:
            if self.caches["services"].get(old["metadata"]["namespace"], old["metadata"]["name"]) is None:
                await self.delete(cache, old)


def _address(pod: Json) -> Json:
    meta = pod["metadata"]
    return {"ip": pod["status"]["podIP"], "nodeName": pod["spec"].get("nodeName"),
            "targetRef": {"kind": "Pod", "namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]}}


def _port(port: Json, pods: list[Json]) -> int:
    target = port.get("targetPort", port["port"])
    if isinstance(target, int):
        return target
    named = (entry["containerPort"] for pod in pods for container in pod["spec"]["containers"] for entry in container.get("ports", [])
             if entry.get("name") == target)
    return next(named, port["port"])


class Garbage(_Controller):
    """Objects whose owners are gone go too; foreground deletion waits for them, orphaning lets them stay."""

    def __init__(self, client: Client, caches: dict[str, Cache]) -> None:
        super().__init__(client, caches)
        self._places: dict[tuple[str, str], tuple[str, bool]] = {}

    async def sync(self) -> None:
        objects = [(cache, entry) for name, cache in self.caches.items() if name not in ("nodes", "namespaces", "leases") for entry in cache]
        dependents: dict[str, list[tuple[Cache, Json]]] = {}
        for cache, entry in objects:
            for reference in entry["metadata"].get("ownerReferences", []):
                dependents.setdefault(reference["uid"], []).append((cache, entry))
        for cache, entry in objects:
            await self._finish(cache, entry, dependents.get(entry["metadata"]["uid"], []))
        for cache, listed in objects:
            # As it is now, not as it was before what was just orphaned.
            namespace = listed["metadata"].get("namespace", "")
            entry = cache.get(namespace, listed["metadata"]["name"]) or {"metadata": {"deletionTimestamp": ""}}
            if "deletionTimestamp" in entry["metadata"]:
                continue
            references = entry["metadata"].get("ownerReferences", [])
            if references and not any([await self._alive(namespace, reference) for reference in references]):
                same = {key: entry["metadata"][key] for key in ("uid", "resourceVersion")}
                await self.delete(cache, entry, {"propagationPolicy": "Background", "preconditions": same})

    async def _finish(self, cache: Cache, owner: Json, dependents: list[tuple[Cache, Json]]) -> None:
        finalizers = owner["metadata"].get("finalizers", [])
        mode = next((name for name in ("orphan", "foregroundDeletion") if name in finalizers), None)
        if mode is None or "deletionTimestamp" not in owner["metadata"]:
            return
        for at, entry in dependents:
            if mode == "orphan":
                kept = [ref for ref in entry["metadata"]["ownerReferences"] if ref["uid"] != owner["metadata"]["uid"]]
                await self.patch(at, entry, {"metadata": {"ownerReferences": kept or None}})
            elif "deletionTimestamp" not in entry["metadata"]:
                await self.delete(at, entry, {"propagationPolicy": "Background"})
        if mode == "orphan" or not dependents:
            await self.patch(cache, owner, {"metadata": {"finalizers": [name for name in finalizers if name != mode] or None}})

    async def _alive(self, namespace: str, reference: Json) -> bool:
        kind = (reference["apiVersion"], reference["kind"])
        for cache in self.caches.values():
            for found in (cache.get(namespace, reference["name"]), cache.get("", reference["name"])):
                if found is not None and (found["apiVersion"], found["kind"]) == kind:
                    return bool(found["metadata"]["uid"] == reference["uid"])
        root = "/api/v1" if "/" not in kind[0] else f"/apis/{kind[0]}"
        try:
            if kind not in self._places:
                for resource in (await self.client.call("GET", root))["resources"]:
                    if "/" not in resource["name"]:
                        self._places[(kind[0], resource["kind"])] = (resource["name"], resource["namespaced"])
            plural, namespaced = self._places[kind]
            found = await self.client.call("GET", f"{root}/namespaces/{namespace}/{plural}/{reference['name']}" if namespaced else
                                           f"{root}/{plural}/{reference['name']}")
        except ClientError as error:
            if error.status == 404:
                return False
            raise
        except KeyError:
            return True
        return bool(found["metadata"]["uid"] == reference["uid"])


async def _keep(name: str, sync: Callable[[], Awaitable[None]], wake: asyncio.Event) -> None:
    """Call `sync` whenever something changed, and once a second for what depends on time."""
    while True:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(wake.wait(), _RESYNC_S)
        wake.clear()
        try:
            await sync()
        except (ClientError, aiohttp.ClientError, OSError, TimeoutError) as error:
            sys.stderr.write(f"{_now()} {name}: {error}\n")
            await asyncio.sleep(_RETRY_S)
        except Exception:  # one odd object must not stop all that the others need
            sys.stderr.write(f"{_now()} {name}: {traceback.format_exc()}")
            await asyncio.sleep(_RETRY_S)


async def _run(clients: tuple[Client, Client], ca: str) -> None:
    client, scheduling = clients
    caches = {name: Cache(client, *what) for name, what in _CACHED.items()}
    scheduler = Scheduler(scheduling, pods=caches["pods"], nodes=caches["nodes"], claims=caches["claims"])
    syncs: dict[str, Callable[[], Awaitable[None]]] = {
        "scheduler": scheduler.sync, "namespaces": Namespaces(client, caches, ca).sync, "nodes": Nodes(client, caches).sync,
        "daemonsets": DaemonSets(client, caches).sync, "jobs": Jobs(client, caches).sync,
        "endpoints": ServiceEndpoints(client, caches).sync, "garbage": Garbage(client, caches).sync}
    wakes = {name: asyncio.Event() for name in syncs}

    async def spread(cache: Cache) -> None:
        while True:
            await cache.changed.wait()
            cache.changed.clear()
            for wake in wakes.values():
                wake.set()

    async with asyncio.TaskGroup() as group:
        for cache in caches.values():
            group.create_task(cache.run())
        await asyncio.gather(*(cache.ready.wait() for cache in caches.values()))
        for cache in caches.values():
            group.create_task(spread(cache))
        for name, sync in syncs.items():
            group.create_task(_keep(name, sync, wakes[name]))


async def run_all(server: str, *, token: str, context: ssl.SSLContext, ca: str = "") -> None:
    """Scheduler and controllers against a server, until cancelled."""
    clients = tuple(Client(server, context=context, token=token, agent=agent) for agent in ("kube-controller-manager/lab", "kube-scheduler/lab"))
    try:
        await _run((clients[0], clients[1]), ca)
    finally:
        await asyncio.gather(*(client.close() for client in clients))


async def _against(kubeconfig: pathlib.Path) -> None:
    clients = [from_kubeconfig(kubeconfig, agent) for agent in ("kube-controller-manager/lab", "kube-scheduler/lab")]
    try:
        await _run((clients[0], clients[1]), "")
    finally:
        await asyncio.gather(*(client.close() for client in clients))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The lab's scheduler and controllers, against any API server.")
    parser.add_argument("--kubeconfig", type=pathlib.Path, required=True)
    asyncio.run(_against(parser.parse_args(argv).kubeconfig))
    return 0


if __name__ == "__main__":
    sys.exit(main())
