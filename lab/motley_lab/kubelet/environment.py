# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A container's environment as the kubelet makes it: service links, envFrom, env with valueFrom, and $(VAR) in values and arguments."""

from __future__ import annotations

import base64
import re
import typing

JSON = dict[str, typing.Any]
Fetch = typing.Callable[[str, str], typing.Awaitable[JSON | None]]  # (kind, name) -> the object of the Pod's namespace
_REFERENCE = re.compile(r"\$\$|\$\(([^()\s]+)\)")


class ConfigError(Exception):
    """The message of a CreateContainerConfigError."""


def expand(text: str, known: typing.Mapping[str, str]) -> str:
    """`$(NAME)` where NAME is known, `$$` for one `$`; anything else stays as it is."""
    return _REFERENCE.sub(lambda match: "$" if match[0] == "$$" else known.get(match[1], match[0]), text)


def content(obj: JSON) -> dict[str, bytes]:
    """The keys of a ConfigMap or Secret with their bytes."""
    encoded = obj.get("binaryData") if obj.get("kind") == "ConfigMap" else obj.get("data")
    plain = obj.get("data") if obj.get("kind") == "ConfigMap" else {}
    found = {key: base64.b64decode(value) for key, value in (encoded or {}).items()}
    return found | {key: value.encode() for key, value in (plain or {}).items()}


def field(pod: JSON, path: str, *, host_ip: str, pod_ip: str) -> str:
    """The value of a downward API fieldPath."""
    meta, spec = pod["metadata"], pod["spec"]
    if match := re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path):
        return str((meta.get(match[1]) or {}).get(match[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        entries = (meta.get(path.split(".")[1]) or {}).items()
        return "\n".join('{}="{}"'.format(key, value.replace("\\", "\\\\").replace('"', '\\"')) for key, value in sorted(entries))
    values = {
        "metadata.name": meta["name"], "metadata.namespace": meta["namespace"], "metadata.uid": meta["uid"], "spec.nodeName": spec["nodeName"],
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"), "status.hostIP": host_ip, "status.hostIPs": host_ip,
        "status.podIP": pod_ip, "status.podIPs": pod_ip,
    }
    if path not in values:
        raise ConfigError(f"unsupported fieldPath: {path}")
    return values[path]


def quantity(text: str | int | float) -> float:
    """A Kubernetes quantity as a number."""
    match = re.fullmatch(r"([0-9.]+)([numkKMGTPE]?i?)", str(text))
    if not match:
        raise ValueError(f"not a quantity: {text!r}")
    small = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0}
    if match[2] in small:
        return float(match[1]) * small[match[2]]
    return float(match[1]) * (1024 if match[2].endswith("i") else 1000) ** ("KMGTPE".index(match[2][0].upper()) + 1)


def resource(container: JSON, reference: JSON, allocatable: JSON) -> str:
    """The value of a resourceFieldRef, the node's own amount where no limit is set."""
    part, _, name = reference["resource"].partition(".")
    resources = container.get("resources") or {}
    amount = (resources.get(part) or {}).get(name) or (resources.get("limits") or {}).get(name) or allocatable.get(name, "0")
    number, divisor = quantity(amount), quantity(reference.get("divisor") or "1") or 1.0
    return str(int(-(-number // divisor)))


def service_links(services: list[JSON], *, links: bool) -> dict[str, str]:
    """Docker-style variables of the namespace's Services; those of the API server are always there."""
    made: dict[str, str] = {}
    for service in services:
        name, spec = service["metadata"]["name"], service["spec"]
        if (not links and name != "kubernetes") or spec.get("clusterIP") in (None, "", "None"):
            continue
        prefix, address = name.upper().replace("-", "_"), spec["clusterIP"]
        for index, port in enumerate(spec.get("ports") or []):
            protocol, number = port.get("protocol", "TCP"), port["port"]
            url = f"{protocol.lower()}://{address}:{number}"
            if index == 0:
                made |= {f"{prefix}_SERVICE_HOST": address, f"{prefix}_SERVICE_PORT": str(number), f"{prefix}_PORT": url}
            base = f"{prefix}_PORT_{number}_{protocol}"
            made |= {base: url, f"{base}_PROTO": protocol.lower(), f"{base}_PORT": str(number), f"{base}_ADDR": address}
    return made


async def resolve(pod: JSON, container: JSON, *, fetch: Fetch, base: dict[str, str], host_ip: str, pod_ip: str, allocatable: JSON) -> dict[str, str]:
    """The whole environment; `base` (image, service links) is what everything else overrides."""
    made = dict(base)
    for source in container.get("envFrom") or []:
        kind, reference = ("ConfigMap", source["configMapRef"]) if "configMapRef" in source else ("Secret", source["secretRef"])
        found = await fetch(kind, reference["name"])
        if found is None and not reference.get("optional"):
            raise ConfigError(f'{kind.lower()} "{reference["name"]}" not found')
        made |= {source.get("prefix", "") + key: value.decode() for key, value in content(found or {}).items()}
    for entry in container.get("env") or []:
        source = entry.get("valueFrom") or {}
        if "fieldRef" in source:
            made[entry["name"]] = field(pod, source["fieldRef"]["fieldPath"], host_ip=host_ip, pod_ip=pod_ip)
        elif "resourceFieldRef" in source:
            made[entry["name"]] = resource(container, source["resourceFieldRef"], allocatable)
        elif source:
            value = await _key(pod, source, fetch)
            made |= {} if value is None else {entry["name"]: value}
        else:
            made[entry["name"]] = expand(entry.get("value") or "", made)
    return made


async def _key(pod: JSON, source: JSON, fetch: Fetch) -> str | None:
    kind, reference = ("ConfigMap", source["configMapKeyRef"]) if "configMapKeyRef" in source else ("Secret", source["secretKeyRef"])
    found = await fetch(kind, reference["name"])
    value = content(found or {}).get(reference["key"])
    if value is None and not reference.get("optional"):
        if found is None:
            raise ConfigError(f'{kind.lower()} "{reference["name"]}" not found')
        raise ConfigError(f"couldn't find key {reference['key']} in {kind} {pod['metadata']['namespace']}/{reference['name']}")
    return None if value is None else value.decode()
