# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the server refuses and warns of, as a real one does."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from .conftest import POD, Cluster, Json

C = "spec.containers[0]"


def _pod(**spec: Any) -> Json:
    body = copy.deepcopy(POD)
    body["spec"] |= spec
    return body


def _container(**fields: Any) -> Json:
    return _pod(containers=[{"name": "c", "image": "b:1", **fields}])


@pytest.fixture(scope="module")
def privileged(cluster: Cluster) -> str:
    return cluster.namespace("refusals")


@pytest.mark.parametrize(("body", "code", "message"), [
    (_container(resources={"requests": {"nvidia.com/gpu": 1}}), 422,
     f"{C}.resources.limits: Required value: Limit must be set for non overcommitable resources"),
    (_container(resources={"limits": {"nvidia.com/gpu": 2}, "requests": {"nvidia.com/gpu": 1}}), 422,
     f'{C}.resources.requests: Invalid value: "1": must be equal to nvidia.com/gpu limit of 2'),
    (_container(resources={"limits": {"memory": "1Gi"}, "requests": {"memory": "2Gi"}}), 422,
     f'{C}.resources.requests: Invalid value: "2Gi": must be less than or equal to memory limit of 1Gi'),
    (_container(resources={"limits": {"cpu": "two"}}), 400, "quantities must match the regular expression"),
    (_container(env=[{"name": "A", "value": 1}]), 400,
     'Pod in version "v1" cannot be handled as a Pod: json: cannot unmarshal number into Go struct field EnvVar.spec.containers.env.value of type string'),
    (_container(command="ls"), 400, "cannot unmarshal string into Go struct field Container.spec.containers.command of type []string"),
    (_container(volumeMounts=[{"name": "x", "mountPath": "/x"}]), 422, f'{C}.volumeMounts[0].name: Not found: "x"'),
    (_container(image=""), 422, f"{C}.image: Required value"),
    (_container(name="C"), 422, f'{C}.name: Invalid value: "C": a lowercase RFC 1123 label must consist of'),
    (_pod(hostNetwork=True, containers=[{"name": "c", "image": "b", "ports": [{"containerPort": 1, "hostPort": 2}]}]), 422,
     f"{C}.ports[0].hostPort: Invalid value: 2: must match `containerPort` when `hostNetwork` is true"),
    (_pod(restartPolicy="Sometimes"), 422,
     'spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "Never", "OnFailure"'),
    (_pod(volumes=[{"name": "v", "hostPath": {"path": "/x"}, "emptyDir": {}}]), 422,
     "spec.volumes[0].emptyDir: Forbidden: may not specify more than 1 volume type"),
    (_pod(serviceAccountName="nosuch"), 403, 'error looking up service account refusals/nosuch: serviceaccount "nosuch" not found'),
    (_pod(priorityClassName="nosuch"), 403, "no PriorityClass with name nosuch was found"),
    (_pod(runtimeClassName="nosuch"), 403, 'pods "p" is forbidden: pod rejected: RuntimeClass "nosuch" not found'),
    (_pod(tolerations=[{"operator": "Equal", "value": "x"}]), 422, "operator must be Exists when `key` is empty"),
    (_pod(containers=[]), 422, "spec.containers: Required value"),
])
def test_a_wrong_pod_is_refused(cluster: Cluster, privileged: str, body: Json, code: int, message: str) -> None:
    answer = cluster.call("POST", f"{privileged}/pods?dryRun=All", body)
    assert answer.status == code
    assert message in answer["message"]


def test_all_that_is_wrong_is_one_message(cluster: Cluster, privileged: str) -> None:
    body = _container(image="", resources={"limits": {"nvidia.com/gpu": "0.5"}})
    answer = cluster.call("POST", f"{privileged}/pods", body)
    assert answer["message"] == (
        f'Pod "p" is invalid: [{C}.image: Required value, {C}.resources.limits[nvidia.com/gpu]: Invalid value: "500m": must be an integer, '
        f'{C}.resources.requests[nvidia.com/gpu]: Invalid value: "500m": must be an integer]')
    assert [cause["field"] for cause in answer["details"]["causes"]] == [
        f"{C}.image", f"{C}.resources.limits[nvidia.com/gpu]", f"{C}.resources.requests[nvidia.com/gpu]"]


@pytest.mark.parametrize(("mode", "code"), [("Strict", 400), ("Warn", 201), ("Ignore", 201)])
def test_unknown_fields(cluster: Cluster, privileged: str, mode: str, code: int) -> None:
    body = _pod(hostNetwrk=True, containers=[{"name": "c", "image": "b", "resource": {}}])
    answer = cluster.call("POST", f"{privileged}/pods?dryRun=All&fieldValidation={mode}", body)
    assert answer.status == code
    texts = ['unknown field "spec.containers[0].resource"', 'unknown field "spec.hostNetwrk"']
    assert answer.warnings == ([f'299 - "{text}"'.replace(text, text.replace('"', '\\"')) for text in texts] if mode == "Warn" else [])
    if mode == "Strict":
        assert answer["message"].endswith(f"strict decoding error: {texts[0]}, {texts[1]}")


def test_a_variable_given_twice_warns(cluster: Cluster, privileged: str) -> None:
    env = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}, {"name": "A", "value": "$(A):3"}]
    assert cluster.call("POST", f"{privileged}/pods?dryRun=All", _container(env=env)).warnings == [
        '299 - "spec.containers[0].env[1]: hides previous definition of \\"A\\", which may be dropped when using apply"']


@pytest.mark.parametrize(("labels", "enforced", "warned"), [
    ({}, 'violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true, hostIPC=true), hostPath volumes (volumes "v", "w")', None),
    ({"enforce": "privileged"}, None, 'would violate PodSecurity \\"restricted:latest\\": host namespaces (hostNetwork=true, hostIPC=true), '
     'allowPrivilegeEscalation != false (container \\"c\\" must set securityContext.allowPrivilegeEscalation=false)'),
    ({"enforce": "privileged", "warn": "baseline"}, None, 'would violate PodSecurity \\"baseline:latest\\": host namespaces (hostNetwork=true'),
    ({"enforce": "privileged", "warn": "privileged"}, None, None),
], ids=["unlabelled", "enforce", "warn baseline", "all"])
def test_pod_security(cluster: Cluster, request: pytest.FixtureRequest, labels: dict[str, str], enforced: str | None, warned: str | None) -> None:
    name = f"psa-{len(labels)}-{labels.get('warn', 'none')}"
    path = cluster.namespace(name, {f"pod-security.kubernetes.io/{key}": value for key, value in labels.items()})
    volumes = [{"name": name, "hostPath": {"path": "/x"}} for name in ("v", "w")]
    answer = cluster.call("POST", f"{path}/pods?dryRun=All", _pod(hostNetwork=True, hostIPC=True, volumes=volumes))
    if enforced:
        assert (answer.status, answer["message"]) == (403, f'pods "p" is forbidden: {enforced}')
    else:
        assert answer.status == 201
        assert [warned in text for text in answer.warnings] == [True] if warned else answer.warnings == []


def test_templates_are_warned_of_but_made(cluster: Cluster) -> None:
    path = cluster.namespace("psa-template", {})
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"},
            "spec": {"template": {"spec": {**_pod(hostPID=True)["spec"], "restartPolicy": "Never"}}}}
    answer = cluster.call("POST", f"/apis/batch/v1{path[7:]}/jobs?dryRun=All", body)
    assert answer.status == 201
    assert 'would violate PodSecurity \\"restricted:latest\\": host namespaces (hostPID=true)' in answer.warnings[0]


def test_a_level_that_pods_do_not_meet_warns(cluster: Cluster) -> None:
    path = cluster.namespace("psa-tighten")
    cluster.call("POST", f"{path}/pods", _pod(hostNetwork=True))
    answer = cluster.call("PATCH", path, {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}},
                          kind="application/merge-patch+json")
    assert [text.replace("\\", "") for text in answer.warnings] == [
        '299 - "existing pods in namespace "psa-tighten" violate the new PodSecurity enforce level "baseline:latest""', '299 - "p: host namespaces"']


_DAEMON = {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": POD["spec"]}}


@pytest.mark.parametrize(("path", "body", "change", "message"), [
    ("/apis/node.k8s.io/v1/runtimeclasses", {"kind": "RuntimeClass", "handler": "nvidia"}, {"handler": "other"},
     'RuntimeClass.node.k8s.io "x" is invalid: handler: Invalid value: "other": field is immutable'),
    ("/apis/apps/v1/namespaces/refusals/daemonsets", {"kind": "DaemonSet", "spec": _DAEMON}, {"spec": {"selector": {"matchLabels": {"a": "c"}}}},
     'DaemonSet.apps "x" is invalid: [spec.template.metadata.labels: Invalid value: {"a":"b"}: `selector` does not match template `labels`, '
     'spec.selector: Invalid value: {"matchLabels":{"a":"c"}}: field is immutable]'),
    ("/api/v1/namespaces/refusals/secrets", {"kind": "Secret"}, {"type": "other"},
     'Secret "x" is invalid: type: Invalid value: "other": field is immutable'),
    ("/api/v1/namespaces/refusals/configmaps", {"kind": "ConfigMap", "immutable": True, "data": {"a": "1"}}, {"data": {"a": "2"}},
     'ConfigMap "x" is invalid: data: Forbidden: field is immutable when `immutable` is set'),
    ("/api/v1/namespaces/refusals/pods", {"kind": "Pod", "spec": POD["spec"]}, {"spec": {"hostNetwork": True}},
     'Pod "x" is invalid: spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`'),
], ids=lambda value: value.rsplit("/", 1)[-1] if isinstance(value, str) and value.startswith("/") else "")
@pytest.mark.usefixtures("privileged")
def test_what_may_not_change(cluster: Cluster, path: str, body: Json, change: Json, message: str) -> None:
    version = path.split("/namespaces")[0].split("/", 2)[2].removesuffix("/runtimeclasses")
    assert cluster.call("POST", path, {"apiVersion": version, "metadata": {"name": "x"}, **body}).status == 201
    answer = cluster.call("PATCH", f"{path}/x", change, kind="application/merge-patch+json")
    cluster.call("DELETE", f"{path}/x")
    assert (answer.status, answer["message"][:len(message)]) == (422, message)


def test_who_may_ask(cluster: Cluster) -> None:
    assert cluster.call("GET", "/api/v1/nodes", token="wrong").status == 401
    assert cluster.call("GET", "/healthz", token="wrong").status == 200
    assert cluster.call("GET", "/api/v1/nosuch").status == 404
    assert cluster.call("GET", "/apis/ray.io/v1/rayclusters")["text"] == "404 page not found\n"
    attach = cluster.call("GET", "/api/v1/namespaces/default/pods/x/attach")
    assert (attach.status, attach["message"]) == (501, "the lab's API server does not implement pods/attach")
