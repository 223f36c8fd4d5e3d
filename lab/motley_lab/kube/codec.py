# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decoding: the object as the server keeps it, the fields it does not know, and values of a wrong type."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from motley_lab.kube import schema
from motley_lab.kube.errors import Json
from motley_lab.kube.schema import Type

_DROP: Any = object()
_FALSE_IS_ABSENT = frozenset({
    "hostNetwork", "hostPID", "hostIPC", "stdin", "stdinOnce", "tty", "unschedulable", "readOnly", "publishNotReadyAddresses", "paused",
})
_EMPTY_IS_KEPT = frozenset({"storageClassName", "type"})
_INT64 = frozenset({
    "terminationGracePeriodSeconds", "activeDeadlineSeconds", "tolerationSeconds", "runAsUser", "runAsGroup", "fsGroup", "generation",
    "observedGeneration", "deletionGracePeriodSeconds",
})
_QUANTITY_RULE = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


class TypeProblem(Exception):
    """A value of a wrong type; the text is the decoder's."""


@dataclasses.dataclass
class _Place:
    path: str
    """As in messages: spec.containers[0].env"""
    fields: tuple[str, ...]
    struct: str

    def down(self, key: str, struct: str | None = None) -> _Place:
        return _Place(f"{self.path}.{key}" if self.path else key, (*self.fields, key), struct or self.struct)


def decode(document: Json, kind: Type) -> tuple[Json, list[str]]:
    """The document as kept, and the paths of its unknown fields. A custom type's values are validated elsewhere."""
    unknown: list[str] = []
    name = _go_name(kind) if isinstance(kind, str) else ""
    return _struct(document, kind, _Place("", (), name), unknown), unknown


def _go_name(model: str) -> str:
    return re.sub(r"^(Core|Events)?V\d+((alpha|beta)\d+)?", "", model)


def _go_type(kind: str, field: str) -> str:
    if schema.is_list(kind):
        return f"[]{_go_type(str(schema.item(kind)), field)}"
    if schema.is_map(kind):
        return f"map[string]{_go_type(str(schema.item(kind)), field)}"
    plain = {"str": "string", "bytes": "[]uint8", "datetime": "v1.Time", "bool": "bool", "float": "float64",
             "int": "int64" if field in _INT64 else "int32"}
    return plain.get(kind, f"v1.{_go_name(kind)}")


def _problem(value: Any, kind: Type, place: _Place) -> TypeProblem:
    shown = {str: "string", bool: "bool", int: "number", float: f"number {value}", list: "array", dict: "object"}[type(value)]
    wanted = _go_type(str(kind), place.fields[-1])
    return TypeProblem(f"json: cannot unmarshal {shown} into Go struct field {place.struct}.{'.'.join(place.fields)} of type {wanted}")


def _value(value: Any, kind: Type, place: _Place, unknown: list[str]) -> Any:
    if isinstance(kind, dict) and schema.is_free(kind) and not schema.is_struct(kind):
        return value
    if value is None:
        return None if isinstance(kind, dict) and kind.get("nullable") else _DROP
    if schema.is_list(kind):
        if not isinstance(value, list):
            return value if isinstance(kind, dict) else _raise(value, kind, place)
        kept = [_value(entry, schema.item(kind), dataclasses.replace(place, path=f"{place.path}[{i}]"), unknown)
                for i, entry in enumerate(value)]
        return [entry for entry in kept if entry is not _DROP] or (_DROP if isinstance(kind, str) else [])
    if schema.is_map(kind):
        if not isinstance(value, dict):
            return value if isinstance(kind, dict) else _raise(value, kind, place)
        kept_map = {key: _map_value(entry, kind, _Place(f"{place.path}.{key}", place.fields, place.struct), unknown)
                    for key, entry in value.items()}
        return {key: entry for key, entry in kept_map.items() if entry is not _DROP} or (_DROP if isinstance(kind, str) else {})
    if schema.is_struct(kind):
        if not isinstance(value, dict):
            return value if isinstance(kind, dict) else _raise(value, kind, place)
        return _struct(value, kind, dataclasses.replace(place, struct=_go_name(kind) if isinstance(kind, str) else ""), unknown)
    return value if isinstance(kind, dict) else _scalar(value, kind, place)


def _raise(value: Any, kind: Type, place: _Place) -> Any:
    raise _problem(value, kind, place)


def _map_value(value: Any, kind: Type, place: _Place, unknown: list[str]) -> Any:
    element = schema.item(kind)
    if element == "str" and place.fields[-1] in schema.QUANTITIES:
        return _quantity(value)
    if element in ("str", "bytes"):
        if not isinstance(value, str):
            return _DROP if value is None else _raise(value, element, place)
        return value
    return _value(value, element, place, unknown)


def _quantity(value: Any) -> Any:
    if value is None:
        return _DROP
    try:
        return schema.canonical_quantity(value)
    except ValueError:
        raise TypeProblem(_QUANTITY_RULE) from None


def _scalar(value: Any, kind: str, place: _Place) -> Any:
    field = place.fields[-1]
    if kind == "str" and field in schema.QUANTITIES:
        return _quantity(value)
    good = {"str": (str,), "bytes": (str,), "datetime": (str,), "bool": (bool,), "int": (int,), "float": (int, float)}.get(kind)
    if good is None:
        return value
    if not isinstance(value, good) or (isinstance(value, bool) and kind != "bool"):
        raise _problem(value, kind, place)
    if (value == "" and field not in _EMPTY_IS_KEPT) or (value is False and field in _FALSE_IS_ABSENT) or (value == 0 and field == "hostPort"):
        return value if place.path.endswith("]") else _DROP
    return value


def _struct(document: Json, kind: Type, place: _Place, unknown: list[str]) -> Json:
    kept: Json = {}
    for key, value in document.items():
        custom_root = isinstance(kind, dict) and not place.path
        inner: Type | None = ("V1ObjectMeta" if key == "metadata" else "str") if custom_root and key in (
            "metadata", "apiVersion", "kind") else schema.member(kind, key)
        if inner is None:
            unknown.append(f"{place.path}.{key}" if place.path else key)
            continue
        below = place.down(key)
        if custom_root and key == "metadata":
            below = _Place("metadata", ("metadata",), _go_name("V1ObjectMeta"))
        entry = _value(value, inner, below, unknown)
        if entry is not _DROP:
            kept[key] = entry
    return kept
