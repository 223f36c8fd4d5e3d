# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""API errors, as the Status objects that clients get."""

from __future__ import annotations

import json
from typing import Any

Json = dict[str, Any]


class ApiError(Exception):
    """A refusal; `status` is the body."""

    def __init__(self, code: int, reason: str, message: str, *, details: Json | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
        if reason:
            self.status["reason"] = reason
        if details:
            self.status["details"] = details
        self.status["code"] = code


class FieldError(tuple[str, str, str]):
    """(field, cause, message): one thing wrong with an object."""

    __slots__ = ()


def _shown(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def required(field: str, detail: str = "") -> FieldError:
    return FieldError((field, "FieldValueRequired", "Required value" + (f": {detail}" if detail else "")))


def invalid(field: str, value: Any, detail: str) -> FieldError:
    return FieldError((field, "FieldValueInvalid", f"Invalid value: {_shown(value)}: {detail}"))


def unsupported(field: str, value: Any, allowed: tuple[str, ...]) -> FieldError:
    listed = ", ".join(_shown(name) for name in sorted(allowed))
    return FieldError((field, "FieldValueNotSupported", f"Unsupported value: {_shown(value)}: supported values: {listed}"))


def duplicate(field: str, value: Any) -> FieldError:
    return FieldError((field, "FieldValueDuplicate", f"Duplicate value: {_shown(value)}"))


def missing(field: str, value: Any) -> FieldError:
    return FieldError((field, "FieldValueNotFound", f"Not found: {_shown(value)}"))


def denied(field: str, detail: str) -> FieldError:
    return FieldError((field, "FieldValueForbidden", f"Forbidden: {detail}"))


def unprocessable(group: str, kind: str, name: str, errors: list[FieldError]) -> ApiError:
    """422 with all that is wrong; equal errors once."""
    unique = list(dict.fromkeys(errors))
    texts = [f"{field}: {message}" for field, _, message in unique]
    details: Json = {"name": name, **({"group": group} if group else {}), "kind": kind}
    details["causes"] = [{"reason": cause, "message": message, "field": field} for field, cause, message in unique]
    label = f"{kind}.{group}" if group else kind
    listed = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    return ApiError(422, "Invalid", f'{label} "{name}" is invalid: {listed}', details=details)


def _named(group: str, plural: str, name: str) -> tuple[str, Json]:
    label = f"{plural}.{group}" if group else plural
    return label, {"name": name, **({"group": group} if group else {}), "kind": plural}


def not_found(group: str, plural: str, name: str) -> ApiError:
    label, details = _named(group, plural, name)
    return ApiError(404, "NotFound", f'{label} "{name}" not found', details=details)


def already_exists(group: str, plural: str, name: str) -> ApiError:
    label, details = _named(group, plural, name)
    return ApiError(409, "AlreadyExists", f'{label} "{name}" already exists', details=details)


def forbidden(group: str, plural: str, name: str, why: str) -> ApiError:
    label, details = _named(group, plural, name)
    return ApiError(403, "Forbidden", f'{label} "{name}" is forbidden: {why}', details=details)


def conflict(group: str, plural: str, name: str, why: str) -> ApiError:
    label, details = _named(group, plural, name)
    return ApiError(409, "Conflict", f'Operation cannot be fulfilled on {label} "{name}": {why}', details=details)


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def unimplemented(what: str) -> ApiError:
    """The lab's bound: what nobody needed yet is refused by name."""
    return ApiError(501, "NotImplemented", f"the lab's API server does not implement {what}")
