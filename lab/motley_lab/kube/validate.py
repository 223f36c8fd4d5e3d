# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the real server refuses with 422: values that are wrong, and fields that may not change."""

from __future__ import annotations

import difflib
import json
import re
from typing import Any

from motley_lab.kube import pod_security, schema
from motley_lab.kube.errors import FieldError, Json, denied, duplicate, invalid, missing, required, unsupported
from motley_lab.kube.schema import Type

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_LABEL_TEXT = ("a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an "
               f"alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')")
_SUBDOMAIN_TEXT = ("a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end "
                   f"with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_LABEL}(\\.{_LABEL})*')")
_VALUE = r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"
_VALUE_TEXT = ("a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with "
               f"an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '{_VALUE}')")
_DATA_KEY = r"[-._a-zA-Z0-9]+"
_DATA_KEY_TEXT = ("a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or "
                  f"'key-name', regex used for validation is '{_DATA_KEY}')")
_HOST_PATHS = ("", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket")
_NATIVE = frozenset({"cpu", "memory", "ephemeral-storage"})
_POD_UPDATE = ("pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
               "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
               "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)")


def _name(value: str, field: str, *, label: bool) -> list[FieldError]:
    limit = 63 if label else 253
    if not value:
        return [required(field)]
    found = [] if re.fullmatch(_LABEL if label else _SUBDOMAIN, value) else [invalid(field, value, _LABEL_TEXT if label else _SUBDOMAIN_TEXT)]
    return found + ([invalid(field, value, f"must be no more than {limit} bytes")] if len(value) > limit else [])


def metadata(document: Json, kind: str) -> list[FieldError]:
    meta = document["metadata"]
    if not meta.get("name"):
        return [required("metadata.name", "name or generateName is required")]
    free = kind in ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    errors = [] if free else _name(meta["name"], "metadata.name", label=kind in ("Namespace", "Service"))
    return errors + _labels(meta.get("labels", {}), "metadata.labels")


def _labels(labels: dict[str, str], field: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for value in labels.values():
        if len(value) > 63:
            errors.append(invalid(field, value, "must be no more than 63 bytes"))
        elif not re.fullmatch(_VALUE, value):
            errors.append(invalid(field, value, _VALUE_TEXT))
    return errors


def _resources(resources: Json, field: str) -> list[FieldError]:
    errors: list[FieldError] = []
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    for kind, values in (("limits", limits), ("requests", requests)):
        for name, value in sorted(values.items()):
            at = f"{field}.{kind}[{name}]"
            if schema.quantity(value) < 0:
                errors.append(invalid(at, value, "must be greater than or equal to 0"))
            if name not in _NATIVE and "/" not in name and not name.startswith("hugepages-"):
                errors.append(invalid(at, name, "must be a standard resource type or fully qualified"))
                errors.append(invalid(at, name, "must be a standard resource for containers"))
            if name not in _NATIVE and schema.quantity(value) % 1:
                errors.append(invalid(at, value, "must be an integer"))
            if kind == "limits":
                continue
            limit = limits.get(name)
            if limit is None:
                if name not in _NATIVE:
                    errors.append(required(f"{field}.limits", "Limit must be set for non overcommitable resources"))
            elif name not in _NATIVE and schema.quantity(value) != schema.quantity(limit):
                errors.append(invalid(f"{field}.requests", value, f"must be equal to {name} limit of {limit}"))
            elif schema.quantity(value) > schema.quantity(limit):
                errors.append(invalid(f"{field}.requests", value, f"must be less than or equal to {name} limit of {limit}"))
    return errors


def _ports(container: Json, field: str, *, host: bool, pod: bool) -> list[FieldError]:
    errors: list[FieldError] = []
    names: set[str] = set()
    for index, port in enumerate(container.get("ports", [])):
        at = f"{field}.ports[{index}]"
        if name := port.get("name"):
            if name in names:
                errors.append(duplicate(f"{at}.name", name))
            names.add(name)
        for key in ("containerPort", "hostPort"):
            number = port.get(key, 0)
            if not number and key == "containerPort":
                errors.append(required(f"{at}.{key}"))
            elif number and not 0 < number < 65536:
                errors.append(invalid(f"{at}.{key}", number, "must be between 1 and 65535, inclusive"))
        if port.get("protocol") not in (None, "TCP", "UDP", "SCTP"):
            errors.append(unsupported(f"{at}.protocol", port["protocol"], ("SCTP", "TCP", "UDP")))
        if host and (pod or port.get("hostPort")) and port.get("hostPort", 0) != port.get("containerPort"):
            errors.append(invalid(f"{at}.hostPort", port.get("hostPort", 0), "must match `containerPort` when `hostNetwork` is true"))
    return errors


def _container(container: Json, field: str, volumes: dict[str, Json], *, host: bool, pod: bool) -> list[FieldError]:
    errors = _name(container.get("name", ""), f"{field}.name", label=True)
    if not container.get("image"):
        errors.append(required(f"{field}.image"))
    errors += _ports(container, field, host=host, pod=pod)
    for index, entry in enumerate(container.get("env", [])):
        at = f"{field}.env[{index}]"
        if not entry.get("name"):
            errors.append(required(f"{at}.name"))
        if entry.get("value") and entry.get("valueFrom"):
            errors.append(invalid(f"{at}.valueFrom", "", "may not be specified when `value` is not empty"))
        elif "valueFrom" in entry and len(entry["valueFrom"]) != 1:
            many = "may not have more than one field specified at a time"
            none = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
            errors.append(invalid(f"{at}.valueFrom", "", many if entry["valueFrom"] else none))
    paths: set[str] = set()
    for index, mount in enumerate(container.get("volumeMounts", [])):
        at = f"{field}.volumeMounts[{index}]"
        if not mount.get("name"):
            errors.append(required(f"{at}.name"))
        elif mount["name"] not in volumes:
            errors.append(missing(f"{at}.name", mount["name"]))
        if not mount.get("mountPath"):
            errors.append(required(f"{at}.mountPath"))
        elif mount["mountPath"] in paths:
            errors.append(invalid(f"{at}.mountPath", mount["mountPath"], "must be unique"))
        paths.add(mount.get("mountPath", ""))
    if container.get("imagePullPolicy") not in ("Always", "IfNotPresent", "Never", None):
        errors.append(unsupported(f"{field}.imagePullPolicy", container["imagePullPolicy"], ("Always", "IfNotPresent", "Never")))
    return errors + _resources(container.get("resources", {}), f"{field}.resources")


def _volumes(spec: Json, field: str) -> list[FieldError]:
    errors: list[FieldError] = []
    seen: set[str] = set()
    for index, volume in enumerate(spec.get("volumes", [])):
        at = f"{field}.volumes[{index}]"
        name = volume.get("name", "")
        errors += _name(name, f"{at}.name", label=True)
        if name and name in seen:
            errors.append(duplicate(f"{at}.name", name))
        seen.add(name)
        sources = [key for key in volume if key != "name"]
        errors += [denied(f"{at}.{key}", "may not specify more than 1 volume type") for key in sources[1:]]
        path = volume.get("hostPath")
        if path is not None and not path.get("path"):
            errors.append(required(f"{at}.hostPath.path"))
        elif path is not None and ".." in path["path"].split("/"):
            errors.append(invalid(f"{at}.hostPath.path", path["path"], "must not contain '..'"))
        if path is not None and path.get("type", "") not in _HOST_PATHS:
            errors.append(unsupported(f"{at}.hostPath.type", path["type"], _HOST_PATHS))
        for source, key in (("secret", "secretName"), ("configMap", "name"), ("persistentVolumeClaim", "claimName")):
            if source in volume and not volume[source].get(key):
                errors.append(required(f"{at}.{source}.{key}"))
    return errors


def _tolerations(spec: Json, field: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, entry in enumerate(spec.get("tolerations", [])):
        at, operator = f"{field}.tolerations[{index}]", entry.get("operator", "Equal")
        if not entry.get("key") and operator != "Exists":
            errors.append(invalid(f"{at}.operator", entry.get("operator", ""),
                                  'operator must be Exists when `key` is empty, which means "match all values and all keys"'))
        if operator == "Exists" and entry.get("value"):
            errors.append(invalid(f"{at}.operator", entry["value"], "value must be empty when `operator` is 'Exists'"))
        if operator not in ("Equal", "Exists"):
            errors.append(unsupported(f"{at}.operator", operator, ("Equal", "Exists")))
        if entry.get("effect", "NoSchedule") not in ("NoExecute", "NoSchedule", "PreferNoSchedule"):
            errors.append(unsupported(f"{at}.effect", entry["effect"], ("NoExecute", "NoSchedule", "PreferNoSchedule")))
    return errors


def pod_spec(spec: Json, field: str, *, pod: bool) -> list[FieldError]:
    errors = _volumes(spec, field)
    volumes = {volume.get("name", ""): volume for volume in spec.get("volumes", [])}
    host, names, used = bool(spec.get("hostNetwork")), set[str](), set[str]()
    if not spec.get("containers"):
        errors.append(required(f"{field}.containers"))
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(kind, [])):
            at, name = f"{field}.{kind}[{index}]", container.get("name", "")
            errors += _container(container, at, volumes, host=host, pod=pod)
            if name and name in names:
                errors.append(duplicate(f"{at}.name", name))
            names.add(name)
            for number, port in enumerate(container.get("ports", []) if kind == "containers" else []):
                text = f"{port.get('protocol', 'TCP')}/{port.get('hostIP', '')}/{port.get('hostPort', 0)}"
                if port.get("hostPort") and text in used:
                    errors.append(duplicate(f"{at}.ports[{number}].hostPort", text))
                used.add(text)
    if spec.get("restartPolicy") not in ("Always", "Never", "OnFailure"):
        errors.append(unsupported(f"{field}.restartPolicy", spec.get("restartPolicy"), ("Always", "Never", "OnFailure")))
    if spec.get("dnsPolicy") not in ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"):
        errors.append(unsupported(f"{field}.dnsPolicy", spec.get("dnsPolicy"), ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")))
    return errors + _labels(spec.get("nodeSelector", {}), f"{field}.nodeSelector") + _tolerations(spec, field)


def pod_warnings(document: Json, kind: str) -> list[str]:
    """What is allowed and most likely a mistake: a variable that is given twice."""
    field, spec = "spec", document["spec"]
    if kind != "Pod":
        field, spec = "spec.template.spec", spec.get("template", {}).get("spec", {})
    found: list[str] = []
    for name in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(name, [])):
            seen: set[str] = set()
            for number, entry in enumerate(container.get("env", [])):
                quoted = f"$({entry['name']})"
                if entry["name"] in seen and (entry.get("value", "") == quoted or quoted not in entry.get("value", "")):
                    found.append(f"{field}.{name}[{index}].env[{number}]: hides previous definition of \"{entry['name']}\", "
                                 "which may be dropped when using apply")
                seen.add(entry["name"])
    return found


def matches(selector: Json, labels: dict[str, str]) -> bool:
    """Whether a LabelSelector takes these labels."""
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    for rule in selector.get("matchExpressions", []):
        value, values = labels.get(rule["key"]), rule.get("values", [])
        good = {"In": value in values, "NotIn": value not in values, "Exists": value is not None, "DoesNotExist": value is None}
        if not good.get(rule["operator"], False):
            return False
    return True


def _template(document: Json, kind: str) -> list[FieldError]:
    spec = document.get("spec", {})
    template, selector = spec.get("template", {}), spec.get("selector")
    labels = template.get("metadata", {}).get("labels", {})
    errors: list[FieldError] = []
    if kind != "Job":
        if not selector:
            errors.append(required("spec.selector") if selector is None else
                          invalid("spec.selector", selector, f"empty selector is invalid for {kind.lower()}"))
        elif not matches(selector, labels):
            errors.append(invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`"))
    errors += pod_spec(template.get("spec", {}), "spec.template.spec", pod=False)
    policy = template.get("spec", {}).get("restartPolicy")
    if kind == "Job" and policy == "Always":
        errors.append(required("spec.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"'))
    elif kind != "Job" and policy in ("Never", "OnFailure"):
        errors.append(unsupported("spec.template.spec.restartPolicy", policy, ("Always",)))
    return errors


def _service(spec: Json) -> list[FieldError]:
    errors: list[FieldError] = []
    ports = spec.get("ports", [])
    if not ports and spec.get("clusterIP") != "None" and spec.get("type") != "ExternalName":
        errors.append(required("spec.ports"))
    for index, port in enumerate(ports):
        if len(ports) > 1 and not port.get("name"):
            errors.append(required(f"spec.ports[{index}].name"))
        if not 0 < port.get("port", 0) < 65536:
            errors.append(invalid(f"spec.ports[{index}].port", port.get("port", 0), "must be between 1 and 65535, inclusive"))
    kinds = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
    return errors + ([] if spec.get("type") in kinds else [unsupported("spec.type", spec.get("type"), kinds)])


def created(document: Json, kind: str) -> list[FieldError]:
    """What is wrong with an object of a built-in kind."""
    errors, spec = metadata(document, kind), document.get("spec", {})
    match kind:
        case "Pod":
            errors += pod_spec(spec, "spec", pod=True)
        case "DaemonSet" | "Deployment" | "ReplicaSet" | "StatefulSet" | "Job":
            errors += _template(document, kind)
        case "Service":
            errors += _service(spec)
        case "RuntimeClass":
            errors += _name(document.get("handler", ""), "handler", label=True)
        case "ConfigMap" | "Secret":
            errors += [invalid(f"data[{key}]", key, _DATA_KEY_TEXT) for key in document.get("data", {}) if not re.fullmatch(_DATA_KEY, key)]
        case "Namespace":
            errors += pod_security.label_errors(document["metadata"].get("labels", {}))
        case "PersistentVolumeClaim":
            if not spec.get("accessModes"):
                errors.append(required("spec.accessModes", "at least 1 access mode is required"))
            if "storage" not in spec.get("resources", {}).get("requests", {}):
                errors.append(required("spec.resources[storage]"))
    return errors


def _pod_changes(old: Json, new: Json) -> list[FieldError]:
    def fixed(spec: Json) -> Json:
        kept = {key: value for key, value in spec.items() if key not in ("tolerations", "activeDeadlineSeconds", "schedulingGates")}
        for kind in ("containers", "initContainers"):
            kept[kind] = [{**container, "image": None} for container in spec.get(kind, [])]
        return kept

    before, after = fixed(old), fixed(new)
    added_only = all(entry in new.get("tolerations", []) for entry in old.get("tolerations", []))
    gates_only = all(gate in old.get("schedulingGates", []) for gate in new.get("schedulingGates", []))
    if before == after and added_only and gates_only:
        return []
    was, now = (json.dumps(value, indent=1, sort_keys=True).splitlines(keepends=True) for value in (old, new))
    diff = "".join(list(difflib.unified_diff(was, now))[2:])
    return [denied("spec", f"{_POD_UPDATE}\n{diff}")]


def changed(old: Json, new: Json, kind: str) -> list[FieldError]:
    """What may not change on an object of a built-in kind."""
    before, after = old.get("spec", {}), new.get("spec", {})
    errors: list[FieldError] = []

    def immutable(field: str, was: Any, now: Any, shown: Any = None) -> None:
        if was != now:
            errors.append(invalid(field, now if shown is None else shown, "field is immutable"))

    match kind:
        case "Pod":
            errors += _pod_changes(before, after)
        case "RuntimeClass":
            immutable("handler", old.get("handler"), new.get("handler"))
        case "DaemonSet" | "Deployment" | "ReplicaSet":
            immutable("spec.selector", before.get("selector"), after.get("selector"))
        case "StatefulSet":
            immutable("spec.selector", before.get("selector"), after.get("selector"))
        case "Job":
            template = after.get("template", {})
            immutable("spec.completions", before.get("completions"), after.get("completions"))
            immutable("spec.selector", before.get("selector"), after.get("selector"))
            immutable("spec.template", before.get("template"), template, {**template.get("metadata", {}), "Spec": template.get("spec")})
            immutable("spec.completionMode", before.get("completionMode"), after.get("completionMode"))
        case "Secret":
            immutable("type", old.get("type"), new.get("type"))
        case "Service":
            if before.get("clusterIP") != after.get("clusterIP") and before.get("type") == after.get("type") != "ExternalName":
                immutable("spec.clusterIPs[0]", before.get("clusterIP"), after.get("clusterIP"))
        case "PersistentVolumeClaim":
            if {**before, "resources": None, "volumeName": None} != {**after, "resources": None, "volumeName": None}:
                errors.append(denied("spec", "spec is immutable after creation except resources.requests and "
                                     "volumeAttributesClassName for bound claims"))
        case "ClusterRoleBinding" | "RoleBinding":
            immutable("roleRef", old.get("roleRef"), new.get("roleRef"))
    if kind in ("ConfigMap", "Secret") and old.get("immutable") and old.get("data") != new.get("data"):
        errors.append(denied("data", "field is immutable when `immutable` is set"))
    return errors


def custom(value: Any, kind: Type, field: str = "") -> list[FieldError]:
    """A custom object against its CRD's schema; defaults are filled in on the way."""
    if not isinstance(kind, dict) or value is None:
        return []
    wanted = kind.get("type")
    good: Any = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}.get(str(wanted))
    if kind.get("x-kubernetes-int-or-string"):
        good = (int, str)
    if good is not None and (not isinstance(value, good) or (isinstance(value, bool) and wanted != "boolean")):
        shown = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}[type(value)]
        return [invalid(field, shown, f'{field} in body must be of type {wanted}: "{shown}"')]
    errors: list[FieldError] = []
    if isinstance(value, dict):
        for key, inner in kind.get("properties", {}).items():
            if key not in value and isinstance(inner, dict) and "default" in inner:
                value[key] = json.loads(json.dumps(inner["default"]))
        errors += [required(f"{field}.{key}".lstrip(".")) for key in kind.get("required", []) if key not in value]
        for key, entry in value.items():
            if key not in ("metadata", "apiVersion", "kind") or field:
                errors += custom(entry, schema.member(kind, key) or "object", f"{field}.{key}".lstrip("."))
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            errors += custom(entry, schema.item(kind), f"{field}[{index}]")
    if "enum" in kind and value not in kind["enum"]:
        errors.append(unsupported(field, value, tuple(kind["enum"])))
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value < kind.get("minimum", value):
            errors.append(invalid(field, value, f"{field} in body should be greater than or equal to {kind['minimum']}"))
        if value > kind.get("maximum", value):
            errors.append(invalid(field, value, f"{field} in body should be less than or equal to {kind['maximum']}"))
    if isinstance(value, str) and "pattern" in kind and not re.search(kind["pattern"], value):
        errors.append(invalid(field, value, f"{field} in body should match '{kind['pattern']}'"))
    return errors
