# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the API does with a request, HTTP aside: create, read, update, patch, apply, delete."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import json
import uuid
from typing import Any

from motley_lab.kube import admission, codec, defaults, errors, managed, patch, pod_security, resources, validate
from motley_lab.kube.errors import ApiError, Json
from motley_lab.kube.resources import Registry, Resource
from motley_lab.kube.selectors import Selector
from motley_lab.kube.store import Store

_SERVER_SET = ("uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink",
               "managedFields")
_WITH_GENERATION = frozenset({"Pod", "DaemonSet", "Deployment", "ReplicaSet", "StatefulSet", "Job", "CronJob", "PodDisruptionBudget",
                              "NetworkPolicy", "Ingress", "CustomResourceDefinition"})
_SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_EVENTS_KEPT = 1000
_ORPHAN_WARNING = ("child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set "
                   "propagationPolicy=Orphan to suppress this warning")


@dataclasses.dataclass
class Options:
    """What a request says beside its object; warnings collect here."""

    manager: str = "unknown"
    dry_run: bool = False
    validation: str = "Warn"
    force: bool = False
    warnings: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Target:
    resource: Resource
    namespace: str = ""
    name: str = ""
    sub: str = ""


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def event_form(document: Json, group: str) -> Json:
    """An event as the core or the events.k8s.io API shows it."""
    names = {"involvedObject": "regarding", "message": "note", "reportingComponent": "reportingController", "source": "deprecatedSource",
             "firstTimestamp": "deprecatedFirstTimestamp", "lastTimestamp": "deprecatedLastTimestamp", "count": "deprecatedCount"}
    if not group:
        names = {new: old for old, new in names.items()}
    shown = {names.get(key, key): value for key, value in document.items()}
    return shown | {"kind": "Event", "apiVersion": f"{group}/v1" if group else "v1"}


class Api:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.registry = Registry()
        for definition in store.all("apiextensions.k8s.io/customresourcedefinitions"):
            self.registry.custom[definition["metadata"]["name"]] = resources.custom(definition)
        self._prepare()

    def _prepare(self) -> None:
        """What is there on a new cluster before anyone asks."""
        for name in _SYSTEM_NAMESPACES:
            self._ensure("v1", "namespaces", "", {"metadata": {"name": name}})
        for name, value in (("system-node-critical", 2000001000), ("system-cluster-critical", 2000000000)):
            self._ensure("scheduling.k8s.io/v1", "priorityclasses", "", {"metadata": {"name": name}, "value": value})

    def _ensure(self, api_version: str, plural: str, namespace: str, document: Json) -> None:
        group, _, version = api_version.rpartition("/")
        resource = self.registry.find(group, version, plural)
        if resource is not None and self.store.get(resource.key, namespace, document["metadata"]["name"]) is None:
            self.create(Target(resource, namespace), {"apiVersion": api_version, "kind": resource.kind, **document}, Options("kube-apiserver"))

    # Reading

    def shown(self, document: Json, resource: Resource) -> Json:
        """An object in the version asked for."""
        if resource.kind == "Event":
            return event_form(document, resource.group)
        return document if document["apiVersion"] == resource.api_version else {**document, "apiVersion": resource.api_version}

    def get(self, target: Target) -> Json:
        found = self.store.get(target.resource.key, target.namespace, target.name)
        if found is None:
            raise errors.not_found(target.resource.group, target.resource.plural, target.name)
        return found

    def select(self, target: Target, selector: Selector) -> list[Json]:
        return [entry for entry in self.store.all(target.resource.key, target.namespace) if selector.takes(entry)]

    # Decoding

    def _decoded(self, document: Any, resource: Resource, options: Options, *, patched: bool = False) -> Json:
        if not isinstance(document, dict):
            raise errors.bad_request("the body of the request must be an object")
        for key, wanted, what in (("apiVersion", resource.api_version, "API version"), ("kind", resource.kind, "kind")):
            if document.get(key, wanted) != wanted:
                raise errors.bad_request(f"the {what} in the data ({document[key]}) does not match the expected {what} ({wanted})")
        document = {"kind": resource.kind, "apiVersion": resource.api_version, **document}
        problem = ""
        try:
            kept, unknown = codec.decode(document, resource.schema)
        except codec.TypeProblem as error:
            problem, unknown = str(error), []
        texts = [f'unknown field "{path}"' for path in unknown]
        if texts and options.validation == "Strict":
            problem = f"strict decoding error: {', '.join(texts)}"
        if problem and patched:
            raise errors.unprocessable("", "", "", [errors.invalid("patch", json.dumps(document), problem)])
        if problem:
            raise errors.bad_request(f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: {problem}')
        if options.validation == "Warn":
            options.warnings += texts
        return kept

    # Creating

    def create(self, target: Target, document: Json, options: Options, *, applied: Json | None = None) -> Json:
        """`applied`: the object as a server-side apply gave it; its fields are then the manager's only ones."""
        resource = target.resource
        document = copy.deepcopy(self._decoded(document, resource, options))
        if resource.kind == "Event":
            document = event_form(document, "")
        metadata = document.setdefault("metadata", {})
        if metadata.get("resourceVersion"):
            raise errors.bad_request("resourceVersion should not be set on objects to be created")
        for key in _SERVER_SET:
            metadata.pop(key, None)
        if "generateName" in metadata and not metadata.get("name"):
            metadata["name"] = metadata["generateName"]
        if target.name and metadata.setdefault("name", target.name) != target.name:
            raise errors.bad_request(f"the name of the object ({metadata['name']}) does not match the name on the URL ({target.name})")
        namespace = self._placed(target, metadata)
        metadata.update(uid=str(uuid.uuid4()), creationTimestamp=now())
        if resource.kind in _WITH_GENERATION or resource.columns is not None:
            metadata["generation"] = 1
        self._fill(document, target, options)
        if namespace is not None:
            options.warnings += admission.pod_security_check(namespace, resource.kind, document)
        if self.store.get(resource.key, metadata.get("namespace", ""), metadata["name"]) is not None:
            raise errors.already_exists(resource.group, resource.plural, metadata["name"])
        writer = managed.Writer(options.manager, "Apply" if applied else "Update", resource.api_version)
        status = "status" in resource.subresources
        if applied is not None:
            metadata["managedFields"] = managed.apply(None, applied, resource.schema, writer=writer, force=True, has_status=status,
                                                      now=now()).managed
        else:
            metadata["managedFields"] = managed.after_update(None, document, resource.schema, writer=writer, has_status=status, now=now())
        return document if options.dry_run else self._stored(resource, document)

    def _placed(self, target: Target, metadata: Json) -> Json | None:
        if not target.resource.namespaced:
            metadata.pop("namespace", None)
            return None
        if metadata.setdefault("namespace", target.namespace) != target.namespace:
            raise errors.bad_request("the namespace of the provided object does not match the namespace sent on the request")
        return admission.namespace_open(self.store, target.resource, target.namespace, metadata.get("name", ""))

    def _fill(self, document: Json, target: Target, options: Options) -> None:
        """Defaults, admission's additions and validation of a new object."""
        resource = target.resource
        if "status" in resource.subresources and resource.kind != "Node":
            document.pop("status", None)
        if resource.columns is not None:
            self._named(document)
            problems = validate.metadata(document, resource.kind) + validate.custom(document, resource.schema)
        else:
            defaults.apply_defaults(resource.kind, document)
            if resource.kind == "Service":
                self._cluster_ip(document["spec"])
            if resource.kind == "Pod":
                admission.complete_pod(self.store, document)
            self._named(document)
            defaults.starting(resource.kind, document)
            problems = validate.created(document, resource.kind)
        if not problems and ("containers" in document.get("spec", {}) or "template" in document.get("spec", {})):
            options.warnings += validate.pod_warnings(document, resource.kind)
        if problems:
            raise errors.unprocessable(resource.group, resource.kind, document["metadata"].get("name", ""), problems)

    @staticmethod
    def _named(document: Json) -> None:
        """Only now does a generated name get its end: admission that adds to an object speaks of it without."""
        metadata = document["metadata"]
        if metadata.get("name") and metadata["name"] == metadata.get("generateName"):
            metadata["name"] += defaults.suffix()

    def _cluster_ip(self, spec: Json) -> None:
        if spec["type"] == "ExternalName" or "clusterIP" in spec:
            if spec.get("clusterIP"):
                spec.setdefault("clusterIPs", [spec["clusterIP"]])
            return
        taken = {service["spec"].get("clusterIP") for service in self.store.all("/services")}
        address = next(ip for n in range(1, 65000) if (ip := f"10.96.{n // 250}.{n % 250 + 1}") not in taken)
        spec.update(clusterIP=address, clusterIPs=[address])
        if spec["type"] in ("NodePort", "LoadBalancer"):
            used = {port.get("nodePort") for service in self.store.all("/services") for port in service["spec"].get("ports", [])}
            free = iter(port for port in range(30000, 32768) if port not in used)
            for port in spec.get("ports", []):
                port.setdefault("nodePort", next(free))

    def _stored(self, resource: Resource, document: Json) -> Json:
        document = self.store.put(resource.key, document)
        if resource.kind == "Event" and len(self.store.objects[resource.key]) > _EVENTS_KEPT:
            self.store.delete(resource.key, next(iter(self.store.objects[resource.key].values())))
        if resource.kind == "CustomResourceDefinition":
            document = self._established(document)
        return document

    def _established(self, definition: Json) -> Json:
        names, stamp = definition["spec"]["names"], now()
        self.registry.custom[definition["metadata"]["name"]] = resources.custom(definition)
        old = definition.get("status", {}).get("conditions")
        conditions = old or [
            {"type": "NamesAccepted", "status": "True", "lastTransitionTime": stamp, "reason": "NoConflicts", "message": "no conflicts found"},
            {"type": "Established", "status": "True", "lastTransitionTime": stamp, "reason": "InitialNamesAccepted",
             "message": "the initial names have been accepted"}]
        status = {"conditions": conditions, "acceptedNames": names,
                  "storedVersions": [v["name"] for v in definition["spec"]["versions"] if v.get("storage")]}
        if definition.get("status") == status:
            return definition
        return self.store.put("apiextensions.k8s.io/customresourcedefinitions", {**definition, "status": status})

    # Changing

    def update(self, target: Target, document: Json, options: Options) -> Json:
        live = self.store.get(target.resource.key, target.namespace, target.name)
        if live is None:
            raise errors.not_found(target.resource.group, target.resource.plural, target.name)
        document = self._decoded(document, target.resource, options)
        if document.get("metadata", {}).get("name", target.name) != target.name:
            raise errors.bad_request(
                f"the name of the object ({document['metadata']['name']}) does not match the name on the URL ({target.name})")
        return self._written(target, live, document, options)

    def patched(self, target: Target, content_type: str, body: Any, options: Options) -> tuple[Json, bool]:
        """(object, created): only an apply creates."""
        if content_type.startswith("application/apply-patch"):
            return self._apply(target, body, options)
        live = self.shown(self.get(target), target.resource)
        match content_type:
            case "application/merge-patch+json":
                document = patch.merge(live, body)
            case "application/json-patch+json":
                document = patch.json_patch(live, body)
            case "application/strategic-merge-patch+json":
                if target.resource.columns is not None:
                    raise self._unsupported_media()
                document = patch.strategic(live, body, target.resource.schema)
            case _:
                raise self._unsupported_media()
        return self._written(target, live, self._decoded(document, target.resource, options, patched=True), options), False

    @staticmethod
    def _unsupported_media() -> ApiError:
        return ApiError(415, "UnsupportedMediaType", "the body of the request was in an unknown format - accepted media types include: "
                        "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml")

    def _apply(self, target: Target, body: Any, options: Options) -> tuple[Json, bool]:
        resource = target.resource
        if not options.manager:
            refusal = errors.unprocessable("", "PatchOptions.meta.k8s.io", "",
                                           [errors.required("fieldManager", "is required for apply patch")])
            refusal.status["details"] = {"group": "meta.k8s.io", "kind": "PatchOptions", "causes": refusal.status["details"]["causes"]}
            raise refusal
        if not isinstance(body, dict) or not body.get("apiVersion") or not body.get("kind"):
            raise errors.bad_request("error decoding patch: apiVersion and kind are required")
        if body.get("metadata", {}).get("managedFields"):
            raise errors.bad_request("metadata.managedFields must be nil")
        if body.get("metadata", {}).get("name", target.name) != target.name:
            raise errors.bad_request(f"the name of the object ({body['metadata']['name']}) does not match the name on the URL ({target.name})")
        wanted = self._typed(target, body)
        live = self.store.get(resource.key, target.namespace, target.name)
        if live is None and target.sub:
            raise errors.not_found(resource.group, resource.plural, target.name)
        quiet = dataclasses.replace(options, validation="Ignore")
        if live is None:
            return self.create(target, {**body, "metadata": {**body.get("metadata", {}), "name": target.name}}, quiet, applied=wanted), True
        if (uid := wanted.get("metadata", {}).get("uid")) and uid != live["metadata"]["uid"]:
            raise errors.conflict(resource.group, resource.plural, target.name,
                                  f"Precondition failed: UID in precondition: {uid}, UID in object meta: {live['metadata']['uid']}")
        writer = managed.Writer(options.manager, "Apply", resource.api_version, target.sub)
        done = managed.apply(self.shown(live, resource), wanted, resource.schema, writer=writer, force=options.force,
                             has_status="status" in resource.subresources, now=now())
        return self._written(target, live, self._decoded(done.document, resource, quiet), quiet, managed_fields=done.managed), False

    def _typed(self, target: Target, body: Json) -> Json:
        """The applied object; unlike other writes, an unknown field or a wrong type is an internal error here."""
        resource = target.resource
        wrong = managed.type_errors(body, resource.schema)
        if wrong:
            group = f"{resource.group}/{resource.version}, Kind={resource.kind}"
            where = f"{body.get('metadata', {}).get('namespace', '')}/{target.name}; {group}"
            listed = wrong[0] if len(wrong) == 1 else "errors:" + "".join(f"\n  {text}" for text in wrong)
            raise ApiError(500, "", f"failed to create typed patch object ({where}): {listed}")
        try:
            return codec.decode(body, resource.schema)[0]
        except codec.TypeProblem as error:
            raise errors.bad_request(str(error)) from error

    def _written(self, target: Target, live: Json, document: Json, options: Options, *, managed_fields: list[Json] | None = None) -> Json:
        resource, kind = target.resource, target.resource.kind
        self._check_versions(target, live, document)
        was = live["metadata"]
        metadata = {**document.get("metadata", {}), **{key: was[key] for key in (*_SERVER_SET, "name", "namespace") if key in was}}
        for key in _SERVER_SET:
            if key not in live["metadata"]:
                metadata.pop(key, None)
        document = copy.deepcopy({**document, "metadata": metadata})
        if kind == "Event":
            document = event_form(document, "")
        self._confine(target, live, document)
        problems: list[errors.FieldError] = []
        if target.sub != "status":
            if resource.columns is None:
                defaults.apply_defaults(kind, document)
                if kind == "Pod":
                    admission.default_tolerations(document["spec"])      # the plugin acts on updates too
                problems = validate.created(document, kind) + validate.changed(live, document, kind)
            else:
                problems = validate.metadata(document, kind) + validate.custom(document, resource.schema)
        if problems:
            raise errors.unprocessable(resource.group, kind, target.name, problems)
        options.warnings += self._update_warnings(target, live, document)
        self._next_generation(target, live, document)
        writer = managed.Writer(options.manager, "Update", resource.api_version, target.sub)
        document["metadata"]["managedFields"] = managed_fields if managed_fields is not None else managed.after_update(
            live, document, resource.schema, writer=writer, has_status="status" in resource.subresources, now=now())
        if self._same(live, document):
            return live
        if options.dry_run:
            return document
        if self._may_go(document):
            return self._gone(resource, document)
        return self._stored(resource, document)

    @staticmethod
    def _same(live: Json, document: Json) -> bool:
        def bare(value: Json) -> Json:
            meta = {k: v for k, v in value["metadata"].items() if k != "managedFields"}
            owners = [{k: v for k, v in entry.items() if k != "time"} for entry in value["metadata"].get("managedFields", [])]
            return {**value, "metadata": {**meta, "managedFields": owners}}

        return bare(live) == bare(document)

    def _check_versions(self, target: Target, live: Json, document: Json) -> None:
        given, resource = document.get("metadata", {}), target.resource
        if given.get("resourceVersion") and given["resourceVersion"] != live["metadata"]["resourceVersion"]:
            raise errors.conflict(resource.group, resource.plural, target.name,
                                  "the object has been modified; please apply your changes to the latest version and try again")
        if given.get("uid") and given["uid"] != live["metadata"]["uid"]:
            raise errors.conflict(resource.group, resource.plural, target.name,
                                  f"Precondition failed: UID in precondition: {given['uid']}, UID in object meta: {live['metadata']['uid']}")

    @staticmethod
    def _confine(target: Target, live: Json, document: Json) -> None:
        """A write to an object leaves its status alone, a write to its status all else."""
        if target.sub == "status":
            status = document.get("status")
            document.clear()
            document.update(copy.deepcopy(live))
            document["status"] = status or {}
            if not status:
                document.pop("status")
        elif "status" in target.resource.subresources or target.resource.kind == "Service":
            document.pop("status", None)
            if "status" in live:
                document["status"] = live["status"]
        if target.resource.kind == "Namespace" and target.sub != "finalize":
            document["spec"] = live["spec"]

    def _update_warnings(self, target: Target, live: Json, document: Json) -> list[str]:
        kind = target.resource.kind
        if kind == "Namespace" and pod_security.policy(live, "enforce") != pod_security.policy(document, "enforce"):
            return pod_security.tightened(document, self.store.all("/pods", target.name))
        namespace = self.store.get("/namespaces", "", target.namespace)
        if target.sub or kind == "Pod" or namespace is None or live.get("spec") == document.get("spec"):
            return []
        return admission.pod_security_check(namespace, kind, document)

    @staticmethod
    def _next_generation(target: Target, live: Json, document: Json) -> None:
        if "generation" not in live["metadata"] or target.sub == "status":
            return
        bare = [{key: value for key, value in entry.items() if key not in ("metadata", "status")} for entry in (live, document)]
        if bare[0] != bare[1]:
            document["metadata"]["generation"] = live["metadata"]["generation"] + 1
            if target.resource.kind == "DaemonSet" and live["spec"]["template"] != document["spec"]["template"]:
                notes = document["metadata"].setdefault("annotations", {})
                notes["deprecated.daemonset.template.generation"] = str(document["metadata"]["generation"])

    # Deleting

    @staticmethod
    def _may_go(document: Json) -> bool:
        meta = document["metadata"]
        waiting = meta.get("finalizers") or (document["kind"] == "Namespace" and document.get("spec", {}).get("finalizers"))
        return "deletionTimestamp" in meta and not waiting and not meta.get("deletionGracePeriodSeconds")

    def _gone(self, resource: Resource, document: Json) -> Json:
        if resource.kind == "CustomResourceDefinition":
            for served in self.registry.custom.pop(document["metadata"]["name"], [])[:1]:
                for entry in self.store.all(served.key):
                    self.store.delete(served.key, entry)
        return self.store.delete(resource.key, document)

    def delete(self, target: Target, body: Json, options: Options) -> Json:
        resource, live = target.resource, self.get(target)
        wanted = body.get("preconditions") or {}
        for key, what in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
            if wanted.get(key) and wanted[key] != live["metadata"].get(key):
                raise errors.conflict(resource.group, resource.plural, target.name, f"Precondition failed: {what} in precondition: "
                                      f"{wanted[key]}, {what} in object meta: {live['metadata'].get(key)}")
        if resource.kind == "Namespace" and target.name in _SYSTEM_NAMESPACES[:3]:
            raise errors.forbidden("", "namespaces", target.name, "this namespace may not be deleted")
        document = copy.deepcopy(live)
        metadata = document["metadata"]
        grace = self._grace(document, body.get("gracePeriodSeconds"))
        finalizers = [*metadata.get("finalizers", []), *self._propagation(resource, body, options)]
        if finalizers:
            metadata["finalizers"] = list(dict.fromkeys(finalizers))
        repeated = "deletionTimestamp" in metadata
        if not repeated or (grace is not None and grace < metadata.get("deletionGracePeriodSeconds", 0)):
            moment = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=grace or 0)
            metadata["deletionTimestamp"] = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
            metadata["deletionGracePeriodSeconds"] = grace or 0
            if "generation" in metadata and not repeated:
                metadata["generation"] += 1
        if resource.kind == "Namespace":
            document["status"] = {**document.get("status", {}), "phase": "Terminating"}
            metadata.pop("deletionGracePeriodSeconds")
        if options.dry_run:
            return document
        if not self._may_go(document):
            return live if document == live else self.store.put(resource.key, document)
        if resource.kind == "Pod":
            return self._gone(resource, document)
        self._gone(resource, document)
        details = {"name": target.name, **({"group": resource.group} if resource.group else {}), "kind": resource.plural, "uid": metadata["uid"]}
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}

    @staticmethod
    def _grace(document: Json, asked: int | None) -> int | None:
        if document["kind"] != "Pod":
            return None
        if not document["spec"].get("nodeName") or document["status"].get("phase") in ("Succeeded", "Failed"):
            return 0
        return asked if asked is not None else document["spec"].get("terminationGracePeriodSeconds", 30)

    @staticmethod
    def _propagation(resource: Resource, body: Json, options: Options) -> list[str]:
        policy = body.get("propagationPolicy") or {True: "Orphan", False: "Background"}.get(body.get("orphanDependents", ""))
        if policy is None and resource.kind == "Job":
            options.warnings.append(_ORPHAN_WARNING)
            policy = "Orphan"
        return {"Foreground": ["foregroundDeletion"], "Orphan": ["orphan"]}.get(policy or "", [])

    # Pods

    def bind(self, target: Target, body: Json) -> Json:
        pod, node = self.get(target), body.get("target", {}).get("name", "")
        if pod["spec"].get("nodeName"):
            raise errors.conflict("", "pods/binding", target.name, f'pod {target.name} is already assigned to node "{pod["spec"]["nodeName"]}"')
        conditions = [entry for entry in pod["status"].get("conditions", []) if entry["type"] != "PodScheduled"]
        conditions.append({"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now()})
        self.store.put("/pods", {**pod, "spec": {**pod["spec"], "nodeName": node}, "status": {**pod["status"], "conditions": conditions}})
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    def evict(self, target: Target, body: Json, options: Options) -> Json:
        pod = self.get(target)
        labels, done = pod["metadata"].get("labels", {}), {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
        budgets = [budget for budget in self.store.all("policy/poddisruptionbudgets", target.namespace)
                   if validate.matches(budget["spec"].get("selector", {}), labels)]
        if _healthy(pod):
            for budget in budgets:
                self._within(budget)
        self.delete(target, body.get("deleteOptions") or {}, options)
        return done

    def _within(self, budget: Json) -> None:
        spec = budget["spec"]
        covered = [pod for pod in self.store.all("/pods", budget["metadata"]["namespace"])
                   if validate.matches(spec.get("selector", {}), pod["metadata"].get("labels", {}))]
        healthy = sum(map(_healthy, covered))
        needed = _share(spec["minAvailable"], len(covered)) if "minAvailable" in spec else len(covered) - _share(
            spec.get("maxUnavailable", 1), len(covered))
        if healthy - 1 < needed:
            name = budget["metadata"]["name"]
            text = f"The disruption budget {name} needs {needed} healthy pods and has {healthy} currently"
            raise ApiError(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.",
                           details={"causes": [{"reason": "DisruptionBudget", "message": text}]})


def _share(value: int | str, total: int) -> int:
    return -(-int(value[:-1]) * total // 100) if isinstance(value, str) else value


def _healthy(pod: Json) -> bool:
    ready = {entry["type"]: entry["status"] for entry in pod["status"].get("conditions", [])}.get("Ready") == "True"
    return ready and "deletionTimestamp" not in pod["metadata"]
