# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The three patch forms that change an object as it is: merge, strategic merge, JSON patch."""

from __future__ import annotations

import copy
from typing import Any

from motley_lab.kube import schema
from motley_lab.kube.errors import ApiError, Json, bad_request
from motley_lab.kube.schema import Type


def merge(current: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result = dict(current) if isinstance(current, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def strategic(current: Json, patch: Json, kind: Type) -> Json:
    """Kubernetes' strategic merge with its directives."""
    match patch.get("$patch"):
        case "replace":
            return {key: value for key, value in patch.items() if key != "$patch"}
        case "delete":
            return {}
    result = dict(current)
    if (retain := patch.get("$retainKeys")) is not None:
        result = {key: value for key, value in result.items() if key in retain}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            field = key.split("/", 1)[1]
            result[field] = [entry for entry in result.get(field, []) if entry not in value]
        elif key.startswith("$"):
            continue
        elif value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            base = result.get(key)
            result[key] = strategic(base if isinstance(base, dict) else {}, value, schema.member(kind, key) or "object")
        elif isinstance(value, list):
            result[key] = _strategic_list(result.get(key) or [], value, schema.member(kind, key) or "object", key,
                                          patch.get(f"$setElementOrder/{key}"))
        else:
            result[key] = value
    return result


def _strategic_list(current: list[Any], patch: list[Any], kind: Type, field: str, order: list[Any] | None) -> list[Any]:
    keys = schema.list_keys(kind, field, patch=True) if schema.is_list(kind) else None
    if keys is None or any(isinstance(entry, dict) and entry.get("$patch") == "replace" for entry in patch):
        return [entry for entry in patch if not (isinstance(entry, dict) and "$patch" in entry)]
    if not keys:
        return [*current, *(entry for entry in patch if entry not in current)]
    key, merged = keys[0], list(current)
    for entry in patch:
        at = next((i for i, old in enumerate(merged) if old.get(key) == entry.get(key)), None)
        if entry.get("$patch") == "delete":
            merged = [old for i, old in enumerate(merged) if i != at]
        elif at is None:
            merged.append(strategic({}, entry, schema.item(kind)))
        else:
            merged[at] = strategic(merged[at], entry, schema.item(kind))
    if order:
        places = {entry.get(key): i for i, entry in enumerate(order)}
        merged.sort(key=lambda entry: places.get(entry.get(key), len(places)))
    return merged


def json_patch(current: Json, operations: list[Json]) -> Json:
    """RFC 6902."""
    root: Any = {"": copy.deepcopy(current)}
    for operation in operations:
        try:
            _operate(root, operation)
        except (KeyError, IndexError, ValueError, TypeError, LookupError) as error:
            verb, path = operation.get("op"), operation.get("path")
            raise ApiError(422, "Invalid", f"the server rejected our request due to an error in our request: {verb} {path}: {error}") from error
    return dict(root[""])


def _operate(root: Any, operation: Json) -> None:
    verb, path = operation["op"], _pointer(operation["path"])
    match verb:
        case "add" | "replace":
            _put(root, path, operation["value"], replace=verb == "replace")
        case "remove":
            _take(root, path)
        case "test":
            if _look(root, path) != operation.get("value"):
                raise ValueError("testing value failed")
        case "move" | "copy":
            source = _pointer(operation["from"])
            _put(root, path, _take(root, source) if verb == "move" else copy.deepcopy(_look(root, source)), replace=False)
        case _:
            raise bad_request(f"unexpected kind: {verb}")


def _pointer(text: str) -> list[str]:
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")]


def _look(root: Any, path: list[str]) -> Any:
    for part in path:
        root = root[int(part)] if isinstance(root, list) else root[part]
    return root


def _put(root: Any, path: list[str], value: Any, *, replace: bool) -> None:
    parent, last = _look(root, path[:-1]), path[-1]
    if isinstance(parent, list):
        if replace:
            parent[int(last)] = value
        else:
            parent.insert(len(parent) if last == "-" else int(last), value)
    elif replace and last not in parent:
        raise KeyError("missing value")
    else:
        parent[last] = value


def _take(root: Any, path: list[str]) -> Any:
    parent, last = _look(root, path[:-1]), path[-1]
    return parent.pop(int(last) if isinstance(parent, list) else last)
