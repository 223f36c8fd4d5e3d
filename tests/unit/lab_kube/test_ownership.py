# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Field ownership and patches, without a server."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from motley_lab.kube import codec, managed, patch, schema
from motley_lab.kube.errors import ApiError

Json = dict[str, Any]
CONFIG: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "labels": {"l": "1"}}, "data": {"a": "1"}}
POD: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {
    "containers": [{"name": "c", "image": "i", "env": [{"name": "A", "value": "1"}], "ports": [{"containerPort": 80}]}]}}
NOW = "2026-01-01T00:00:00Z"


def _writer(name: str, operation: str = "Apply") -> managed.Writer:
    return managed.Writer(name, operation, "v1")


def _apply(live: Json | None, wanted: Json, *, name: str = "motley", force: bool = False, kind: str = "V1ConfigMap") -> Json:
    done = managed.apply(live, wanted, kind, writer=_writer(name), force=force, has_status=False, now=NOW)
    return {**done.document, "metadata": {**done.document["metadata"], "managedFields": done.managed}}


def _update(live: Json, data: Json) -> Json:
    new = {**live, "data": data}
    entries = managed.after_update(live, new, "V1ConfigMap", writer=_writer("kubectl", "Update"), has_status=False, now=NOW)
    return {**new, "metadata": {**new["metadata"], "managedFields": entries}}


def _fields(document: Json, name: str) -> Json | None:
    return next((entry["fieldsV1"] for entry in document["metadata"]["managedFields"] if entry["manager"] == name), None)


def test_apply_owns_what_it_says() -> None:
    live = _apply(None, POD, kind="V1Pod")
    assert _fields(live, "motley") == {"f:spec": {"f:containers": {'k:{"name":"c"}': {
        ".": {}, "f:name": {}, "f:image": {}, "f:env": {'k:{"name":"A"}': {".": {}, "f:name": {}, "f:value": {}}},
        "f:ports": {'k:{"containerPort":80,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}}}}}}


def test_an_update_takes_fields_over_and_apply_then_conflicts() -> None:
    live = _update(_apply(None, CONFIG), {"a": "2"})
    assert _fields(live, "kubectl") == {"f:data": {"f:a": {}}}
    assert _fields(live, "motley") == {"f:metadata": {"f:labels": {"f:l": {}}}}
    with pytest.raises(ApiError) as caught:
        _apply(live, CONFIG)
    assert str(caught.value) == 'Apply failed with 1 conflict: conflict with "kubectl" using v1: .data.a'
    forced = _apply(live, CONFIG, force=True)
    assert forced["data"] == {"a": "1"}
    assert _fields(forced, "kubectl") is None


def test_several_conflicts_are_listed_by_manager() -> None:
    live = _apply(_apply(None, {**CONFIG, "data": {"a": "1", "b": "1"}}, name="one"), {**CONFIG, "data": {"c": "1"}}, name="two")
    with pytest.raises(ApiError) as caught:
        _apply(live, {**CONFIG, "data": {"a": "2", "b": "2", "c": "2"}})
    assert str(caught.value) == 'Apply failed with 3 conflicts: conflicts with "one":\n- .data.a\n- .data.b\nconflicts with "two":\n- .data.c'


def test_equal_values_are_owned_together() -> None:
    live = _apply(_apply(None, CONFIG), CONFIG, name="other")
    assert _fields(live, "motley") == _fields(live, "other")
    assert _apply(live, {**CONFIG, "data": {}})["data"] == {"a": "1"}, "a field that another manager owns stays"


@pytest.mark.parametrize(("first", "then", "left"), [
    ({"a": "1", "b": "2"}, {"a": "1"}, {"a": "1"}),
    ({"a": "1"}, {"b": "1"}, {"b": "1"}),
])
def test_what_is_no_longer_applied_goes(first: Json, then: Json, left: Json) -> None:
    live = _apply(None, {**CONFIG, "data": first})
    assert _apply(live, {**CONFIG, "data": then})["data"] == left


def test_a_list_item_goes_with_its_defaults_and_the_stored_object_is_untouched() -> None:
    two = copy.deepcopy(POD)
    two["spec"]["containers"].append({"name": "d", "image": "i"})
    live = _apply(None, two, kind="V1Pod")
    live["spec"]["containers"][1]["imagePullPolicy"] = "Always"
    before = copy.deepcopy(live)
    assert [entry["name"] for entry in _apply(live, POD, kind="V1Pod")["spec"]["containers"]] == ["c"]
    assert live == before


@pytest.mark.parametrize(("current", "change", "kind", "result"), [
    ({"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}},
     {"spec": {"containers": [{"name": "b", "image": "2"}, {"name": "c"}]}}, "V1Pod",
     {"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}, {"name": "c"}]}}),
    ({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}, {"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}, "V1Pod",
     {"spec": {"containers": [{"name": "b"}]}}),
    ({"spec": {"taints": [{"key": "a"}]}}, {"spec": {"taints": [{"key": "b"}]}}, "V1Node", {"spec": {"taints": [{"key": "b"}]}}),
    ({"metadata": {"finalizers": ["a"]}}, {"metadata": {"finalizers": ["b"]}}, "V1Pod", {"metadata": {"finalizers": ["a", "b"]}}),
    ({"metadata": {"finalizers": ["a", "b"]}}, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}, "V1Pod",
     {"metadata": {"finalizers": ["b"]}}),
    ({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}},
     {"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}], "containers": [{"name": "a", "image": "1"}]}}, "V1Pod",
     {"spec": {"containers": [{"name": "b"}, {"name": "a", "image": "1"}]}}),
    ({"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}},
     {"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]}}, "V1Pod",
     {"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}}),
    ({"data": {"a": "1", "b": "2"}}, {"data": {"a": None, "c": "3"}}, "V1ConfigMap", {"data": {"b": "2", "c": "3"}}),
], ids=["by key", "delete item", "atomic list", "set", "delete from set", "order", "retain keys", "map"])
def test_strategic_merge(current: Json, change: Json, kind: str, result: Json) -> None:
    before = copy.deepcopy(current)
    assert patch.strategic(current, change, kind) == result
    assert current == before


def test_json_patch() -> None:
    document = {"a": [1, 2], "b": {"c/d": 1}}
    operations: list[Json] = [{"op": "test", "path": "/a/0", "value": 1}, {"op": "add", "path": "/a/-", "value": 3}, {"op": "remove", "path": "/a/0"},
                  {"op": "replace", "path": "/b/c~1d", "value": 2}, {"op": "move", "from": "/b", "path": "/e"}]
    assert patch.json_patch(document, operations) == {"a": [2, 3], "e": {"c/d": 2}}
    with pytest.raises(ApiError):
        patch.json_patch(document, [{"op": "test", "path": "/a/0", "value": 9}])


@pytest.mark.parametrize(("given", "shown"), [
    ("0.5", "500m"), (2, "2"), ("1000m", "1"), ("65536Ki", "64Mi"), ("1.5Gi", "1536Mi"), ("1000", "1k"), ("0", "0"), (0.1, "100m")])
def test_quantities_are_shown_in_one_form(given: str | int | float, shown: str) -> None:
    assert schema.canonical_quantity(given) == shown
    assert schema.quantity(shown) == schema.quantity(given)


def test_decoding_drops_what_says_nothing() -> None:
    document = {"metadata": {"labels": {}, "name": "p"}, "spec": {"hostNetwork": False, "nodeSelector": None, "nosuch": 1, "containers": [
        {"name": "c", "env": [{"name": "A", "value": ""}], "args": ["", "x"]}], "volumes": [{"name": "v", "emptyDir": {}}]}}
    kept, unknown = codec.decode(document, "V1Pod")
    assert kept == {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "env": [{"name": "A"}], "args": ["", "x"]}],
                                                        "volumes": [{"name": "v", "emptyDir": {}}]}}
    assert unknown == ["spec.nosuch"]
