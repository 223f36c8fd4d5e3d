# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The server at work: objects, watches, custom resources, controllers, restart."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import pathlib
import ssl
import time
import urllib.request
from typing import Any

import pytest
from motley_lab.kube.api import Api, Options, Target
from motley_lab.kube.controllers import _keep
from motley_lab.kube.errors import ApiError
from motley_lab.kube.store import Store

from .conftest import POD, TOKEN, Cluster, Json

MERGE = "application/merge-patch+json"


@pytest.fixture(scope="module")
def space(cluster: Cluster) -> str:
    return cluster.namespace("objects")


def _config(name: str, **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def test_apply_twice_changes_nothing(cluster: Cluster, space: str) -> None:
    body = copy.deepcopy(POD)
    body["metadata"] = {"name": "applied", "labels": {"a": "b"}}
    body["spec"]["containers"][0] |= {"resources": {"limits": {"cpu": "1000m", "nvidia.com/gpu": 1}}, "env": [{"name": "A", "value": ""}]}
    first, second = (cluster.apply(f"{space}/pods/applied", body, more="&fieldValidation=Strict") for _ in range(2))
    cluster.call("DELETE", f"{space}/pods/applied")
    assert (first.status, second.status) == (201, 200)
    assert first["spec"] == second["spec"]
    assert [e["manager"] for e in second["metadata"]["managedFields"] if e["operation"] == "Apply"] == ["motley"]
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"a": "1"}}
    first, second = (cluster.apply(f"{space}/secrets/s", secret) for _ in range(2))
    assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]
    assert second["data"] == {"a": "MQ=="}


def test_dry_run_stores_nothing(cluster: Cluster, space: str) -> None:
    for answer in (cluster.apply(f"{space}/configmaps/dry", _config("dry", a="1"), more="&dryRun=All"),
                   cluster.call("POST", f"{space}/configmaps?dryRun=All", _config("dry", a="1"))):
        assert answer.status == 201
        assert "resourceVersion" not in answer["metadata"]
    assert cluster.call("GET", f"{space}/configmaps/dry").status == 404


def test_an_old_resource_version_conflicts(cluster: Cluster, space: str) -> None:
    made = cluster.call("POST", f"{space}/configmaps", _config("cas", a="1"))
    assert cluster.call("PUT", f"{space}/configmaps/cas", {**made, "data": {"a": "2"}}).status == 200
    answer = cluster.call("PUT", f"{space}/configmaps/cas", {**made, "data": {"a": "3"}})
    assert (answer.status, answer["message"]) == (409, 'Operation cannot be fulfilled on configmaps "cas": the object has been modified; '
                                                  "please apply your changes to the latest version and try again")


@pytest.mark.parametrize(("containers", "message"), [
    ([{"name": "c", "imag": "i"}], '.spec.containers[name="c"].imag: field not declared in schema'),
    ([{"name": "c", "env": [{"name": "P", "value": 587}]}],
     '.spec.containers[name="c"].env[name="P"].value: expected string, got &value.valueUnstructured{Value:587}'),
    ([{"image": "i"}], '.spec.containers: element 0: associative list with keys has an element that omits key field "name"'),
    ([{"name": "c", "env": [{"name": "A"}, {"name": "A"}]}], '.spec.containers[name="c"].env: duplicate entries for key [name="A"]'),
    ([{"name": "c", "args": "x", "tty": 1}], 'errors:\n  .spec.containers[name="c"].args: expected list, got &value.valueUnstructured{Value:"x"}\n'
     '  .spec.containers[name="c"].tty: expected boolean, got &value.valueUnstructured{Value:1}'),
])
def test_what_does_not_fit_its_type_in_an_apply_is_an_internal_error(cluster: Cluster, space: str, containers: list[Json], message: str) -> None:
    body = {**POD, "metadata": {"name": "x", "namespace": "objects"}, "spec": {"containers": containers}}
    answer = cluster.apply(f"{space}/pods/x", body)
    assert (answer.status, answer["message"]) == (500, f"failed to create typed patch object (objects/x; /v1, Kind=Pod): {message}")


@pytest.mark.parametrize(("query", "names"), [
    ("labelSelector=a%3D1", ["sel-1"]), ("labelSelector=a+in+(1,2)", ["sel-1", "sel-2"]), ("labelSelector=a,a!%3D1", ["sel-2"]),
    ("labelSelector=!a,kind%3Dsel", ["sel-3"]), ("fieldSelector=metadata.name%3Dsel-2", ["sel-2"]),
    ("labelSelector=kind%3Dsel&fieldSelector=metadata.name!%3Dsel-2", ["sel-1", "sel-3"]), ("labelSelector=kind%3Dsel&limit=2", ["sel-1", "sel-2"]),
])
def test_selectors(cluster: Cluster, space: str, query: str, names: list[str]) -> None:
    for name, labels in (("sel-1", {"a": "1"}), ("sel-2", {"a": "2"}), ("sel-3", {})):
        body = _config(name)
        body["metadata"]["labels"] = {"kind": "sel", **labels}
        cluster.call("POST", f"{space}/configmaps", body)
    assert [entry["metadata"]["name"] for entry in cluster.call("GET", f"{space}/configmaps?{query}")["items"]] == names


def _watch(cluster: Cluster, path: str, count: int) -> list[tuple[str, str]]:
    request = urllib.request.Request(f"{cluster.server}{path}", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, context=cluster._context, timeout=5) as lines:
        return [(event["type"], event["object"]["metadata"].get("name", "")) for event in map(json.loads, itertools.islice(lines, count))]


def test_watch_from_a_revision_sees_what_a_selector_gains_and_loses(cluster: Cluster, space: str) -> None:
    start = cluster.call("GET", f"{space}/configmaps")["metadata"]["resourceVersion"]
    cluster.call("POST", f"{space}/configmaps", _config("w"))
    for value in ("1", None):
        cluster.call("PATCH", f"{space}/configmaps/w", {"metadata": {"labels": {"w": value}}}, kind=MERGE)
    cluster.call("DELETE", f"{space}/configmaps/w")
    where = f"{space}/configmaps?watch=1&resourceVersion={start}"
    assert _watch(cluster, where, 4) == [("ADDED", "w"), ("MODIFIED", "w"), ("MODIFIED", "w"), ("DELETED", "w")]
    assert _watch(cluster, f"{where}&labelSelector=w", 2) == [("ADDED", "w"), ("DELETED", "w")]
    assert _watch(cluster, f"{space}/serviceaccounts?watch=1&sendInitialEvents=true", 2) == [("ADDED", "default"), ("BOOKMARK", "")]
    assert cluster.call("GET", f"{space}/configmaps?watch=1&resourceVersion=1").status == 410


def test_tables_and_discovery(cluster: Cluster) -> None:
    table = cluster.call("GET", "/api/v1/namespaces/objects", accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Status", "Age"]
    assert table["rows"][0]["cells"][:2] == ["objects", "Active"]
    groups = cluster.call("GET", "/apis", accept="application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json")
    assert {item["metadata"]["name"] for item in groups["items"]} >= {"apps", "batch", "node.k8s.io"}
    assert cluster.call("GET", "/version")["gitVersion"].startswith("v1.36.")


def test_custom_resources(cluster: Cluster, space: str) -> None:
    schema = {"type": "object", "properties": {
        "spec": {"type": "object", "required": ["size"], "properties": {
            "size": {"type": "integer", "minimum": 1}, "mode": {"type": "string", "default": "fast", "enum": ["fast", "slow"]}}},
        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}
    names = {"plural": "rings", "kind": "Ring", "shortNames": ["rg"]}
    version = {"name": "v1", "served": True, "storage": True, "subresources": {"status": {}}, "schema": {"openAPIV3Schema": schema}}
    body = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "rings.lab.dev"},
            "spec": {"group": "lab.dev", "scope": "Namespaced", "names": names, "versions": [version]}}
    definitions, path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", f"/apis/lab.dev/v1{space[7:]}/rings"
    made = cluster.call("POST", definitions, body)
    assert {entry["type"]: entry["status"] for entry in made["status"]["conditions"]} == {"NamesAccepted": "True", "Established": "True"}
    ring: Json = {"apiVersion": "lab.dev/v1", "kind": "Ring", "metadata": {"name": "r"}, "spec": {"size": 2}}
    assert cluster.apply(f"{path}/r", ring)["spec"] == {"size": 2, "mode": "fast"}
    status = cluster.call("PATCH", f"{path}/r/status", {"status": {"x": 1}, "spec": {"size": 9}}, kind=MERGE)
    assert (status["status"], status["spec"]["size"]) == ({"x": 1}, 2)
    wrong = cluster.call("POST", path, {**ring, "metadata": {"name": "w"}, "spec": {"size": "2", "mode": "odd"}})
    assert wrong["message"] == ('Ring.lab.dev "w" is invalid: [spec.size: Invalid value: "string": spec.size in body must be of type integer: "string", '
                                'spec.mode: Unsupported value: "odd": supported values: "fast", "slow"]')
    assert cluster.call("POST", path, {**ring, "metadata": {"name": "w"}, "spec": {}})["message"].endswith("spec.size: Required value")
    cluster.call("DELETE", f"{definitions}/rings.lab.dev")
    assert cluster.call("GET", path).status == 404


def test_daemonset_places_replaces_and_reports(cluster: Cluster, space: str) -> None:
    cluster.node("ds-1")
    cluster.node("ds-2")
    cluster.call("PATCH", "/api/v1/nodes/ds-2", {"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}, kind=MERGE)
    path = f"/apis/apps/v1{space[7:]}/daemonsets"
    template: Json = {"metadata": {"labels": {"a": "b"}}, "spec": {**POD["spec"], "runtimeClassName": "late"}}
    body = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "ds"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}}
    assert cluster.call("POST", path, body).status == 201
    events = f"{space}/events?fieldSelector=involvedObject.name%3Dds"
    refused = cluster.until(lambda: cluster.call("GET", events)["items"])[0]
    assert (refused["reason"], refused["message"]) == (
        "FailedCreate", 'Error creating: pods "ds-" is forbidden: pod rejected: RuntimeClass "late" not found')
    cluster.call("POST", "/apis/node.k8s.io/v1/runtimeclasses", {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
                                                                 "metadata": {"name": "late"}, "handler": "x"})
    status = cluster.until(lambda: (s := cluster.call("GET", f"{path}/ds")["status"]).get("currentNumberScheduled") and s)
    assert (status["desiredNumberScheduled"], status["numberUnavailable"]) == (1, 1)

    def pods() -> dict[str, str]:
        return {p["spec"].get("nodeName", ""): p["spec"]["containers"][0]["image"] for p in cluster.call("GET", f"{space}/pods?labelSelector=a%3Db")["items"]
                if "deletionTimestamp" not in p["metadata"]}

    assert cluster.until(lambda: pods() == {"ds-1": "busybox:1"})
    change = {"spec": {"template": {"spec": {"tolerations": [{"operator": "Exists"}], "containers": [{"name": "c", "image": "busybox:2"}]}}}}
    assert cluster.call("PATCH", f"{path}/ds", change, kind="application/strategic-merge-patch+json")["metadata"]["generation"] == 2

    def kubelet() -> bool:
        """Ends the deleted Pods, as a kubelet does."""
        for pod in cluster.call("GET", f"{space}/pods?labelSelector=a%3Db")["items"]:
            if "deletionTimestamp" in pod["metadata"]:
                cluster.call("DELETE", f"{space}/pods/{pod['metadata']['name']}?gracePeriodSeconds=0")
        return pods() == {"ds-1": "busybox:2", "ds-2": "busybox:2"}

    cluster.until(kubelet)
    cluster.call("DELETE", f"{path}/ds")
    cluster.until(lambda: not pods())
    for name in ("ds-1", "ds-2"):
        cluster.call("DELETE", f"/api/v1/nodes/{name}")
    cluster.until(lambda: not cluster.call("GET", f"{space}/pods?labelSelector=a%3Db")["items"])


@pytest.mark.parametrize(("phase", "conditions"), [
    ("Succeeded", [("SuccessCriteriaMet", "CompletionsReached"), ("Complete", "CompletionsReached")]),
    ("Failed", [("FailureTarget", "BackoffLimitExceeded"), ("Failed", "BackoffLimitExceeded")]),
])
def test_job(cluster: Cluster, space: str, phase: str, conditions: list[tuple[str, str]]) -> None:
    name = f"job-{phase.lower()}"
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
            "spec": {"backoffLimit": 0, "template": {"spec": {**POD["spec"], "restartPolicy": "Never"}}}}
    path = f"/apis/batch/v1{space[7:]}/jobs"
    assert cluster.call("POST", path, body).status == 201
    mine = f"{space}/pods?labelSelector=job-name%3D{name}"
    pod = cluster.until(lambda: cluster.call("GET", mine)["items"])[0]["metadata"]["name"]
    assert cluster.until(lambda: cluster.call("GET", f"{path}/{name}")["status"].get("active")) == 1
    cluster.call("PATCH", f"{space}/pods/{pod}/status", {"status": {"phase": phase}}, kind=MERGE)
    status = cluster.until(lambda: (s := cluster.call("GET", f"{path}/{name}")["status"]).get("conditions") and s)
    assert [(entry["type"], entry["reason"]) for entry in status["conditions"]] == conditions
    cluster.until(lambda: "finalizers" not in cluster.call("GET", mine)["items"][0]["metadata"])
    cluster.call("DELETE", f"{path}/{name}?propagationPolicy=Background")
    cluster.until(lambda: not cluster.call("GET", mine)["items"])


def test_owners_in_the_foreground_and_orphans(cluster: Cluster, space: str) -> None:
    def job(name: str) -> str:
        body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
                "spec": {"template": {"spec": {**POD["spec"], "restartPolicy": "Never"}}}}
        cluster.call("POST", f"/apis/batch/v1{space[7:]}/jobs", body)
        cluster.until(lambda: cluster.call("GET", f"{space}/pods?labelSelector=job-name%3D{name}")["items"])
        return f"/apis/batch/v1{space[7:]}/jobs/{name}"

    waiting = job("gc-fg")
    assert cluster.call("DELETE", f"{waiting}?propagationPolicy=Foreground")["metadata"]["finalizers"] == ["foregroundDeletion"]
    cluster.until(lambda: cluster.call("GET", waiting).status == 404)
    assert not cluster.call("GET", f"{space}/pods?labelSelector=job-name%3Dgc-fg")["items"]
    answer = cluster.call("DELETE", job("gc-orphan"))
    assert "child pods are preserved by default when jobs are deleted" in answer.warnings[0]
    cluster.until(lambda: cluster.call("GET", f"/apis/batch/v1{space[7:]}/jobs/gc-orphan").status == 404)
    left = cluster.call("GET", f"{space}/pods?labelSelector=job-name%3Dgc-orphan")["items"]
    assert len(left) == 1 and "ownerReferences" not in left[0]["metadata"]
    cluster.call("DELETE", f"{space}/pods/{left[0]['metadata']['name']}")


def test_a_node_that_is_silent_is_not_ready(cluster: Cluster, space: str) -> None:
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "silent"},
             "spec": {"leaseDurationSeconds": 1, "renewTime": "2026-01-01T00:00:00.000000Z"}}
    cluster.node("silent")
    body = copy.deepcopy(POD)
    body["metadata"]["name"] = "on-silent"
    body["spec"]["nodeName"] = "silent"
    cluster.call("POST", f"{space}/pods", body)
    ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    cluster.call("PATCH", f"{space}/pods/on-silent/status", ready, kind=MERGE)
    cluster.call("POST", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", lease)
    node = cluster.until(lambda: (n := cluster.call("GET", "/api/v1/nodes/silent"))["spec"].get("taints") and n)
    condition = node["status"]["conditions"][-1]
    assert (condition["status"], condition["reason"], condition["message"]) == (
        "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
    assert [(t["key"], t["effect"]) for t in node["spec"]["taints"]] == [
        ("node.kubernetes.io/unreachable", "NoSchedule"), ("node.kubernetes.io/unreachable", "NoExecute")]
    cluster.until(lambda: cluster.call("GET", f"{space}/pods/on-silent")["status"]["conditions"][0]["status"] == "False")
    cluster.call("DELETE", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/silent")
    cluster.call("DELETE", "/api/v1/nodes/silent")
    cluster.until(lambda: cluster.call("GET", f"{space}/pods/on-silent").status == 404)


def test_service_endpoints(cluster: Cluster, space: str) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "svc"}, "spec": {"selector": {"app": "e"}, "ports": [{"port": 80, "targetPort": 8000}]}}
    assert cluster.call("POST", f"{space}/services", service)["spec"]["clusterIP"].startswith("10.96.")
    body = copy.deepcopy(POD)
    body["metadata"] = {"name": "ep", "labels": {"app": "e"}}
    cluster.call("POST", f"{space}/pods", body)
    cluster.call("PATCH", f"{space}/pods/ep/status", {"status": {"podIP": "10.0.0.20", "conditions": [{"type": "Ready", "status": "True"}]}}, kind=MERGE)
    subsets = cluster.until(lambda: [s for s in cluster.call("GET", f"{space}/endpoints/svc").get("subsets", []) if "addresses" in s])
    assert (subsets[0]["addresses"][0]["ip"], subsets[0]["ports"]) == ("10.0.0.20", [{"protocol": "TCP", "port": 8000}])
    cluster.call("DELETE", f"{space}/services/svc")
    cluster.call("DELETE", f"{space}/pods/ep")
    cluster.until(lambda: cluster.call("GET", f"{space}/endpoints/svc").status == 404)


def test_a_namespace_goes_with_all_in_it(cluster: Cluster) -> None:
    path = cluster.namespace("going")
    cluster.call("POST", f"{path}/configmaps", {**_config("held"), "metadata": {"name": "held", "finalizers": ["lab.dev/hold"]}})
    assert cluster.call("DELETE", path)["status"]["phase"] == "Terminating"
    refused = cluster.call("POST", f"{path}/configmaps", _config("new"))
    assert refused["message"] == 'configmaps "new" is forbidden: unable to create new content in namespace going because it is being terminated'
    assert refused["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    time.sleep(0.1)
    assert cluster.call("GET", path).status == 200, "a finalizer holds it"
    cluster.call("PATCH", f"{path}/configmaps/held", {"metadata": {"finalizers": None}}, kind=MERGE)
    cluster.until(lambda: cluster.call("GET", path).status == 404)
    assert cluster.call("DELETE", "/api/v1/namespaces/kube-system").status == 403


def test_eviction_respects_a_budget(cluster: Cluster, space: str) -> None:
    body = copy.deepcopy(POD)
    body["metadata"] = {"name": "guarded", "labels": {"app": "g"}}
    cluster.call("POST", f"{space}/pods", body)
    cluster.call("PATCH", f"{space}/pods/guarded/status", {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}, kind=MERGE)
    cluster.call("POST", f"/apis/policy/v1{space[7:]}/poddisruptionbudgets", {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "g"}}}})
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "guarded"}}
    refused = cluster.call("POST", f"{space}/pods/guarded/eviction", eviction)
    assert (refused.status, refused["message"]) == (429, "Cannot evict pod as it would violate the pod's disruption budget.")
    cluster.call("PATCH", f"{space}/pods/guarded/status", {"status": {"conditions": None}}, kind=MERGE)
    assert cluster.call("POST", f"{space}/pods/guarded/eviction", eviction).status == 201


def test_every_request_is_recorded(cluster: Cluster, space: str) -> None:
    cluster.call("POST", f"{space}/configmaps?dryRun=All", _config("recorded"))
    lines = [json.loads(line) for line in (cluster.lab / "requests.jsonl").read_text().splitlines()]
    mine = [line for line in lines if line["agent"] == "pytest/1"][-1]
    assert (mine["server"], mine["node"], mine["method"], mine["dry_run"], mine["status"]) == ("kube", "x86-01", "POST", True, 201)


def test_an_internal_error_is_a_status_and_a_controller_goes_on(cluster: Cluster, space: str, capfd: pytest.CaptureFixture[str]) -> None:
    answer = cluster.call("PATCH", f"{space}/configmaps/kube-root-ca.crt", ["not an object"], kind="application/strategic-merge-patch+json")
    assert (answer.status, answer["reason"]) == (500, "InternalError")
    assert "Traceback" in capfd.readouterr().err
    calls: list[int] = []

    async def sync() -> None:
        calls.append(1)
        raise KeyError("odd")

    async def run() -> None:
        wake = asyncio.Event()
        wake.set()
        task = asyncio.create_task(_keep("test", sync, wake))
        for _ in range(2):
            await asyncio.sleep(0.3)
            wake.set()
        task.cancel()

    asyncio.run(run())
    assert len(calls) >= 2


def test_client_certificates_and_strangers(cluster: Cluster, authority: Any) -> None:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    authority.issue_cert(common_name="admin", organization_name="system:masters").configure_cert(context)
    body = json.dumps({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).encode()
    request = urllib.request.Request(f"{cluster.server}/apis/authentication.k8s.io/v1/selfsubjectreviews", data=body, method="POST",
                                     headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, context=context, timeout=5) as answer:
        assert json.load(answer)["status"]["userInfo"] == {"username": "admin", "groups": ["system:masters"]}


def test_a_restart_keeps_everything(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "etcd.json"

    async def before() -> int:
        api = Api(Store(path))
        resource = api.registry.find("", "v1", "configmaps")
        assert resource is not None
        api.create(Target(resource, "default"), _config("kept", a="1"), Options("test"))
        await asyncio.sleep(0.2)
        return api.store.revision

    async def after(revision: int) -> None:
        api = Api(Store(path))
        resource = api.registry.find("", "v1", "configmaps")
        assert resource is not None
        assert api.get(Target(resource, "default", "kept"))["data"] == {"a": "1"}
        assert api.store.revision > revision
        assert api.store.since(revision) is None, "what was before the start is forgotten: watches begin anew"
        with pytest.raises(ApiError):
            api.create(Target(resource, "default"), _config("kept"), Options("test"))

    asyncio.run(after(asyncio.run(before())))
    assert path.stat().st_mode & 0o777 == 0o600
