# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Objects as plain data."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.kube import objects

SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "n"}, "stringData": {"token": "geheim-123"}}
STORED = {**{k: v for k, v in SECRET.items() if k != "stringData"}, "data": {"token": "Z2VoZWltLTEyMw=="}}


def named(kind: str, api: str = "v1") -> dict[str, Any]:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": kind.lower()}}


@pytest.mark.parametrize(
    ("definition", "namespace", "text", "path"),
    [
        (named("Namespace"), "x", "Namespace namespace", "/api/v1/namespaces/namespace"),
        (named("Pod"), "x", "Pod x/pod", "/api/v1/namespaces/x/pods/pod"),
        ({**named("Pod"), "metadata": {"name": "p", "namespace": "own"}}, "x", "Pod own/p", "/api/v1/namespaces/own/pods/p"),
        (named("DaemonSet", "apps/v1"), "x", "DaemonSet x/daemonset", "/apis/apps/v1/namespaces/x/daemonsets/daemonset"),
        (named("RuntimeClass", "node.k8s.io/v1"), "x", "RuntimeClass runtimeclass", "/apis/node.k8s.io/v1/runtimeclasses/runtimeclass"),
    ],
)
def test_identity_and_path(definition: dict[str, Any], namespace: str, text: str, path: str) -> None:
    who = objects.identity(definition, namespace=namespace)
    row = objects.resource(who.api_version, who.kind)
    assert row
    assert (str(who), row.path(namespace=who.namespace, name=who.name)) == (text, path)


def test_a_definition_without_a_name_is_refused_without_its_secrets() -> None:
    with pytest.raises(MotleyError, match="no metadata.name") as caught:
        objects.identity({**SECRET, "metadata": {}})
    assert "geheim" not in caught.value.text()


def test_order() -> None:
    kinds = [named(k) for k in ("Pod", "Secret", "Namespace", "Job", "RuntimeClass")]
    assert [d["kind"] for d in objects.ordered(kinds)] == ["Namespace", "RuntimeClass", "Secret", "Pod", "Job"]
    assert [d["kind"] for d in objects.ordered(kinds, removal=True)] == ["Pod", "Job", "Secret", "RuntimeClass", "Namespace"]


def test_what_the_server_adds_is_no_difference() -> None:
    bare: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}}
    live: dict[str, Any] = {**bare, "metadata": {"name": "c", "uid": "u", "resourceVersion": "7", "managedFields": [], "annotations": {
        "kubectl.kubernetes.io/last-applied-configuration": "{}"}}, "status": {"x": 1}}
    assert objects.stripped(live) == bare
    assert objects.same(bare, live)
    assert not objects.same(bare, {**live, "data": {"a": "2"}})
    assert live["metadata"]["uid"] == "u", "the original is left alone"


def test_secrets_are_hidden_but_their_change_is_seen() -> None:
    same = objects.redacted_pair(STORED, SECRET)
    assert same[0]["data"] == same[1]["data"] == {"token": objects.HIDDEN}
    other = {**SECRET, "stringData": {"token": "anders-456", "more": "x"}}
    before, after = objects.redacted_pair(STORED, other)
    assert before["data"]["token"] != after["data"]["token"]
    assert list(after["data"]) == ["more", "token"]
    for text in ("geheim", "anders", "Z2VoZWlt"):
        assert text not in json.dumps([before, after, objects.redact(SECRET), objects.render([STORED])])


def test_a_secret_that_does_not_exist_yet() -> None:
    before, after = objects.redacted_pair(None, SECRET)
    assert before == {}
    assert after["data"] == {"token": objects.CHANGED[1]}


def test_values_to_take_out_of_results() -> None:
    assert set(objects.secret_texts(STORED)) == set(objects.secret_texts(SECRET)) == {"geheim-123", "Z2VoZWltLTEyMw=="}
    assert objects.secret_texts(named("ConfigMap")) == []
    assert objects.secret_value(STORED, "token") == "geheim-123"
    assert objects.secret_value(STORED, "none") == ""


def test_a_fingerprint_does_not_depend_on_order() -> None:
    assert objects.fingerprint({"a": 1, "b": [1, 2]}) == objects.fingerprint({"b": [1, 2], "a": 1})
    assert objects.fingerprint({"b": [1, 2]}) != objects.fingerprint({"b": [2, 1]})
