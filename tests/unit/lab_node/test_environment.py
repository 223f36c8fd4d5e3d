# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A container's environment: expansion, downward API, quantities, service links, missing keys."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from motley_lab.kubelet.environment import ConfigError, content, expand, field, quantity, resolve, resource, service_links

POD: dict[str, Any] = {
    "metadata": {"name": "p", "namespace": "n", "uid": "u-1", "labels": {"app": "x"}, "annotations": {"b": 'say "hi"', "a": "1"}},
    "spec": {"nodeName": "spark-01", "serviceAccountName": "sa"},
}
OBJECTS = {
    ("ConfigMap", "c"): {"kind": "ConfigMap", "data": {"K1": "v1", "PORT": "80"}, "binaryData": {"raw": base64.b64encode(b"\x00\x01").decode()}},
    ("Secret", "s"): {"kind": "Secret", "data": {"token": base64.b64encode(b"secret").decode()}},
}


@pytest.mark.parametrize(("text", "wanted"), [
    ("$(A)-$(B)", "1-$(B)"), ("$$(A)", "$(A)"), ("$(A)$(A)", "11"), ("$A ${A}", "$A ${A}"), ("$(A", "$(A"), ("$$$(A)", "$1"), ("", ""),
])
def test_expand(text: str, wanted: str) -> None:
    assert expand(text, {"A": "1"}) == wanted


@pytest.mark.parametrize(("path", "wanted"), [
    ("metadata.name", "p"), ("metadata.namespace", "n"), ("metadata.uid", "u-1"), ("metadata.labels['app']", "x"), ("metadata.labels['no']", ""),
    ("metadata.annotations", 'a="1"\nb="say \\"hi\\""'), ("spec.nodeName", "spark-01"), ("spec.serviceAccountName", "sa"),
    ("status.hostIP", "10.0.0.10"), ("status.podIP", "10.244.0.1"),
])
def test_field(path: str, wanted: str) -> None:
    assert field(POD, path, host_ip="10.0.0.10", pod_ip="10.244.0.1") == wanted


def test_unknown_field_is_refused() -> None:
    with pytest.raises(ConfigError, match="spec.color"):
        field(POD, "spec.color", host_ip="", pod_ip="")


@pytest.mark.parametrize(("text", "wanted"), [("1Gi", 2**30), ("500m", 0.5), ("1G", 1e9), (3, 3.0), ("1073741824", 2**30), ("1.5Ki", 1536)])
def test_quantity(text: str | int, wanted: float) -> None:
    assert quantity(text) == pytest.approx(wanted)


@pytest.mark.parametrize(("reference", "wanted"), [
    ({"resource": "limits.memory", "divisor": "1Mi"}, "512"), ({"resource": "requests.cpu"}, "1"), ({"resource": "limits.cpu"}, "8"),
])
def test_resource(reference: dict[str, str], wanted: str) -> None:
    container = {"resources": {"limits": {"memory": "512Mi"}, "requests": {"cpu": "300m"}}}
    assert resource(container, reference, {"cpu": "8", "memory": "16Gi"}) == wanted


def test_a_service_called_vllm_makes_the_variable_that_vllm_trips_over() -> None:
    services: list[dict[str, Any]] = [{"metadata": {"name": "vllm"}, "spec": {"clusterIP": "10.96.0.7", "ports": [{"port": 8000}]}},
                {"metadata": {"name": "kubernetes"}, "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 443}]}},
                {"metadata": {"name": "headless"}, "spec": {"clusterIP": "None"}}]
    assert service_links(services, links=True)["VLLM_PORT"] == "tcp://10.96.0.7:8000"
    without = service_links(services, links=False)
    assert without["KUBERNETES_SERVICE_HOST"] == "10.96.0.1" and not any(key.startswith(("VLLM", "HEADLESS")) for key in without)


def run(container: dict[str, Any]) -> dict[str, str]:
    async def fetch(kind: str, name: str) -> dict[str, Any] | None:
        return OBJECTS.get((kind, name))

    return asyncio.run(resolve(POD, container, fetch=fetch, base={"PATH": "/bin", "K1": "image"}, host_ip="10.0.0.10", pod_ip="10.0.0.10",
                               allocatable={}))


def test_resolve_in_order() -> None:
    made = run({"envFrom": [{"configMapRef": {"name": "c"}, "prefix": ""}, {"secretRef": {"name": "s"}, "prefix": "S_"}], "env": [
        {"name": "URL", "value": "http://$(IP):$(PORT)"},  # IP comes later, so it stays
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}, {"name": "AGAIN", "value": "$(IP)"},
        {"name": "T", "valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}}, {"name": "EMPTY"},
        {"name": "NO", "valueFrom": {"secretKeyRef": {"name": "absent", "key": "k", "optional": True}}}]})
    assert made["URL"] == "http://$(IP):80" and made["AGAIN"] == "10.0.0.10"
    assert (made["K1"], made["S_token"], made["T"], made["EMPTY"], made["PATH"]) == ("v1", "secret", "secret", "", "/bin")
    assert "NO" not in made


@pytest.mark.parametrize(("source", "message"), [
    ({"secretKeyRef": {"name": "absent", "key": "k"}}, 'secret "absent" not found'),
    ({"secretKeyRef": {"name": "s", "key": "k"}}, "couldn't find key k in Secret n/s"),
    ({"configMapKeyRef": {"name": "c", "key": "k"}}, "couldn't find key k in ConfigMap n/c"),
])
def test_missing_keys(source: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run({"env": [{"name": "X", "valueFrom": source}]})
    assert str(caught.value) == message


def test_binary_data() -> None:
    assert content(OBJECTS["ConfigMap", "c"])["raw"] == b"\x00\x01"
