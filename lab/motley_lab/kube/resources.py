# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which resources there are, and the discovery and OpenAPI documents that say so."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

from motley_lab.kube.errors import Json
from motley_lab.kube.schema import Type

VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_ANSWER_ONLY = frozenset({"SelfSubjectReview", "SelfSubjectAccessReview"})
_SUBRESOURCES: dict[str, tuple[str, list[str]]] = {
    "status": ("", ["get", "patch", "update"]), "finalize": ("", ["update"]), "log": ("", ["get"]), "binding": ("Binding", ["create"]),
    "eviction": ("Eviction", ["create"]), "exec": ("PodExecOptions", ["create", "get"]),
}
VERSION: Json = {
    "major": "1", "minor": "36", "emulationMajor": "1", "emulationMinor": "36", "minCompatibilityMajor": "1", "minCompatibilityMinor": "35",
    "gitVersion": "v1.36.1", "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z", "goVersion": "go1.26.8",
    "compiler": "gc", "platform": "linux/amd64",
}


@dataclasses.dataclass(frozen=True)
class Resource:
    group: str
    version: str
    plural: str
    singular: str
    kind: str
    namespaced: bool
    short: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    schema: Type = "object"
    columns: tuple[Json, ...] | None = None
    """Printer columns of a custom resource; None for a built-in one."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def key(self) -> str:
        """Where its objects are kept; both event APIs show the same objects."""
        return "/events" if self.kind == "Event" else f"{self.group}/{self.plural}"

    @property
    def verbs(self) -> list[str]:
        if self.kind in _ANSWER_ONLY:
            return ["create"]
        return [verb for verb in VERBS if verb != "deletecollection" or self.kind != "Namespace"]


def _builtin() -> list[Resource]:
    found = []
    for line in (pathlib.Path(__file__).parent / "resources.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        where, plural, singular, kind, scope, short, categories, subs = line.split()
        group, _, version = where.rpartition("/")
        model = {("", "Event"): "CoreV1Event", ("events.k8s.io", "Event"): "EventsV1Event"}.get((group, kind), f"V1{kind}")
        names, kinds, below = (tuple(text.split(",")) if text != "-" else () for text in (short, categories, subs))
        found.append(Resource(group, version, plural, singular, kind, scope == "N", names, kinds, below, model))
    return found


def custom(definition: Json) -> list[Resource]:
    """The resources that a CustomResourceDefinition adds, one for each served version."""
    spec, names = definition["spec"], definition["spec"]["names"]
    return [
        Resource(spec["group"], version["name"], names["plural"], names["singular"], names["kind"], spec["scope"] == "Namespaced",
                 tuple(names.get("shortNames", ())), tuple(names.get("categories", ())),
                 ("status",) if "status" in version.get("subresources", {}) else (),
                 version.get("schema", {}).get("openAPIV3Schema", {"type": "object"}), tuple(version.get("additionalPrinterColumns", ())))
        for version in spec["versions"] if version.get("served")
    ]


class Registry:
    def __init__(self) -> None:
        self.builtin = _builtin()
        self.custom: dict[str, list[Resource]] = {}

    def all(self) -> list[Resource]:
        return self.builtin + [resource for resources in self.custom.values() for resource in resources]

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        return next((r for r in self.all() if (r.group, r.version, r.plural) == (group, version, plural)), None)

    def groups(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for resource in self.all():
            versions = found.setdefault(resource.group, [])
            if resource.version not in versions:
                versions.append(resource.version)
        return found

    def group_list(self, address: str) -> Json:
        groups = [self.group(name) for name in self.groups() if name]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}

    def group(self, name: str) -> Json:
        versions = [{"groupVersion": f"{name}/{version}", "version": version} for version in self.groups()[name]]
        return {"name": name, "versions": versions, "preferredVersion": versions[0]}

    def resource_list(self, group: str, version: str) -> Json | None:
        found: list[Json] = []
        for resource in self.all():
            if (resource.group, resource.version) != (group, version):
                continue
            entry: Json = {"name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced,
                           "kind": resource.kind, "verbs": resource.verbs}
            entry |= {key: list(value) for key, value in (("shortNames", resource.short), ("categories", resource.categories)) if value}
            found.append(entry)
            for sub in resource.subresources:
                kind, verbs = _SUBRESOURCES[sub]
                other = {"group": "policy", "version": "v1"} if sub == "eviction" else {}
                found.append({"name": f"{resource.plural}/{sub}", "singularName": "", "namespaced": resource.namespaced, **other,
                              "kind": kind or resource.kind, "verbs": verbs})
        if not found:
            return None
        return {"kind": "APIResourceList", **({"apiVersion": "v1"} if group else {}),
                "groupVersion": f"{group}/{version}" if group else version, "resources": found}

    def aggregated(self, *, core: bool) -> Json:
        items: list[Json] = []
        for group, versions in self.groups().items():
            if (group == "") != core:
                continue
            listed = [{"version": version, "freshness": "Current", "resources": [
                self._aggregate(r) for r in self.all() if (r.group, r.version) == (group, version)]} for version in versions]
            items.append({"metadata": {"name": group} if group else {}, "versions": listed})
        return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}

    @staticmethod
    def _aggregate(resource: Resource) -> Json:
        kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
        entry: Json = {"resource": resource.plural, "responseKind": kind, "scope": "Namespaced" if resource.namespaced else "Cluster",
                       "singularResource": resource.singular, "verbs": resource.verbs}
        entry |= {key: list(value) for key, value in (("shortNames", resource.short), ("categories", resource.categories)) if value}
        if resource.subresources:
            entry["subresources"] = [{"subresource": sub, "responseKind": {**kind, "kind": _SUBRESOURCES[sub][0] or resource.kind},
                                      "verbs": _SUBRESOURCES[sub][1]} for sub in resource.subresources]
        return entry

    def openapi_index(self) -> Json:
        names = [f"apis/{group}/{version}" if group else f"api/{version}" for group, versions in self.groups().items() for version in versions]
        return {"paths": {name: {"serverRelativeURL": f"/openapi/v3/{name}?hash=1"} for name in names}}

    def openapi(self, group: str, version: str) -> Json:
        """Only what kubectl looks for: that PATCH takes `fieldValidation` and `dryRun`, so that it leaves both to the server."""
        root = f"/apis/{group}/{version}" if group else f"/api/{version}"
        parameters = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in ("dryRun", "fieldManager", "fieldValidation", "force")]
        paths: dict[str, Any] = {}
        for r in self.all():
            if (r.group, r.version) == (group, version):
                kind = {"group": group, "version": version, "kind": r.kind}
                path = f"{root}/namespaces/{{namespace}}/{r.plural}/{{name}}" if r.namespaced else f"{root}/{r.plural}/{{name}}"
                paths[path] = {"patch": {"parameters": parameters, "responses": {}, "x-kubernetes-group-version-kind": kind}}
        return {"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": VERSION["gitVersion"]}, "paths": paths}
