# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Kubernetes objects of launcher `ray`, workload `pod`: namespace, configuration, secrets, head and worker Pods, Service."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.motley.inference.plugins.module_utils.kube.objects import Object, fingerprint
from ansible_collections.motley.inference.plugins.module_utils.serving import layout as places
from ansible_collections.motley.inference.plugins.module_utils.serving.layout import Layout, Member

POD_SECURITY = {f"pod-security.kubernetes.io/{mode}": "privileged" for mode in ("enforce", "audit", "warn")}
CONFIG, SECRET_RAY, SECRET_API, SECRET_HF, SERVICE = "motley-engine", "motley-ray", "motley-api-key", "motley-hf", "motley-endpoint"
SPEC_ANNOTATION, INPUTS_ANNOTATION, PLAN_LABEL, NODE_LABEL = "motley.dev/spec", "motley.dev/inputs", "motley.dev/plan", "motley.dev/node"

MOUNT = "/opt/motley"
CACHE_MOUNT = "/root/.cache/huggingface"
TOKEN_MOUNT = "/etc/motley/ray"  # noqa: S105 (a path)
EXCLUSION_FILE = "vllm/ray_non_carry_over_env_vars.json"
REPORTER = "stage_reporter"
START_HOOK = "ray_start"
TOLERATIONS = (
    {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
)


@dataclass(frozen=True)
class Settings:
    """What the objects need besides the layout."""

    image: str
    shm_bytes: int
    port: int
    files: Mapping[str, str]  # path below /opt/motley -> text
    secrets: str = ""  # changes when a secret does; never a secret itself
    pythonpath: str | None = None  # what the image sets by itself
    exclude: tuple[str, ...] = ()  # more names that must not travel from node to node
    runtime_class: str = "nvidia"


def namespace() -> Object:
    """Without all three labels either admission refuses the Pods or every apply prints warnings."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": places.NAMESPACE, "labels": {**places.PART_OF, **POD_SECURITY}}}


def _metadata(name: str, **labels: str) -> Object:
    return {"name": name, "namespace": places.NAMESPACE, "labels": {**places.PART_OF, **labels}}


def exclusions(layout: Layout, more: tuple[str, ...] = ()) -> list[str]:
    """Names that vLLM must not copy from the engine node to the others."""
    per_node = {name for member in layout.members for name in member.env}
    return sorted({*places.PER_NODE, *per_node, *more})


def files(layout: Layout, settings: Settings) -> dict[str, str]:
    """All files of the ConfigMap, by path below /opt/motley."""
    return {**settings.files, EXCLUSION_FILE: json.dumps(exclusions(layout, settings.exclude)) + "\n"}


def _key(path: str) -> str:
    return path.replace("/", "__")  # a ConfigMap's keys have no slash; the volume's items put the path back


def config_map(layout: Layout, settings: Settings) -> Object:
    """Files that the containers read."""
    data = {_key(path): text for path, text in sorted(files(layout, settings).items())}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(CONFIG), "data": data}


def secrets(*, ray_token: str, api_key: str, hf_token: str | None) -> list[Object]:
    """The Secrets; one for the hub's token only where there is one."""

    def secret(name: str, key: str, value: str) -> Object:
        return {"apiVersion": "v1", "kind": "Secret", "metadata": _metadata(name), "type": "Opaque", "stringData": {key: value}}

    found = [secret(SECRET_RAY, "token", ray_token), secret(SECRET_API, "api-key", api_key)]
    return found + ([secret(SECRET_HF, "token", hf_token)] if hf_token else [])


def service(layout: Layout, port: int) -> Object:
    """One name for the endpoint; it follows the head wherever the engine node is, and only when the API answers (readiness)."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(SERVICE, **{PLAN_LABEL: layout.plan}),
        "spec": {
            "type": "ClusterIP",
            "selector": {**places.PART_OF, "app.kubernetes.io/component": "head"},
            "ports": [{"name": "http", "port": port, "targetPort": port, "protocol": "TCP"}],
        },
    }


def environment(member: Member, settings: Settings) -> list[Object]:
    """The environment of a node's container, sorted; values are text (numbers are refused by the API)."""
    path = [f"{MOUNT}/{part}" for part in (REPORTER, START_HOOK) if any(f.startswith(f"{part}/") for f in settings.files)]
    plain: dict[str, str] = {
        "RAY_AUTH_MODE": "token",
        # A worker may be up before its head; Ray would give up after 20 tries of a second.
        "RAY_NUM_REDIS_GET_RETRIES": "120",
        "RAY_AUTH_TOKEN_PATH": f"{TOKEN_MOUNT}/token",
        "HF_HOME": CACHE_MOUNT,
        # Compiled code and model descriptions live beside the weights, so that the next start is quick.
        "VLLM_CACHE_ROOT": f"{CACHE_MOUNT}/vllm",
        "VLLM_CONFIG_ROOT": f"{MOUNT}/vllm",
        "VLLM_NO_USAGE_STATS": "1",
        **member.env,
    }
    if path:
        plain["PYTHONPATH"] = ":".join([*path, *([settings.pythonpath] if settings.pythonpath else [])])
    if any(f.startswith(f"{START_HOOK}/") for f in settings.files):
        plain["RAY_START_HOOK"] = "motley_ray_start.close_client_port"
    if member.visible:
        plain["CUDA_VISIBLE_DEVICES"] = member.visible
    if member.unified:
        # On unified memory the GPU's allocations count as used RAM, and the monitor would end the engine's workers.
        plain["RAY_memory_monitor_refresh_ms"] = "0"
    refs = {
        "HF_TOKEN": {"secretKeyRef": {"name": SECRET_HF, "key": "token", "optional": True}},
        "VLLM_API_KEY": {"secretKeyRef": {"name": SECRET_API, "key": "api-key"}},
    }
    rows: list[Object] = [{"name": k, "value": v} for k, v in plain.items()] + [{"name": k, "valueFrom": v} for k, v in refs.items()]
    return sorted(rows, key=lambda row: str(row["name"]))


def _start_line(member: Member, layout: Layout, settings: Settings) -> list[str]:
    head = member is layout.head
    first, last = places.WORKER_PORTS
    line = ["ray", "start", *(["--head", f"--port={places.GCS_PORT}"] if head else [f"--address={layout.head.address}:{places.GCS_PORT}"])]
    line += [
        f"--node-ip-address={member.address}",
        f"--node-name={member.name}",
        f"--num-gpus={member.gpus}",
        f"--object-store-memory={places.object_store_bytes(settings.shm_bytes)}",
        f"--node-manager-port={places.NODE_MANAGER_PORT}",
        f"--object-manager-port={places.OBJECT_MANAGER_PORT}",
        f"--runtime-env-agent-port={places.RUNTIME_ENV_PORT}",
        f"--dashboard-agent-grpc-port={places.AGENT_GRPC_PORT}",
        f"--dashboard-agent-listen-port={places.AGENT_HTTP_PORT}",
        f"--metrics-export-port={places.METRICS_PORT}",
        f"--min-worker-port={first}",
        f"--max-worker-port={last}",
    ]
    if head:
        line += ["--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={places.DASHBOARD_PORT}"]
    return [*line, "--disable-usage-stats", "--block"]


def _http(path: str, port: int, host: str | None = None) -> Object:
    return {"httpGet": {"path": path, "port": port, "scheme": "HTTP", **({"host": host} if host else {})}}


def _probes(member: Member, layout: Layout, settings: Settings) -> Object:
    """Probes that see a dead peer.

    A worker's raylet ends by itself when the head is gone (its GCS), and the agent's answer asks the GCS about this node; the
    head is ready only while vLLM's own health says so, and that fails with any of its workers.
    """
    if member is layout.head:
        alive = _http("/api/gcs_healthz", places.DASHBOARD_PORT, "127.0.0.1")
        ready = _http("/health", settings.port)
    else:
        alive = ready = _http("/api/local_raylet_healthz", places.AGENT_HTTP_PORT)
    return {
        "startupProbe": {**alive, "periodSeconds": 2, "timeoutSeconds": 5, "failureThreshold": 150},
        "livenessProbe": {**alive, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
        "readinessProbe": {**ready, "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3},
    }


def _volumes(member: Member, layout: Layout, settings: Settings) -> list[Object]:
    items = [{"key": _key(path), "path": path} for path in sorted(files(layout, settings))]
    return [
        {"name": "model-cache", "hostPath": {"path": member.cache_path, "type": places.mount_type(member.cache_path)}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(settings.shm_bytes)}},
        {"name": "config", "configMap": {"name": CONFIG, "items": items}},
        {"name": "ray-token", "secret": {"secretName": SECRET_RAY, "defaultMode": 0o400}},
    ]


def _container(member: Member, layout: Layout, settings: Settings) -> Object:
    ports = [{"name": "gcs", "containerPort": places.GCS_PORT}, {"name": "http", "containerPort": settings.port}]
    memory = str(settings.shm_bytes)  # what is certain to be used; weights and KV cache are the devices', planned apart
    return {
        "name": places.CONTAINER,
        "image": settings.image,
        "imagePullPolicy": "IfNotPresent",  # the digest fixes the content
        "command": _start_line(member, layout, settings),
        "env": environment(member, settings),
        "ports": [p for p in ports if member is layout.head] or [{"name": "agent", "containerPort": places.AGENT_HTTP_PORT}],
        "resources": {"requests": {"memory": memory, "nvidia.com/gpu": str(member.limit)}, "limits": {"nvidia.com/gpu": str(member.limit)}},
        "securityContext": {"allowPrivilegeEscalation": False},
        **_probes(member, layout, settings),
        "volumeMounts": [
            {"name": "model-cache", "mountPath": CACHE_MOUNT},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
            {"name": "config", "mountPath": MOUNT, "readOnly": True},
            {"name": "ray-token", "mountPath": TOKEN_MOUNT, "readOnly": True},
        ],
    }


def pod(member: Member, layout: Layout, settings: Settings) -> Object:
    """A node's Pod. Its annotations tell whether a running one is still what is wanted: nearly nothing of a Pod can be changed."""
    head = member is layout.head
    spec: Object = {
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "runtimeClassName": settings.runtime_class,
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 15,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # a Service's variables would reach vLLM (VLLM_PORT)
        "nodeSelector": {"kubernetes.io/hostname": member.name, "kubernetes.io/arch": member.arch},
        "tolerations": [dict(t) for t in TOLERATIONS],
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_container(member, layout, settings)],
        "volumes": _volumes(member, layout, settings),
    }
    component = "head" if head else "worker"
    metadata = _metadata(
        places.HEAD if head else member.pod,
        **{
            "app.kubernetes.io/name": "ray",
            "app.kubernetes.io/component": component,
            PLAN_LABEL: layout.plan,
            NODE_LABEL: member.name,
        },
    )
    metadata["annotations"] = {
        SPEC_ANNOTATION: fingerprint(spec)[:16],
        INPUTS_ANNOTATION: fingerprint([files(layout, settings), settings.secrets])[:16],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def pods(layout: Layout, settings: Settings) -> list[Object]:
    """Head first, then the workers."""
    return [pod(member, layout, settings) for member in layout.members]


def outdated(wanted: Mapping[str, Any], live: Mapping[str, Any] | None) -> str:
    """Why a live Pod can not stay as it is; empty if it can. A Pod that does not exist can not be outdated."""
    if not live:
        return ""
    want, have = wanted["metadata"]["annotations"], (live.get("metadata") or {}).get("annotations") or {}
    phase = str((live.get("status") or {}).get("phase") or "")
    if (live.get("metadata") or {}).get("deletionTimestamp"):
        return "it is being deleted"
    if phase in ("Failed", "Succeeded"):
        return f"it has ended ({phase})"
    if want[SPEC_ANNOTATION] != have.get(SPEC_ANNOTATION):
        return "its specification differs, and a Pod's specification can not be changed"
    if want[INPUTS_ANNOTATION] != have.get(INPUTS_ANNOTATION):
        return "the files or secrets that it read at its start have changed"
    return ""
