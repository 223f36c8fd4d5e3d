# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an operator may write in the inventory, and the cluster that it describes. Pure: plain data in and out."""

from __future__ import annotations

import difflib
import hashlib
import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError

Level = Literal["cluster", "node"]


@dataclass(frozen=True)
class Variable:
    """One public variable: name without the prefix `motley_`, type, default, level and one line of text."""

    name: str
    type: str
    level: Level
    text: str
    default: Any = None
    choices: tuple[Any, ...] = ()


VARIABLES: tuple[Variable, ...] = (
    Variable("cluster", "str", "cluster", "Name of the cluster; names the state directory.", "motley"),
    Variable("platform", "str", "cluster", "What the nodes run.", "talos", ("talos", "k3s", "host", "kubernetes")),
    Variable("model", "str", "cluster", "Model to serve: a name on the hub, or a directory with a config.json."),
    Variable("model_revision", "str", "cluster", "Revision of the model on the hub."),
    Variable("quantization", "str", "cluster", "Quantisation of the weights, where the model does not state it."),
    Variable("max_model_len", "int", "cluster", "Longest context to serve, tokens.", 8192),
    Variable("max_num_seqs", "int", "cluster", "Most sequences in one batch."),
    Variable("gpu_memory_utilization", "float", "cluster", "Share of each device's memory for the engine, 0 to 1; the largest safe one if unset."),
    Variable("enforce_eager", "bool", "cluster", "Run without CUDA graphs; the planner decides if unset."),
    Variable("trust_remote_code", "bool", "cluster", "Let the engine run code from the model repository.", False),
    Variable("objective", "str", "cluster", "What the plan is for.", "balanced", ("balanced", "latency", "throughput", "capacity")),
    Variable("concurrency", "int", "cluster", "Requests at a time that the plan is made for.", 8),
    Variable("layers", "dict", "cluster", "Layers by node: a number for its first device, or a list with one number per device."),
    Variable("engine_node", "str", "cluster", "Node of the engine core and of pipeline rank 0; the planner chooses if unset."),
    Variable("devices", "list", "node", "Overrides of the accelerator table: memory_gib, reserve_gib, bandwidth_gbs per device."),
    Variable("accelerators", "list", "node", "This node's devices, by their names in the accelerator table."),
    Variable("links", "list", "cluster", "Links between nodes: nodes, and link (a name of the table) or gbs and rtt_us.", []),
    Variable("engine_version", "str", "cluster", "Version of vLLM; the default row of the engine table if unset."),
    Variable("image", "str", "cluster", "Container image of the engine; the default row of the engine table if unset."),
    Variable("launcher", "str", "cluster", "How vLLM spans nodes.", "ray", ("ray", "native")),
    Variable("workload", "str", "cluster", "The Kubernetes objects that hold it.", "pod", ("pod", "leaderworkerset", "raycluster")),
    Variable("engine_args", "list", "cluster", "More arguments for vllm serve.", []),
    Variable("engine_env", "dict", "cluster", "More environment for the engine.", {}),
    Variable("nccl_env", "dict", "node", "More NCCL environment, per node.", {}),
    Variable("talos_version", "str", "cluster", "Talos release to run."),
    Variable("kubernetes_version", "str", "cluster", "Kubernetes release; the one of the Talos release if unset."),
    Variable("factory_url", "str", "cluster", "Image Factory.", "https://factory.talos.dev"),
    Variable("talos_patches", "list", "node", "Strategic merge patches for the machine configuration, as mappings.", []),
    Variable("talosctl", "str", "cluster", "talosctl to call.", "talosctl"),
    Variable("install_disk", "str", "node", "Disk to install Talos on.", "/dev/nvme0n1"),
    Variable("install_wipe", "bool", "node", "Install over a disk that holds partitions.", False),
    Variable("allow_reboot", "bool", "cluster", "Allow a change that reboots a node where a service runs.", False),
    Variable("talosconfig", "path", "cluster", "talosconfig of a cluster made elsewhere."),
    Variable("kubeconfig", "path", "cluster", "kubeconfig of a cluster made elsewhere."),
    Variable("address", "str", "node", "Address on the inter-node network; ansible_host if unset."),
    Variable("interface", "str", "node", "Network interface of the inter-node network; found out if unset."),
    Variable("inter_node_cidr", "str", "cluster", "The inter-node network."),
    Variable("static_address", "str", "node", "Static address with prefix for the machine configuration, such as 10.0.0.20/24; DHCP if unset."),
    Variable("gateway", "str", "node", "Default gateway for a static address."),
    Variable("nameservers", "list", "cluster", "DNS servers.", []),
    Variable("timeservers", "list", "cluster", "NTP servers.", []),
    Variable("hf_token_file", "path", "cluster", "File with the Hugging Face token."),
    Variable("hf_token", "str", "cluster", "Hugging Face token, by a lookup or vaulted; never literal."),
    Variable("api_key_file", "path", "cluster", "File with the API key of the endpoint; made in the state directory if unset."),
    Variable("secrets_file", "path", "cluster", "Talos secrets bundle of a cluster made elsewhere."),
    Variable("cache_path", "str", "node", "Directory of the model cache on the node.", "/var/lib/hf-cache"),
    Variable("shm_size", "str", "cluster", "Size of /dev/shm of each engine container.", "1Gi"),
    Variable("registry_mirrors", "dict", "cluster", "Registry mirrors: registry name to URL.", {}),
    Variable("port", "int", "cluster", "Port of the endpoint.", 8000),
    Variable("state_dir", "path", "cluster", "State directory; .motley/CLUSTER beside the inventory if unset."),
    Variable("rebuild", "bool", "cluster", "Take the objects of the tagged step down and build them anew.", False),
    Variable("stage_reporter", "bool", "cluster", "Mount the stage reporter into the engine.", True),
    Variable("url", "str", "cluster", "Endpoint to benchmark, without an inventory."),
    Variable("device_plugin_version", "str", "cluster", "Version of the NVIDIA device plugin; the locked one if unset."),
)
TABLE: Mapping[str, Variable] = {v.name: v for v in VARIABLES}
PREFIX = "motley_"
# Architecture of the host that an accelerator is soldered to; every other card sits in an x86-64 machine.
HOST_ARCHITECTURE = {"gb10": "arm64"}
SECRET_WORDS = ("hf_token",)


def default(name: str) -> Any:
    """The default of a variable, by its name without prefix."""
    return TABLE[name].default


def problems(hosts: Mapping[str, Mapping[str, Any]], groups: Mapping[str, Sequence[str]], *, extra: Sequence[str] = ()) -> list[str]:
    """Everything wrong with an inventory, as sentences; empty if it is good.

    hosts: variables per member of motley_nodes. extra: names of options of single roles, without prefix.
    """
    if not hosts:
        return ["the inventory has no group motley_nodes with hosts in it: put the machines there"]
    found: dict[str, None] = {}
    for host, values in hosts.items():
        for name in sorted(k for k in values if k.startswith(PREFIX)):
            for text in _variable_problems(name[len(PREFIX):], values[name], extra):
                found.setdefault(f"{host}: {text}")
        if not values.get("motley_accelerators") and not values.get("motley_devices"):
            found.setdefault(f"{host}: motley_accelerators is not set: list the cards, for example [rtx4090, rtx4090]")
        found.update(dict.fromkeys(f"{host}: {t}" for t in _address_problems(values)))
    found.update(dict.fromkeys(_cluster_problems(hosts, groups)))
    return list(found)


def _variable_problems(name: str, value: Any, extra: Sequence[str]) -> list[str]:
    known = TABLE.get(name)
    if known is None:
        if name in extra:
            return []
        near = difflib.get_close_matches(name, [*TABLE, *extra], n=1, cutoff=0.5)
        return [f"unknown variable {PREFIX}{name}" + (f"; did you mean {PREFIX}{near[0]}?" if near else "")]
    if value is None:
        return []
    wrong = _type_problem(known, value)
    if wrong:
        return [wrong]
    if known.choices and value not in known.choices:
        return [f"{PREFIX}{name} is {value!r}, not one of {', '.join(map(str, known.choices))}"]
    return []


def _type_problem(known: Variable, value: Any) -> str | None:
    kinds: dict[str, Any] = {"str": str, "path": str, "list": list, "dict": dict, "bool": bool, "int": int, "float": (int, float)}
    if known.type == "bool" and isinstance(value, str) and value.lower() in ("true", "false", "yes", "no"):
        return None         # -e motley_rebuild=true comes as text
    if known.type in ("int", "float") and isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?", value):
        return None         # likewise
    if isinstance(value, bool) and known.type in ("int", "float"):
        return f"{PREFIX}{known.name} must be a number, not {value}"
    if not isinstance(value, kinds[known.type]):
        return f"{PREFIX}{known.name} must be of type {known.type}, not {type(value).__name__}"
    if known.type in ("int", "float") and float(value) <= 0:
        return f"{PREFIX}{known.name} must be above 0, not {value}"
    return None


def _address_problems(values: Mapping[str, Any]) -> list[str]:
    address = values.get("motley_address") or values.get("ansible_host")
    if not address:
        return ["ansible_host is not set: give the machine's address"]
    try:
        ipaddress.ip_address(str(address))
    except ValueError:
        return [f"{address!r} is no IP address: vLLM and Ray need one, not a name; set motley_address"]
    return []


def _cluster_problems(hosts: Mapping[str, Mapping[str, Any]], groups: Mapping[str, Sequence[str]]) -> list[str]:
    first = next(iter(hosts.values()))
    texts = []
    if not first.get("motley_model") :
        texts.append("motley_model is not set: name the model to serve")
    if (first.get("motley_platform") or "talos") == "talos" and not first.get("motley_talos_version") and not first.get("motley_talosconfig"):
        texts.append("motley_talos_version is not set: pin the Talos release, for example v1.14.1")
    if first.get("motley_talos_version") and not re.fullmatch(r"v1\.\d+\.\d+(-[a-z]+\.\d+)?", str(first["motley_talos_version"])):
        texts.append(f"motley_talos_version is {first['motley_talos_version']!r}, not of the form v1.14.1")
    for name, known in TABLE.items():
        if known.level == "cluster":
            seen = {json.dumps(values.get(PREFIX + name), sort_keys=True) for values in hosts.values()}
            if len(seen) > 1:
                texts.append(f"{PREFIX}{name} differs between hosts, and it is one for the whole cluster: set it under all.vars")
    addresses: dict[str, str] = {}
    for host, values in hosts.items():
        address = str(values.get("motley_address") or values.get("ansible_host"))
        if address in addresses:
            texts.append(f"{host} and {addresses[address]} have the same address {address}")
        addresses[address] = host
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", host):
            texts.append(f"{host} is no host name that Kubernetes takes (RFC 1123: lower-case letters, digits, hyphens)")
    for key in ("motley_layers",):
        for node in first.get(key) or {}:
            if node not in hosts:
                near = difflib.get_close_matches(str(node), list(hosts), n=1, cutoff=0)
                texts.append(f"{key} names {node}, which is no node" + (f"; did you mean {near[0]}?" if near else ""))
    engine_node = first.get("motley_engine_node")
    if engine_node and engine_node not in hosts:
        texts.append(f"motley_engine_node is {engine_node!r}, which is no node: one of {', '.join(hosts)}")
    planes = [h for h in groups.get("motley_controlplane") or [] if h in hosts]
    if len(planes) == 2:
        texts.append("two control planes are worse than one (etcd needs both of them): name one, or three")
    return texts


def cluster(hosts: Mapping[str, Mapping[str, Any]], groups: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The normalised cluster. Raises MotleyError with every problem at once. Hosts are kept in inventory order."""
    if not hosts:
        raise MotleyError("the inventory has no group motley_nodes with hosts in it", hint="put the machines there")
    first = next(iter(hosts.values()))

    def one(name: str) -> Any:
        value = first.get(PREFIX + name)
        return _typed(TABLE[name], default(name) if value is None else value)

    planes = [h for h in groups.get("motley_controlplane") or [] if h in hosts] or [next(iter(hosts))]
    return {
        "name": one("cluster"), "platform": one("platform"), "launcher": one("launcher"), "workload": one("workload"),
        "state_dir": one("state_dir"), "kubeconfig": one("kubeconfig"), "objective": one("objective"),
        "concurrency": one("concurrency"), "layers": one("layers"), "engine_node": one("engine_node"), "links": one("links"),
        "model": {"name": one("model"), "revision": one("model_revision"), "quantization": one("quantization"),
                  "max_model_len": one("max_model_len"), "max_num_seqs": one("max_num_seqs"),
                  "trust_remote_code": one("trust_remote_code")},
        "engine": {"version": one("engine_version"), "image": one("image"), "args": [str(a) for a in one("engine_args")],
                   "env": {k: str(v) for k, v in one("engine_env").items()},
                   "gpu_memory_utilization": one("gpu_memory_utilization"), "enforce_eager": one("enforce_eager"),
                   "stage_reporter": one("stage_reporter"), "port": one("port")},
        "talos": {"version": one("talos_version"), "kubernetes_version": one("kubernetes_version"),
                  "factory_url": str(one("factory_url")).rstrip("/"), "allow_reboot": one("allow_reboot"),
                  "talosctl": one("talosctl"), "talosconfig": one("talosconfig")},
        "network": {"cidr": one("inter_node_cidr"), "nameservers": one("nameservers"), "timeservers": one("timeservers")},
        "storage": {"cache_path": one("cache_path"), "shm_size": one("shm_size")},
        "registry_mirrors": one("registry_mirrors"), "rebuild": one("rebuild"),
        "device_plugin_version": one("device_plugin_version"),
        "secrets": {"hf_token_file": one("hf_token_file"), "api_key_file": one("api_key_file"), "secrets_file": one("secrets_file")},
        "nodes": [_node(name, values, "controlplane" if name in planes else "worker") for name, values in hosts.items()],
    }


def _node(name: str, values: Mapping[str, Any], role: str) -> dict[str, Any]:
    def own(key: str) -> Any:
        value = values.get(PREFIX + key)
        return _typed(TABLE[key], default(key) if value is None else value)

    accelerators = [str(a) for a in own("accelerators") or [d.get("accelerator", "") for d in own("devices") or []]]
    overrides = own("devices") or []
    devices = [{"accelerator": accelerator, **(overrides[i] if i < len(overrides) else {})} for i, accelerator in enumerate(accelerators)]
    arch = next((HOST_ARCHITECTURE[a] for a in accelerators if a in HOST_ARCHITECTURE), "amd64")
    host = str(values.get("ansible_host") or values.get("motley_address") or "")
    return {"name": name, "address": str(own("address") or host), "ansible_host": host, "role": role, "accelerators": accelerators,
            "devices": devices, "arch": arch, "install_disk": own("install_disk"), "install_wipe": own("install_wipe"),
            "interface": own("interface"), "talos_patches": own("talos_patches"), "nccl_env": own("nccl_env"),
            "cache_path": own("cache_path"), "static_address": own("static_address"), "gateway": own("gateway")}


def _typed(known: Variable, value: Any) -> Any:
    if value is None:
        return None
    match known.type:
        case "bool":
            return value.lower() in ("true", "yes", "on", "1") if isinstance(value, str) else bool(value)
        case "int":
            return int(value)
        case "float":
            return float(value)
        case "list":
            return list(value)
        case "dict":
            return dict(value)
    return str(value)


def plan_request(cluster: Mapping[str, Any], *, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The planner's request (design: names are part of the contract) that this cluster asks for.

    config: the model's config.json, where it was read; else the planner's table is asked for the model's name.
    """
    engine, model = cluster["engine"], cluster["model"]
    backend = next((d["backend"] for n in cluster["nodes"] for d in n["devices"] if d.get("backend")), None)
    request: dict[str, Any] = {
        "model": model["name"],
        "nodes": [{"name": n["name"], "address": n["address"], "arch": n["arch"], "nccl_env": n["nccl_env"],
                   "devices": [{k: v for k, v in d.items() if k != "backend"} for d in n["devices"]],
                   **({"engine": True} if n["name"] == cluster["engine_node"] else {})} for n in cluster["nodes"]],
        "links": cluster["links"],
        "workload": {"max_model_len": model["max_model_len"], "concurrency": cluster["concurrency"], "prompt_tokens": 512, "output_tokens": 128},
        "engine": {"version": engine["version"], "launcher": cluster["launcher"], "backend": backend, "port": engine["port"],
                   "args": engine["args"], "env": engine["env"], "gpu_memory_utilization": engine["gpu_memory_utilization"],
                   "pipeline": None, "tensor": None, "partition": None, "partition_by_node": cluster["layers"],
                   "max_num_batched_tokens": _flag(engine["args"], "--max-num-batched-tokens"), "max_num_seqs": model["max_num_seqs"],
                   "enforce_eager": engine["enforce_eager"]},
        "objective": cluster["objective"],
    }
    if config is not None:
        request["config"] = dict(config)
    for key, value in (("quantization", model["quantization"]), ("revision", model["revision"]), ("dtype", _flag(engine["args"], "--dtype")),
                       ("kv_cache_dtype", _flag(engine["args"], "--kv-cache-dtype")), ("trust_remote_code", model["trust_remote_code"])):
        if value:
            request[key] = value
    return request


def _flag(args: Sequence[str], name: str) -> Any:
    """The value of --name VALUE or --name=VALUE among args; a whole number comes back as one."""
    for i, arg in enumerate(args):
        if arg.startswith(f"{name}="):
            text = arg.split("=", 1)[1]
        elif arg == name and i + 1 < len(args):
            text = args[i + 1]
        else:
            continue
        return int(text) if text.isdigit() else text
    return None


# Inputs of the plan and the variable that a person would know each by.
_INPUTS: tuple[tuple[str, str], ...] = (
    ("model", "motley_model and its options"), ("nodes", "nodes, addresses or devices"), ("engine", "engine options"),
    ("links", "motley_links"), ("objective", "motley_objective"), ("concurrency", "motley_concurrency"), ("layers", "motley_layers"),
    ("engine_node", "motley_engine_node"), ("launcher", "motley_launcher"), ("workload", "motley_workload"), ("platform", "motley_platform"),
)


def inputs(cluster: Mapping[str, Any]) -> dict[str, str]:
    """A digest per input of the plan; what is no input (patches, disks, keys) does not make a plan stale."""
    seen = dict(cluster)
    seen["nodes"] = [{k: n[k] for k in ("name", "address", "devices", "role", "arch")} for n in cluster["nodes"]]
    seen["engine"] = {k: v for k, v in cluster["engine"].items() if k not in ("image",)}
    return {name: digest(seen[name]) for name, _label in _INPUTS}


def changed_since(plan: Mapping[str, Any], cluster: Mapping[str, Any]) -> list[str]:
    """What a person would call the inputs that differ from those the plan was made of; empty if none does."""
    old, new = plan.get("inputs") or {}, inputs(cluster)
    names = {"model": "motley_model"}
    return [names.get(name, text) for name, text in _INPUTS if old.get(name) != new[name]]


def state_dir(name: str | None, inventory_dir: str | None, temporary: str) -> str:
    """Default state directory: .motley/CLUSTER beside the inventory. Refused where nothing stays."""
    fix = "set motley_state_dir to a directory that stays: it will hold the cluster's secrets"
    if not inventory_dir:
        raise MotleyError("the inventory lies in no directory, so there is no place for the cluster's state", hint=fix)
    if PurePosixPath(inventory_dir).is_relative_to(temporary):
        raise MotleyError(f"the inventory lies in {temporary}, which does not stay", hint=fix)
    return str(PurePosixPath(inventory_dir) / ".motley" / (name or default("cluster")))


_SECRET_NAME = re.compile(r"(TOKEN|SECRET|PASSWORD|API_KEY)$")
_SECRET_TEXT = re.compile(r"hf_[A-Za-z0-9]{16,}|-----BEGIN [A-Z ]*PRIVATE KEY-----")


def literal_secrets(raw: Mapping[str, Any]) -> list[str]:
    """Names of variables that hold a secret in the clear. raw: values as written, before templating.

    A template (lookup) or a vaulted value is fine: neither is a plain text with the secret in it.
    """
    found = []
    for name, value in sorted(raw.items()):
        text = value if isinstance(value, str) else json.dumps(value, default=lambda _: "{{ }}")
        if _SECRET_TEXT.search(text) or (name == "motley_hf_token" and _in_the_clear(value)):
            found.append(name)
        elif isinstance(value, Mapping):
            found += [f"{name}.{key}" for key, item in value.items() if _SECRET_NAME.search(str(key)) and _in_the_clear(item)]
        elif isinstance(value, (list, tuple)) and any(isinstance(a, str) and a.startswith("--api-key") for a in value):
            found.append(f"{name} (--api-key)")
    return found


def _in_the_clear(value: Any) -> bool:
    return isinstance(value, str) and value != "" and "{{" not in value


def digest(document: Any) -> str:
    """SHA-256 of the canonical JSON of document, hexadecimal."""
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
