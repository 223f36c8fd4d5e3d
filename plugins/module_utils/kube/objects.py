# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kubernetes objects as plain data: identity, address in the API, order of creation, redaction and difference."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError

Object = dict[str, Any]

HIDDEN = "<secret>"
CHANGED = ("<secret, as it was>", "<secret, changed>")
GENERATED = "<generated>"

# kind -> (plural, namespaced). What is not here is looked up by discovery.
_RESOURCES: dict[tuple[str, str], tuple[str, bool]] = {
    ("v1", "Namespace"): ("namespaces", False),
    ("v1", "Node"): ("nodes", False),
    ("v1", "ConfigMap"): ("configmaps", True),
    ("v1", "Secret"): ("secrets", True),
    ("v1", "ServiceAccount"): ("serviceaccounts", True),
    ("v1", "Service"): ("services", True),
    ("v1", "Pod"): ("pods", True),
    ("v1", "Event"): ("events", True),
    ("v1", "PersistentVolumeClaim"): ("persistentvolumeclaims", True),
    ("v1", "PersistentVolume"): ("persistentvolumes", False),
    ("apps/v1", "DaemonSet"): ("daemonsets", True),
    ("apps/v1", "Deployment"): ("deployments", True),
    ("apps/v1", "StatefulSet"): ("statefulsets", True),
    ("batch/v1", "Job"): ("jobs", True),
    ("node.k8s.io/v1", "RuntimeClass"): ("runtimeclasses", False),
    ("rbac.authorization.k8s.io/v1", "Role"): ("roles", True),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): ("rolebindings", True),
    ("rbac.authorization.k8s.io/v1", "ClusterRole"): ("clusterroles", False),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): ("clusterrolebindings", False),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"): ("customresourcedefinitions", False),
    ("scheduling.k8s.io/v1", "PriorityClass"): ("priorityclasses", False),
    ("networking.k8s.io/v1", "NetworkPolicy"): ("networkpolicies", True),
}

# What others need comes first: a Pod is refused before its namespace, RuntimeClass and volumes exist.
_ORDER = (
    "Namespace",
    "CustomResourceDefinition",
    "PriorityClass",
    "RuntimeClass",
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "NetworkPolicy",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "ConfigMap",
    "Secret",
    "Service",
)

# Fields that the server writes, without meaning for a person who compares.
_SERVER_METADATA = (
    "managedFields",
    "resourceVersion",
    "generation",
    "uid",
    "creationTimestamp",
    "selfLink",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)


@dataclass(frozen=True)
class Identity:
    """Which object: enough to address it."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


@dataclass(frozen=True)
class Resource:
    """How a kind is addressed."""

    api_version: str
    plural: str
    namespaced: bool

    def path(self, *, namespace: str = "", name: str = "") -> str:
        """The URL path of one object, or of the collection without a name."""
        root = "/api/v1" if self.api_version == "v1" else f"/apis/{self.api_version}"
        if self.namespaced and namespace:
            root += f"/namespaces/{namespace}"
        return f"{root}/{self.plural}" + (f"/{name}" if name else "")


def resource(api_version: str, kind: str) -> Resource | None:
    """A kind of the table; None: ask the server."""
    row = _RESOURCES.get((api_version, kind))
    return Resource(api_version, *row) if row else None


def identity(definition: Mapping[str, Any], *, namespace: str = "") -> Identity:
    """Which object a definition describes; namespace is the default for those that name none."""
    api_version, kind = str(definition.get("apiVersion") or ""), str(definition.get("kind") or "")
    metadata = definition.get("metadata") or {}
    name = str(metadata.get("name") or "")
    if not (api_version and kind and name):
        missing = [key for key, value in (("apiVersion", api_version), ("kind", kind), ("metadata.name", name)) if not value]
        raise MotleyError(
            f"a definition has no {' and no '.join(missing)}: {json.dumps(redact(definition))[:120]}",
            hint="every definition needs apiVersion, kind and metadata.name (generateName can not be applied twice)",
        )
    row = resource(api_version, kind)
    own = str(metadata.get("namespace") or "")
    return Identity(api_version, kind, name, "" if row and not row.namespaced else (own or namespace))


def ordered(definitions: Iterable[Object], *, removal: bool = False) -> list[Object]:
    """Definitions in the order in which they can be created, or deleted (the reverse)."""

    def place(definition: Object) -> int:
        kind = str(definition.get("kind"))
        return _ORDER.index(kind) if kind in _ORDER else len(_ORDER)

    return sorted(definitions, key=lambda d: -place(d) if removal else place(d))


def fingerprint(value: Any) -> str:
    """A digest of plain data that does not depend on the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def stripped(live: Mapping[str, Any]) -> Object:
    """An object without what the server adds and without its state: what a person compares."""
    result: Object = {k: copy.deepcopy(v) for k, v in live.items() if k != "status"}
    metadata = dict(result.get("metadata") or {})
    for key in _SERVER_METADATA:
        metadata.pop(key, None)
    annotations = {k: v for k, v in (metadata.get("annotations") or {}).items() if not k.startswith("kubectl.kubernetes.io/last-applied")}
    if "annotations" in metadata:
        metadata["annotations"] = annotations
        if not annotations:
            del metadata["annotations"]
    result["metadata"] = metadata
    return result


def redact(definition: Mapping[str, Any], *, text: str = HIDDEN) -> Object:
    """A copy whose secret values are replaced; keys stay."""
    result: Object = copy.deepcopy(dict(definition))
    if result.get("kind") == "Secret":
        for part in ("data", "stringData"):
            if result.get(part):
                result[part] = dict.fromkeys(sorted(result[part]), text)
    return result


def _secret_values(definition: Mapping[str, Any]) -> dict[str, str]:
    """data and stringData as one map of base64 texts, as the server stores it."""
    values = {str(k): str(v) for k, v in (definition.get("data") or {}).items()}
    for key, value in (definition.get("stringData") or {}).items():
        values[str(key)] = base64.b64encode(str(value).encode()).decode()
    return values


def secret_value(live: Mapping[str, Any], key: str) -> str:
    """One value of a live Secret; empty if it is not there."""
    text = _secret_values(live).get(key, "")
    return base64.b64decode(text).decode(errors="replace") if text else ""


def secret_texts(definition: Mapping[str, Any]) -> list[str]:
    """Every secret value of a definition, as it is and in base64: what must not appear in a result."""
    if definition.get("kind") != "Secret":
        return []
    texts = []
    for value in _secret_values(definition).values():
        texts.append(value)
        try:
            texts.append(base64.b64decode(value).decode())
        except ValueError:
            continue  # binary, or no base64 at all: the server will say so
    return texts


def redacted_pair(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> tuple[Object, Object]:
    """Both sides of a difference, secrets shown as changed or not, never as values."""
    left, right = stripped(before or {}) if before else {}, stripped(after or {}) if after else {}
    if "Secret" not in (left.get("kind"), right.get("kind")):
        return left, right
    old, new = _secret_values(left), _secret_values(right)
    for side, values, mark in ((left, old, CHANGED[0]), (right, new, CHANGED[1])):
        if not side:
            continue
        side.pop("stringData", None)
        side["data"] = {key: HIDDEN if old.get(key) == new.get(key) else mark for key in sorted(values)}
    return left, right


def same(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether an apply (dry or not) left an object as it was."""
    return stripped(before) == stripped(after)


def render(definitions: Sequence[Mapping[str, Any]]) -> list[Object]:
    """Definitions for files that people read: no secret values."""
    return [redact(d, text=GENERATED) for d in definitions]
