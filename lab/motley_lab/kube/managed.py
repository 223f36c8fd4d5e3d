# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Field ownership: `managedFields`, server-side apply, its conflicts."""

from __future__ import annotations

import copy
import dataclasses
import json
from typing import Any

from motley_lab.kube import schema
from motley_lab.kube.errors import ApiError, Json
from motley_lab.kube.schema import Type

Path = tuple[str, ...]
"""Elements as in FieldsV1: `f:name`, `k:{"name":"c"}`, `v:"x"`."""

_CONTAINER: Any = object()
_UNOWNED = frozenset({"name", "namespace", "creationTimestamp", "selfLink", "uid", "clusterName", "generation", "managedFields",
                      "resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds"})
_KEY_DEFAULTS = {"protocol": "TCP"}


@dataclasses.dataclass(frozen=True)
class Writer:
    """Who writes: one entry of managedFields is kept for each."""

    name: str
    operation: str
    api_version: str
    subresource: str = ""

    def same(self, entry: Json) -> bool:
        return (entry.get("manager"), entry.get("operation"), entry.get("apiVersion"), entry.get("subresource", "")) == (
            self.name, self.operation, self.api_version, self.subresource)


def owned(document: Json, kind: Type, *, status: bool | None, containers: bool) -> dict[Path, Any]:
    """Owned paths of a document with their values; `status`: that part only, not at all, or (None) all."""
    found: dict[Path, Any] = {}
    for key, value in document.items():
        if key in ("apiVersion", "kind") or (status is not None and (key == "status") != status):
            continue
        if key == "metadata":
            value = {name: entry for name, entry in value.items() if name not in _UNOWNED}
            if not value:
                continue
        inner = "V1ObjectMeta" if key == "metadata" else schema.member(kind, key) or "object"
        _collect(value, inner, key, (f"f:{key}",), found, containers)
    return found


def _collect(value: Any, kind: Type, field: str, path: Path, found: dict[Path, Any], containers: bool) -> None:
    if isinstance(value, dict) and value and not schema.is_atomic(kind, field):
        if containers and schema.is_map(kind):
            found[path] = _CONTAINER
        for key, entry in value.items():
            _collect(entry, schema.member(kind, key) or "object", key, (*path, f"f:{key}"), found, containers)
        return
    if isinstance(value, list) and value and schema.is_list(kind) and (keys := schema.list_keys(kind, field)) is not None:
        if containers and field != "containers":
            found[path] = _CONTAINER
        for entry in value:
            if not keys:
                found[(*path, f"v:{_compact(entry)}")] = entry
                continue
            below = (*path, _key_element(entry, keys))
            found[below] = _CONTAINER
            element = schema.item(kind)
            if schema.is_atomic(element, ""):
                found[below] = entry
                continue
            for key, inner in entry.items():
                _collect(inner, schema.member(element, key) or "object", key, (*below, f"f:{key}"), found, containers)
        return
    found[path] = value


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def _key_element(entry: Json, keys: tuple[str, ...]) -> str:
    return "k:" + _compact({key: entry.get(key, _KEY_DEFAULTS.get(key)) for key in keys if key in entry or key in _KEY_DEFAULTS})


def _fields_v1(paths: set[Path]) -> Json:
    root: Json = {}
    for path in sorted(paths):
        node = root
        for element in path:
            node = node.setdefault(element, {})
    for path in paths:
        node = root
        for element in path:
            node = node[element]
        if node:
            node["."] = {}
    return root


def _paths(fields: Json, prefix: Path = ()) -> set[Path]:
    found: set[Path] = set()
    for key, below in fields.items():
        if key == ".":
            found.add(prefix)
        elif not below:
            found.add((*prefix, key))
        else:
            found |= _paths(below, (*prefix, key))
    return found


def _entries(document: Json | None) -> list[tuple[Json, set[Path]]]:
    listed = (document or {}).get("metadata", {}).get("managedFields", [])
    return [(entry, _paths(entry.get("fieldsV1", {}))) for entry in listed]


def _rebuilt(entries: list[tuple[Json, set[Path]]], writer: Writer, mine: set[Path], now: str) -> list[Json]:
    kept: list[Json] = []
    known = False
    for entry, paths in entries:
        if writer.same(entry):
            known = True
            changed, paths = paths != mine, mine
            entry = {**entry, "time": now, "fieldsV1": _fields_v1(mine)} if changed else entry
        elif paths != _paths(entry.get("fieldsV1", {})):
            entry = {**entry, "fieldsV1": _fields_v1(paths)}
        if paths:
            kept.append(entry)
    if not known and mine:
        kept.append({"manager": writer.name, "operation": writer.operation, "apiVersion": writer.api_version, "time": now,
                     "fieldsType": "FieldsV1", "fieldsV1": _fields_v1(mine),
                     **({"subresource": writer.subresource} if writer.subresource else {})})
    return sorted(kept, key=lambda entry: entry["operation"] != "Apply")


def _scope(writer: Writer, has_status: bool) -> bool | None:
    return True if writer.subresource == "status" else False if has_status else None


def after_update(old: Json | None, new: Json, kind: Type, *, writer: Writer, has_status: bool, now: str) -> list[Json]:
    """managedFields after an ordinary write: what it changed is its own from now on."""
    scope = _scope(writer, has_status)
    before = owned(old, kind, status=scope, containers=True) if old else {}
    after = owned(new, kind, status=scope, containers=True)
    changed = {path for path, value in after.items() if path not in before or before[path] != value}
    removed = before.keys() - after.keys()
    entries = _entries(old)
    mine = next((paths for entry, paths in entries if writer.same(entry)), set())
    others = [(entry, paths if writer.same(entry) else paths - changed - removed) for entry, paths in entries]
    return _rebuilt(others, writer, (mine - removed) | changed, now)


@dataclasses.dataclass(frozen=True)
class Applied:
    document: Json
    managed: list[Json]


def apply(live: Json | None, wanted: Json, kind: Type, *, writer: Writer, force: bool, has_status: bool, now: str) -> Applied:
    """Server-side apply of `wanted` on `live`; ApiError 409 where another manager owns a changed field."""
    scope = _scope(writer, has_status)
    mine = set(owned(wanted, kind, status=scope, containers=False))
    merged = copy.deepcopy(_merge(live or {}, wanted, kind, ""))
    before = owned(live or {}, kind, status=scope, containers=False)
    after = owned(merged, kind, status=scope, containers=False)
    changed = {path for path, value in after.items() if value is not _CONTAINER and (path not in before or before[path] != value)}
    entries = _entries(live)
    clashes = [(entry, path) for entry, paths in entries if not writer.same(entry) for path in sorted(paths & changed)]
    if clashes and not force:
        raise _conflict(clashes)
    others: set[Path] = set()
    for entry, paths in entries:
        if not writer.same(entry):
            others |= paths
    previous = next((paths for entry, paths in entries if writer.same(entry)), set())
    gone: list[Path] = []
    for path in sorted(previous - mine - others, key=len):
        inside = any(path[: len(above)] == above for above in gone)
        is_key = len(path) > 1 and path[-2].startswith("k:") and path[-1][2:] in json.loads(path[-2][2:])
        if not inside and not is_key and not any(other[: len(path)] == path for other in mine | others):
            _remove(merged, path)
            gone.append(path)
    kept = [(entry, paths if writer.same(entry) else paths - changed) for entry, paths in entries]
    return Applied(merged, _rebuilt(kept, writer, mine, now))


def _merge(live: Any, wanted: Any, kind: Type, field: str) -> Any:
    if isinstance(wanted, dict) and isinstance(live, dict) and not (field and schema.is_atomic(kind, field)):
        result = dict(live)
        for key, value in wanted.items():
            inner = "V1ObjectMeta" if key == "metadata" and not field else schema.member(kind, key) or "object"
            result[key] = _merge(live.get(key), value, inner, key)
        return result
    if isinstance(wanted, list) and isinstance(live, list) and schema.is_list(kind):
        keys = schema.list_keys(kind, field)
        if keys == ():
            return [*wanted, *(entry for entry in live if entry not in wanted)]
        if keys:
            old = {_key_element(entry, keys): entry for entry in live}
            named = [(_key_element(entry, keys), entry) for entry in wanted]
            first = [_merge(old[key], entry, schema.item(kind), "item") if key in old else entry for key, entry in named]
            taken = {key for key, _ in named}
            return [*first, *(entry for key, entry in old.items() if key not in taken)]
    return wanted


def _remove(document: Any, path: Path) -> None:
    trail: list[tuple[Any, Any]] = []
    node = document
    for element in path:
        at = _find(node, element)
        if at is None:
            return
        trail.append((node, at))
        node = node[at]
    for at_end, (parent, at) in enumerate(reversed(trail)):
        if at_end and (parent[at] or isinstance(parent, list)):
            return
        parent.pop(at)


def _find(node: Any, element: str) -> Any:
    form, text = element[:2], element[2:]
    if form == "f:":
        return text if isinstance(node, dict) and text in node else None
    if not isinstance(node, list):
        return None
    wanted = json.loads(text)
    for index, entry in enumerate(node):
        if entry == wanted if form == "v:" else all(entry.get(key, _KEY_DEFAULTS.get(key)) == value for key, value in wanted.items()):
            return index
    return None


def type_errors(value: Any, kind: Type, field: str = "", path: Path = ()) -> list[str]:
    """Where an applied object does not fit its type."""
    if value is None or schema.is_free(kind):
        return []
    wanted = schema.kind_name(kind)
    good: Any = {"list": list, "map": dict, "string": str, "boolean": bool, "numeric (int or float)": (int, float)}[wanted]
    if field in schema.QUANTITIES or (path and path[-1][2:] in schema.QUANTITIES) or (len(path) > 1 and path[-2][2:] in schema.QUANTITIES):
        return []
    if not isinstance(value, good) or (isinstance(value, bool) and wanted != "boolean"):
        return [f"{path_text(path)}: expected {wanted}, got &value.valueUnstructured{{Value:{_go(value)}}}"]
    found: list[str] = []
    if isinstance(value, dict):
        for key, entry in value.items():
            root = isinstance(kind, dict) and not path and key in ("apiVersion", "kind", "metadata")
            inner = ("V1ObjectMeta" if key == "metadata" else "str") if root else schema.member(kind, key)
            below = (*path, f"f:{key}")
            found += [f"{path_text(below)}: field not declared in schema"] if inner is None else type_errors(entry, inner, key, below)
    elif isinstance(value, list):
        keys, seen = schema.list_keys(kind, field), set[str]()
        for index, entry in enumerate(value):
            lacking = [key for key in keys or () if isinstance(entry, dict) and key not in entry and key not in _KEY_DEFAULTS]
            if lacking:
                found.append(f'{path_text(path)}: element {index}: associative list with keys has an element that omits key field "{lacking[0]}"')
                continue
            element = _key_element(entry, keys) if keys and isinstance(entry, dict) else f"i:{index}"
            if keys and element in seen:
                found.append(f"{path_text(path)}: duplicate entries for key {path_text((element,))}")
            seen.add(element)
            found += type_errors(entry, schema.item(kind), "", (*path, element))
    return found


def _go(value: Any) -> str:
    """A value as Go's %#v prints it."""
    if isinstance(value, dict):
        return "map[string]interface {}{" + ", ".join(f"{json.dumps(key)}:{_go(entry)}" for key, entry in value.items()) + "}"
    return "[]interface {}{" + ", ".join(map(_go, value)) + "}" if isinstance(value, list) else json.dumps(value)


def path_text(path: Path) -> str:
    """As in messages: .spec.containers[name="c"].image"""
    text = ""
    for element in path:
        form, rest = element[:2], element[2:]
        if form == "f:":
            text += f".{rest}"
        elif form == "k:":
            text += "[" + ",".join(f"{key}={_compact(value)}" for key, value in json.loads(rest).items()) + "]"
        else:
            text += f"[{rest}]" if form == "i:" else f"[={rest}]"
    return text


def _conflict(clashes: list[tuple[Json, Path]]) -> ApiError:
    def who(entry: Json) -> str:
        name = json.dumps(entry["manager"]) + (f' with subresource "{entry["subresource"]}"' if entry.get("subresource") else "")
        return f"{name} using {entry['apiVersion']}" if entry["operation"] == "Update" else name

    causes = [{"reason": "FieldManagerConflict", "message": f"conflict with {who(entry)}", "field": path_text(path)} for entry, path in clashes]
    if len(clashes) == 1:
        text = f"Apply failed with 1 conflict: {causes[0]['message']}: {causes[0]['field']}"
    else:
        parts = []
        for name in sorted({who(entry) for entry, _ in clashes}):
            parts.append(f"conflicts with {name}:")
            parts += [f"- {path_text(path)}" for entry, path in clashes if who(entry) == name]
        text = f"Apply failed with {len(clashes)} conflicts: " + "\n".join(parts)
    return ApiError(409, "Conflict", text, details={"causes": causes})
