# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known of each type: fields, element types, how lists merge.

Built-in types come from the type tables in the `kubernetes` client's model sources, read as text one model at a time
(importing them costs a second and 100 MB). Custom types are their CRD's JSON schema.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import pathlib
import re
from decimal import Decimal
from typing import Any

Type = str | dict[str, Any]
"""A model's name, `list[X]`, `dict(str, X)`, a plain type, or a CRD's JSON schema."""

_KEYS: dict[str, tuple[str, ...]] = {
    "V1Container": ("name",), "V1EphemeralContainer": ("name",), "V1ContainerPort": ("containerPort", "protocol"),
    "V1EnvVar": ("name",), "V1VolumeMount": ("mountPath",), "V1VolumeDevice": ("devicePath",), "V1Volume": ("name",),
    "V1LocalObjectReference": ("name",), "V1HostAlias": ("ip",), "V1ServicePort": ("port", "protocol"),
    "V1TopologySpreadConstraint": ("topologyKey", "whenUnsatisfiable"), "V1PodSchedulingGate": ("name",),
    "V1PodResourceClaim": ("name",), "CoreV1ResourceClaim": ("name",), "V1OwnerReference": ("uid",), "V1PodIP": ("ip",),
    "V1PodCondition": ("type",), "V1NodeCondition": ("type",), "V1NodeAddress": ("type",), "V1DaemonSetCondition": ("type",),
    "V1DeploymentCondition": ("type",), "V1ReplicaSetCondition": ("type",), "V1StatefulSetCondition": ("type",),
    "V1NamespaceCondition": ("type",), "V1Condition": ("type",), "V1CustomResourceDefinitionCondition": ("type",),
    "V1ObjectReference": ("name",),
}
_PATCH_ONLY_KEYS: dict[str, tuple[str, ...]] = {"V1JobCondition": ("type",)}
_ATOMIC = frozenset({
    "V1LabelSelector", "V1NodeSelector", "V1NodeSelectorTerm", "V1SecretKeySelector", "V1ConfigMapKeySelector",
    "V1ObjectFieldSelector", "V1ResourceFieldSelector", "V1ObjectReference", "V1TypedLocalObjectReference",
})
_ATOMIC_MAPS = frozenset({"nodeSelector", "selector"})
_SETS = frozenset({"finalizers"})
QUANTITIES = frozenset({"limits", "requests", "capacity", "allocatable", "sizeLimit", "divisor", "podFixed", "hard", "used"})
_FREE: Type = "object"


@functools.cache
def _index() -> dict[str, pathlib.Path]:
    found = importlib.util.find_spec("kubernetes")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError("the Python package `kubernetes` is needed for its type tables; install it into this environment")
    folder = pathlib.Path(found.submodule_search_locations[0]) / "client" / "models"
    return {path.stem.replace("_", ""): path for path in folder.glob("*.py")}


@functools.cache
def fields(model: str) -> dict[str, str] | None:
    """JSON field -> type of a model; None where the client has no such model."""
    path = _index().get(model.lower())
    if path is None:
        return None
    text = path.read_text()
    tables = []
    for name in ("openapi_types", "attribute_map"):
        found = re.search(rf"^    {name}\b[^=\n]*= (\{{.*?\}})\n", text, re.S | re.M)
        if found is None:
            return None
        tables.append(ast.literal_eval(found.group(1)))
    types, names = tables
    return {names[attribute]: _modern(kind) for attribute, kind in types.items()}


def _modern(kind: str) -> str:
    """Client releases write `list[X]` or `List[X]`, `dict(str, X)` or `Dict[str, X]`."""
    if kind.startswith(("List[", "list[")):
        return f"list[{_modern(kind[5:-1])}]"
    return f"dict(str, {_modern(kind[10:-1])})" if kind.startswith(("Dict[str, ", "dict(str, ")) else kind


def is_list(kind: Type) -> bool:
    return kind.startswith("list[") if isinstance(kind, str) else kind.get("type") == "array"


def is_map(kind: Type) -> bool:
    """A map with free keys (not a structure)."""
    if isinstance(kind, str):
        return kind.startswith("dict(")
    return "properties" not in kind and isinstance(kind.get("additionalProperties"), dict)


def is_free(kind: Type) -> bool:
    """Anything may be inside."""
    if isinstance(kind, str):
        return kind == "object" or (not is_list(kind) and not is_map(kind) and kind[0].isupper() and fields(kind) is None)
    return bool(kind.get("x-kubernetes-preserve-unknown-fields") or kind.get("x-kubernetes-int-or-string")) or (
        kind.get("type", "object") == "object" and not kind.get("properties") and not is_map(kind))


def is_struct(kind: Type) -> bool:
    if isinstance(kind, str):
        return not is_list(kind) and not is_map(kind) and kind[0].isupper() and fields(kind) is not None
    return bool(kind.get("properties"))


def kind_name(kind: Type) -> str:
    """A type's basic kind, in the words of typed patch errors."""
    if is_list(kind):
        return "list"
    if is_map(kind) or is_struct(kind):
        return "map"
    name = kind if isinstance(kind, str) else str(kind.get("type", "object"))
    return {"int": "numeric (int or float)", "float": "numeric (int or float)", "integer": "numeric (int or float)",
            "number": "numeric (int or float)", "bool": "boolean", "boolean": "boolean", "object": "map"}.get(name, "string")


def item(kind: Type) -> Type:
    """Element of a list, or value of a map."""
    if isinstance(kind, str):
        return kind[5:-1] if is_list(kind) else kind[5:-1].split(",", 1)[1].strip() if is_map(kind) else _FREE
    return kind.get("items") or kind.get("additionalProperties") or _FREE


def member(kind: Type, key: str) -> Type | None:
    """Type of a field; None where the field is unknown."""
    if is_map(kind):
        return item(kind)
    if isinstance(kind, str):
        known = fields(kind) if kind[0].isupper() else None
        return _FREE if known is None else known.get(key)
    found = kind.get("properties", {}).get(key)
    if found is not None:
        return found
    return _FREE if is_free(kind) else None


def list_keys(kind: Type, field: str, *, patch: bool = False) -> tuple[str, ...] | None:
    """Key fields of a list that merges by key, `()` for a set, None for an atomic list."""
    if isinstance(kind, dict):
        how = kind.get("x-kubernetes-list-type")
        return tuple(kind.get("x-kubernetes-list-map-keys", ())) if how == "map" else () if how == "set" else None
    if field in _SETS:
        return ()
    element = item(kind)
    found = _KEYS.get(str(element)) or (_PATCH_ONLY_KEYS.get(str(element)) if patch else None)
    return found[:1] if found and patch else found


def is_atomic(kind: Type, field: str) -> bool:
    """A structure or map that one manager owns as a whole."""
    if isinstance(kind, dict):
        return kind.get("x-kubernetes-map-type") == "atomic" or (is_free(kind) and not is_map(kind))
    return kind in _ATOMIC or kind == "object" or (field in _ATOMIC_MAPS and is_map(kind))


_SUFFIXES: dict[str, Decimal] = {"": Decimal(1), **{s: Decimal(1000) ** n for n, s in enumerate("kMGTPE", 1)},
                                 **{f"{s}i": Decimal(1024) ** n for n, s in enumerate("KMGTPE", 1)},
                                 "m": Decimal("0.001"), "u": Decimal("0.000001"), "n": Decimal("0.000000001")}


def quantity(text: str | int | float) -> Decimal:
    """The number a quantity stands for; ValueError if it is none."""
    found = re.fullmatch(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([A-Za-z]*)", str(text))
    if found is None or found.group(2) not in _SUFFIXES or found.group(1).count(".") > 1:
        raise ValueError(f"not a quantity: {text}")
    return Decimal(found.group(1)) * _SUFFIXES[found.group(2)]


def canonical_quantity(text: str | int | float) -> str:
    """As the real server prints it: largest suffix that leaves an integer, in the family it was given in."""
    number = quantity(text)
    suffix = re.sub(r"^[+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?", "", str(text))
    if number == 0:
        return "0"
    if suffix.endswith("i") and number == int(number):
        names = [(f"{s}i", Decimal(1024) ** n) for n, s in reversed(list(enumerate("KMGTPE", 1)))]
    else:
        names = [(s, Decimal(1000) ** n) for n, s in reversed(list(enumerate("kMGTPE", 1)))]
    for name, factor in [*names, ("", Decimal(1)), ("m", Decimal("0.001")), ("u", Decimal("0.000001"))]:
        if number % factor == 0:
            return f"{int(number / factor)}{name}"
    return f"{int(number / Decimal('0.000000001'))}n"
