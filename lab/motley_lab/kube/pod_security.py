# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pod Security admission: what a Pod's spec violates, in the words of the real server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from motley_lab.kube.errors import FieldError, Json, invalid

LEVELS = ("privileged", "baseline", "restricted")
_PREFIX = "pod-security.kubernetes.io/"
_DEFAULT = {"enforce": "baseline", "warn": "restricted", "audit": "restricted"}
_EXEMPT = frozenset({"kube-system"})
_BASELINE_CAPABILITIES = frozenset({
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP",
    "SETUID", "SYS_CHROOT",
})
_RESTRICTED_VOLUMES = frozenset({"name", "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"})
_SYSCTLS = frozenset({"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start",
                      "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports",
                      "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
                      "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"})


def _quoted(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _who(names: list[str], singular: str = "container") -> str:
    return f"{singular}{'s' if len(names) > 1 else ''} {_quoted(names)}"


def _containers(spec: Json) -> list[Json]:
    return [*spec.get("initContainers", []), *spec.get("containers", []), *spec.get("ephemeralContainers", [])]


def _context(container: Json) -> Json:
    return container.get("securityContext") or {}


def _bad(spec: Json, test: Callable[[Json], bool]) -> list[str]:
    return [container["name"] for container in _containers(spec) if test(_context(container))]


def _added(spec: Json, allowed: frozenset[str]) -> str:
    def extra(context: Json) -> list[str]:
        return [name for name in (context.get("capabilities") or {}).get("add", []) if name not in allowed]

    names = _bad(spec, lambda context: bool(extra(context)))
    caps = sorted({name for container in _containers(spec) for name in extra(_context(container))})
    return f"{_who(names)} must not include {_quoted(caps)} in securityContext.capabilities.add" if names else ""


def _baseline(spec: Json, *, restricted: bool) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if not restricted:
        found.append(("non-default capabilities", _added(spec, _BASELINE_CAPABILITIES)))
    found.append(("host namespaces", ", ".join(f"{key}=true" for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key))))
    if not restricted:
        paths = [volume["name"] for volume in spec.get("volumes", []) if "hostPath" in volume]
        found.append(("hostPath volumes", _who(paths, "volume") if paths else ""))
    using = [(c["name"], port["hostPort"]) for c in _containers(spec) for port in c.get("ports", []) if port.get("hostPort")]
    names, ports = list(dict.fromkeys(name for name, _ in using)), sorted({str(port) for _, port in using})
    found.append(("hostPort", f"{_who(names)} {'use' if len(names) > 1 else 'uses'} hostPort{'s' if len(ports) > 1 else ''} {', '.join(ports)}"
                  if using else ""))
    privileged = _bad(spec, lambda context: bool(context.get("privileged")))
    found.append(("privileged", f"{_who(privileged)} must not set securityContext.privileged=true" if privileged else ""))
    unmasked = _bad(spec, lambda context: context.get("procMount", "Default") != "Default")
    found.append(("procMount", f'{_who(unmasked)} must not set securityContext.procMount to "Unmasked"' if unmasked else ""))
    if not restricted:
        loose = _bad(spec, lambda context: (context.get("seccompProfile") or {}).get("type") == "Unconfined")
        pod = (spec.get("securityContext") or {}).get("seccompProfile", {}).get("type") == "Unconfined"
        who = " and ".join((["pod"] if pod else []) + ([_who(loose)] if loose else []))
        found.append(("seccompProfile", f'{who} must not set securityContext.seccompProfile.type to "Unconfined"' if who else ""))
    sysctls = [entry["name"] for entry in (spec.get("securityContext") or {}).get("sysctls", []) if entry["name"] not in _SYSCTLS]
    found.append(("forbidden sysctls", ", ".join(sysctls)))
    return found


def _restricted(spec: Json) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    pod = spec.get("securityContext") or {}
    escalating = _bad(spec, lambda context: context.get("allowPrivilegeEscalation") is not False)
    found.append(("allowPrivilegeEscalation != false",
                  f"{_who(escalating)} must set securityContext.allowPrivilegeEscalation=false" if escalating else ""))
    keeping = _bad(spec, lambda context: "ALL" not in (context.get("capabilities") or {}).get("drop", []))
    drop = f'{_who(keeping)} must set securityContext.capabilities.drop=["ALL"]' if keeping else ""
    found.append(("unrestricted capabilities", "; ".join(filter(None, [drop, _added(spec, frozenset({"NET_BIND_SERVICE"}))]))))
    odd = [(volume["name"], kind) for volume in spec.get("volumes", []) for kind in volume if kind not in _RESTRICTED_VOLUMES]
    names, kinds = [name for name, _ in odd], sorted({kind for _, kind in odd})
    found.append(("restricted volume types", f"{_who(names, 'volume')} {'use' if len(names) > 1 else 'uses'} restricted volume "
                  f"type{'s' if len(kinds) > 1 else ''} {_quoted(kinds)}" if odd else ""))
    explicit = _bad(spec, lambda context: context.get("runAsNonRoot") is False)
    implicit = _bad(spec, lambda context: "runAsNonRoot" not in context) if not pod.get("runAsNonRoot") else []
    parts = (["pod must not set securityContext.runAsNonRoot=false"] if pod.get("runAsNonRoot") is False else [])
    if explicit:
        parts.append(f"{_who(explicit)} must not set securityContext.runAsNonRoot=false")
    if implicit and not parts:
        parts.append(f"pod or {_who(implicit)} must set securityContext.runAsNonRoot=true")
    found.append(("runAsNonRoot != true", "; ".join(parts)))
    root = _bad(spec, lambda context: context.get("runAsUser") == 0)
    whose = " and ".join((["pod"] if pod.get("runAsUser") == 0 else []) + ([_who(root)] if root else []))
    found.append(("runAsUser=0", f"{whose} must not set runAsUser=0" if whose else ""))
    good = ("RuntimeDefault", "Localhost")
    loose = _bad(spec, lambda context: (context.get("seccompProfile") or {}).get("type", "") not in (
        good if "seccompProfile" in context or pod.get("seccompProfile", {}).get("type") not in good else ("", *good)))
    found.append(("seccompProfile", f'pod or {_who(loose)} must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
                  if loose else ""))
    return found


def violations(spec: Json, level: str) -> list[tuple[str, str]]:
    """(reason, detail) of each rule that the spec breaks."""
    if level == "privileged":
        return []
    found = _baseline(spec, restricted=level == "restricted") + (_restricted(spec) if level == "restricted" else [])
    return [(reason, detail) for reason, detail in found if detail]


def text(found: list[tuple[str, str]]) -> str:
    return ", ".join(f"{reason} ({detail})" for reason, detail in found)


def policy(namespace: Json, mode: str) -> tuple[str, str]:
    """Level and version that a namespace's labels ask for."""
    if namespace["metadata"]["name"] in _EXEMPT:
        return "privileged", "latest"
    labels: dict[str, Any] = namespace["metadata"].get("labels", {})
    level = labels.get(f"{_PREFIX}{mode}", _DEFAULT[mode])
    return level if level in LEVELS else "restricted", labels.get(f"{_PREFIX}{mode}-version", "latest")


def label_errors(labels: dict[str, str]) -> list[FieldError]:
    return [invalid(f"metadata.labels[{key}]", labels[key], f"must be one of {', '.join(LEVELS)}")
            for mode in _DEFAULT if (key := f"{_PREFIX}{mode}") in labels and labels[key] not in LEVELS]


def tightened(namespace: Json, pods: list[Json]) -> list[str]:
    """Warnings of a namespace whose enforced level its own Pods do not meet."""
    level, version = policy(namespace, "enforce")
    groups: dict[str, list[str]] = {}
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"])):
        if found := violations(pod["spec"], level):
            groups.setdefault(", ".join(reason for reason, _ in found), []).append(pod["metadata"]["name"])
    if not groups:
        return []
    lines = [f'existing pods in namespace "{namespace["metadata"]["name"]}" violate the new PodSecurity enforce level "{level}:{version}"']
    for reasons, names in groups.items():
        more = "" if len(names) == 1 else " (and 1 other pod)" if len(names) == 2 else f" (and {len(names) - 1} other pods)"
        lines.append(f"{names[0]}{more}: {reasons}")
    return lines
