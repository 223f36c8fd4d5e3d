# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands of talosctl that talk to a node."""

from __future__ import annotations

import base64
import json
import os
import random
import re
import ssl
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from motley_lab.talos import config as configs
from motley_lab.talos import goyaml, transport
from motley_lab.talos.cli import Call, Failure, seconds
from motley_lab.talos.offline import Context, err, out, table
from motley_lab.talos.transport import RpcError, unb64
from motley_lab.talos.validate import multi

POLL_S = 0.5
ONE_NODE = ("bootstrap", "read", "kubeconfig", "health", "etcd snapshot")
NO_NODES = (
    "nodes are not set for the command: please use `--nodes` flag or configuration file to set the nodes to run the command against"
)


class Session:
    """Where a command goes: endpoints and nodes, with or without a client certificate."""

    def __init__(self, call: Call, tag: str, contract: str) -> None:
        self.call, self.tag, self.contract = call, tag, contract
        self.insecure = bool(call["insecure"]) and call.command.name != "upgrade"
        self.pinned = [str(item) for item in call["cert-fingerprint"] or []]
        if self.insecure:
            self.nodes = list(call["nodes"] or [])
            if not self.nodes:
                raise Failure("failed to determine endpoints")
            self.endpoints, self.tls = self.nodes, transport.context()
            return
        context = Context(call)
        current = context.current
        self.endpoints = call["endpoints"] or current.get("endpoints") or []
        if not self.endpoints:
            raise Failure("error constructing client: failed to determine endpoints")
        current = context.require()
        self.nodes = list(call["nodes"] or current.get("nodes") or [])
        self.tls = self._mutual(current)
        if not self.nodes:
            raise Failure(NO_NODES, call.command.usage())
        if call.command.name in ONE_NODE and len(self.nodes) > 1:
            name = call.command.name
            text = f"requires exactly one node (got {len(self.nodes)})" if contract != "1.13" else "is not supported with multiple nodes"
            raise Failure(f'command "{name}" {text}', call.command.usage())

    @staticmethod
    def _mutual(current: dict[str, Any]) -> ssl.SSLContext:
        try:
            return transport.context(unb64(current["ca"]), unb64(current["crt"]), unb64(current["key"]))
        except (KeyError, ValueError, ssl.SSLError) as error:
            prefix = "error constructing client: failed to create client connection: failed to acquire credentials:"
            raise Failure(f"{prefix} {error}") from None

    def rpc(self, name: str, nodes: list[str] | None = None, **args: Any) -> tuple[bool, list[dict[str, Any]]]:
        """One call through any endpoint that can be reached: (nested, results)."""
        order = random.sample(self.endpoints, len(self.endpoints))
        body = {"nodes": [] if self.insecure else self.nodes if nodes is None else nodes, "args": args}
        last: RpcError | None = None
        for endpoint in order:
            try:
                answer = transport.call(endpoint, name, body, tls=self.tls, pinned=self.pinned if self.insecure else None)
            except RpcError as error:
                last = error
                continue
            if self.insecure:
                for item in answer["results"]:
                    item["node"] = endpoint
            return bool(answer["nested"]), list(answer["results"])
        assert last is not None
        raise last

    def unary(self, name: str, prefix: str, *, reads: bool = False, **args: Any) -> list[dict[str, Any]]:
        """A call of the kind that apid fans out: what failed is an error, or a warning beside what was read."""
        try:
            nested, results = self.rpc(name, **args)
        except RpcError as error:
            raise Failure(f"{prefix}{error}") from None
        good = [item for item in results if "code" not in item]
        bad = [f"{item['node']}: {text(item)}" if nested else text(item) for item in results if "code" in item]
        if bad and (not good or not reads):
            raise Failure(prefix + (multi(bad) if nested else bad[0]))
        self.warning = f"WARNING: {multi(bad)}\n" if bad else ""
        return good

    def stream(self, name: str, prefix: str, unreached: str | None = None, **args: Any) -> Any:
        """A call for one node whose errors come flat."""
        try:
            _, results = self.rpc(name, **args)
        except RpcError as error:
            raise Failure(f"{prefix if unreached is None else unreached}{error}") from None
        if "code" in results[0]:
            raise Failure(prefix + text(results[0]))
        return results[0]["reply"]

    warning = ""


def text(item: dict[str, Any]) -> str:
    return f"rpc error: code = {item['code']} desc = {item['desc']}"


# -- reading -----------------------------------------------------------------------------------------------------------


def version(session: Session) -> None:
    found = session.unary("version", "error getting version: ", reads=True)
    for item in found:
        reply = item["reply"]
        if session.call["json"]:
            shown = {"metadata": {"hostname": item["node"]},
                     "version": {key: reply[key] for key in ("tag", "sha", "goVersion", "os", "arch")},
                     "platform": {"name": "metal", "mode": "metal"}, "features": {"rbac": True} if reply["rbac"] else {}}  # fmt: skip
            out(json.dumps(shown, separators=(",", ":")) + "\n")
            continue
        rows = (("NODE", item["node"]), ("Tag", reply["tag"]), ("SHA", reply["sha"]), ("Built", ""), ("Go version", reply["goVersion"]),
                ("OS/Arch", f"{reply['os']}/{reply['arch']}"), ("Enabled", "RBAC" if reply["rbac"] else ""))  # fmt: skip
        out("".join(f"\t{name + ':':<13}{value}\n" for name, value in rows))
    err(session.warning)


def _column(spec: Any, path: str) -> str:
    value = spec
    for key in path.split(".") if path else []:
        value = value.get(key) if isinstance(value, dict) else None
    if value is None:
        return ""
    if isinstance(value, list):
        return json.dumps(value, separators=(",", ":"))
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _jsonpath(template: str, value: Any) -> str:
    def one(match: re.Match[str]) -> str:
        found: Any = value
        for key in re.findall(r"[^.\[\]'\"]+", match[1]):
            found = found.get(key, "") if isinstance(found, dict) else found[int(key)] if isinstance(found, list) else ""
        return found if isinstance(found, str) else json.dumps(found, separators=(",", ":"))

    return re.sub(r"\{([^}]*)\}", one, template)


def _show_yaml(item: dict[str, Any]) -> str:
    order = ("namespace", "type", "id", "version", "owner", "phase", "created", "updated", "annotations")
    metadata = {key: item["metadata"][key] for key in order if key in item["metadata"]}
    for key in ("created", "updated"):
        metadata[key] = goyaml.Raw(metadata[key])
    metadata["owner"] = metadata["owner"] or goyaml.Raw("")
    if "annotations" in metadata:
        metadata["annotations"] = {key: goyaml.Raw(value) for key, value in metadata["annotations"].items()}
    return goyaml.dump({"node": item["node"], "metadata": metadata, "spec": item["spec"]}).replace("owner: \n", "owner:\n")


def get(session: Session) -> None:
    call = session.call
    name = "getsecret" if call.arguments[0].lower() in ("mc", "machineconfig", "machineconfigs") and not session.insecure else "get"
    args = {"type": call.arguments[0], "id": call.arguments[1] if len(call.arguments) > 1 else "", "namespace": call["namespace"]}
    rows: list[list[str]] = []
    errors: list[str] = []
    shown = 0
    for index, node in enumerate([None] if session.insecure else session.nodes):
        try:
            _, results = session.rpc(name, None if node is None else [node], **args)
            result = results[0]
            if "code" in result and name == "getsecret" and result["code"] == "PermissionDenied" and result["desc"] == "not authorized":
                result = {"reply": {"type": "", "columns": [], **result}}
        except RpcError as error:
            result = {"code": error.code, "desc": error.desc}
        if "code" in result:
            if index == 0:
                raise Failure(text(result))
            errors.append(text(result))
            continue
        reply = result["reply"]
        if not rows:
            rows.append(["NODE", "NAMESPACE", "TYPE", "ID", "VERSION", *(column[0] for column in reply["columns"])])
        if "code" in reply:
            errors.append(text(reply))
        for item in reply.get("items", []):
            shown = _show(call["output"], {**item, "node": node or ""}, reply, rows, shown)
    if call["output"] == "table":
        out(table(rows))
    if errors:
        raise Failure(multi(errors))


def _show(form: str, item: dict[str, Any], reply: dict[str, Any], rows: list[list[str]], shown: int) -> int:
    metadata = item["metadata"]
    if form == "json":
        dumped = json.dumps(item, indent=4, sort_keys=True, ensure_ascii=False)
        out(dumped.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026") + "\n")
    elif form == "yaml":
        out(("---\n" if shown else "") + _show_yaml(item))
    elif form.startswith("jsonpath="):
        out(_jsonpath(form.removeprefix("jsonpath="), item) + "\n")
    elif form == "table":
        cells = [_column(item["spec"], path) for _, path in reply["columns"]]
        rows.append([item["node"], metadata["namespace"], reply["short"], str(metadata["id"]), str(metadata["version"]), *cells])
    else:
        raise Failure(f'output format "{form}" is not supported')
    return shown + 1


def read(session: Session) -> None:
    data = session.stream("read", "error reading: ", "error reading file: ", path=session.call.arguments[0])
    sys.stdout.flush()
    sys.stdout.buffer.write(base64.b64decode(data))


def dmesg(session: Session) -> None:
    try:
        _, results = session.rpc("dmesg")
    except RpcError as error:
        raise Failure(f"error getting dmesg: {error}") from None
    for item in results:
        for at, line in item.get("reply", []):
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
            out(f"{item['node']}: kern:    info: [{stamp}]: {line}\n")
    bad = [text(item) for item in results if "code" in item]
    if bad:
        raise Failure("1 error occurred:\n " + "\n ".join(bad))


def logs(session: Session) -> None:
    tail = session.call["tail"] or "-1"
    for item in session.unary("logs", "error fetching logs: ", reads=True, service=session.call.arguments[0], tail=tail):
        out("".join(f"{item['node']}: {line}\n" for line in item["reply"]))
    err(session.warning)


def memory(session: Session) -> None:
    rows = [["NODE", "TOTAL", "USED", "FREE", "SHARED", "BUFFERS", "CACHE", "AVAILABLE"]]
    rows += [[item["node"], *item["reply"]] for item in session.unary("memory", "error getting memory stats: ", reads=True)]
    out(table(rows))
    err(session.warning)


def service(session: Session) -> None:
    arguments = session.call.arguments
    if len(arguments) == 2 and arguments[1] != "status":
        found = session.unary("service", f"error {arguments[1]}ing service: ", service=arguments[0], action=arguments[1])
        out(table([["NODE", "RESPONSE"], *([item["node"], item["reply"]] for item in found)]))
        return
    found = session.unary("services", "error listing services: ", reads=True)
    if not arguments:
        rows = [["NODE", "SERVICE", "STATE", "HEALTH", "LAST CHANGE", "LAST EVENT"]]
        for item in found:
            rows += [[item["node"], name, state, health, "1m0s ago", event] for name, state, health, event in item["reply"]]
        out(table(rows))
        err(session.warning)
        return
    matches = [(item["node"], row) for item in found for row in item["reply"] if row[0] == arguments[0]]
    if not matches:
        raise Failure(f'service "{arguments[0]}" is not registered on any nodes')
    for node, (name, state, health, event) in matches:
        out(f"NODE     {node}\nID       {name}\nSTATE    {state}\nHEALTH   {health}\n")
        out(f"EVENTS   [{state}]: {event} (1m0s ago)\n         [Starting]: Starting service (1m0s ago)\n")
    err(session.warning)


def etcd(session: Session) -> None:
    verb = session.call.command.name.split()[1]
    if verb == "snapshot":
        import hashlib
        import zlib

        data = base64.b64decode(session.stream("etcd/snapshot", "error reading: "))
        path = session.call.arguments[0]
        Path(path).write_bytes(data)
        if hashlib.sha256(data[:-32]).digest() != data[-32:]:
            raise Failure(f"sha256 checksum not found (size {len(data)})")
        out(f'etcd snapshot saved to "{path}" ({len(data)} bytes)\n')
        out(f"snapshot info: hash {zlib.crc32(data):08x}, revision 0, total keys 0, total size 24576\n")
        return
    heads = {"members": "NODE ID HOSTNAME PEER~URLS CLIENT~URLS LEARNER",
             "status": "NODE MEMBER DB~SIZE IN~USE LEADER RAFT~INDEX RAFT~TERM RAFT~APPLIED~INDEX LEARNER PROTOCOL STORAGE ERRORS"}  # fmt: skip
    if verb not in heads:
        raise Failure(f"501 not simulated in the lab: etcd {verb}")
    found = session.unary(f"etcd/{verb}", f"error getting {verb}: ", reads=True)
    rows = [[cell.replace("~", " ") for cell in heads[verb].split()]]
    rows += [[item["node"], *row] for item in found for row in item["reply"]]
    out(table(rows))
    err(session.warning)


def health(session: Session) -> None:
    end = time.monotonic() + seconds(session.call["wait-timeout"])
    told: set[str] = set()
    checks = ("etcd to be healthy", "etcd members to be consistent across nodes", "etcd members to be control plane nodes",
              "apid to be ready", "all nodes memory sizes", "all nodes disk sizes", "no diagnostics", "kubelet to be healthy",
              "all nodes to finish boot sequence", "all k8s nodes to report", "all control plane static pods to be running",
              "all control plane components to be ready", "all k8s nodes to report ready")  # fmt: skip

    def tell(line: str) -> None:
        if line not in told:
            told.add(line)
            err(f"{line}\n")

    while True:
        reply = session.stream("health", "healthcheck error: ", "")
        tell("discovered nodes: [" + " ".join(f'"{node}"' for node in reply["nodes"]) + "]")
        for check in checks:
            tell(f"waiting for {check}: ...")
            bad = check.startswith("etcd") and not reply["etcd"]
            unready = check.endswith("report ready") and reply["unready"]
            if bad or unready:
                why = "some etcd members are not healthy" if bad else f"some nodes are not ready: {json.dumps(reply['unready'])}"
                tell(f"waiting for {check}: {why}")
                break
            tell(f"waiting for {check}: OK")
        else:
            return
        if time.monotonic() > end:
            raise Failure("healthcheck error: rpc error: code = DeadlineExceeded desc = context deadline exceeded")
        time.sleep(POLL_S)


# -- changing ----------------------------------------------------------------------------------------------------------


def _patches(session: Session, flag: str) -> list[configs.Config | None]:
    try:
        return [configs.read_patch(source, contract=session.contract) for source in session.call[flag]]
    except configs.ConfigError as error:
        raise Failure(str(error)) from None


def apply_config(call: Call, tag: str, contract: str) -> None:
    if not call["file"]:
        raise Failure("no filename supplied for configuration")
    try:
        data = Path(call["file"]).read_text(encoding="utf-8")
    except OSError as error:
        why = f"open {call['file']}: {(error.strerror or '').lower()}"
        raise Failure(f'failed to read configuration from "{call["file"]}": {why}') from None
    if not data:
        raise Failure("no configuration data read")
    session = Session(call, tag, contract)
    patches = _patches(session, "config-patch")
    if patches:
        try:
            data = configs.patched(configs.load(data, contract=contract), patches).text()
        except configs.ConfigError as error:
            raise Failure(str(error)) from None
    prefix = "error applying new configuration: " if contract == "1.13" else f"{session.nodes[0]}: error applying configuration: "
    for item in session.unary("apply", prefix, data=data, mode=call["mode"], dry_run=bool(call["dry-run"]), timeout=seconds(call["timeout"])):
        err(item["reply"] + "\n")


def patch(call: Call, tag: str, contract: str) -> None:
    sources = list(call["patch"]) + ([f"@{call['patch-file']}"] if call["patch-file"] else [])
    if not sources:
        raise Failure("either --patch or --patch-file should be defined")
    session = Session(call, tag, contract)
    for node in session.nodes:
        _patch_node(session, node, sources)


def _patch_node(session: Session, node: str, sources: list[str]) -> None:
    call = session.call
    try:
        _, results = session.rpc("getsecret", [node], type=call.arguments[0], id="", namespace="")
        reply = results[0] if "code" in results[0] else results[0]["reply"]
        if "code" in reply:
            raise Failure((f"{node}: " if reply["desc"] == "not authorized" else "") + text(reply))
        wanted = call.arguments[1] if len(call.arguments) > 1 else "v1alpha1"
        before = next((str(item["spec"]) for item in reply["items"] if item["metadata"]["id"] == wanted), "")
        if "mc" not in call.arguments[0].lower() and "machineconfig" not in call.arguments[0].lower():
            raise Failure("config not found")
        if wanted != "v1alpha1":
            return
        patches = [configs.read_patch(source, contract=session.contract) for source in sources]
        after = configs.patched(configs.load(before, contract=session.contract), patches).text()
        same = after == before
        if not same:
            err(f"patched MachineConfigs.config.talos.dev/v1alpha1 at the node {node}\n")
        dry = bool(call["dry-run"])
        nested, results = session.rpc("apply", [node], data=after, mode=call["mode"], dry_run=dry, timeout=seconds(call["timeout"]))
    except configs.ConfigError as error:
        raise Failure(str(error)) from None
    except RpcError as error:
        raise Failure(str(error)) from None
    if "code" in results[0]:
        raise Failure(multi([f"{node}: {text(results[0])}"]) if nested else text(results[0]))
    err("Apply was skipped: no changes detected.\n" if same else results[0]["reply"] + "\n")


def bootstrap(session: Session) -> None:
    session.unary("bootstrap", "error executing bootstrap: ")


def _say(node: str, line: str) -> None:
    err(f'"{node}": {line}\n')


def _wait_for_boot(session: Session, nodes: list[str], end: float, mode: str) -> None:
    """Follow a reboot as the real client words it; exit code 1 without a text when the time is over."""
    stopped = () if mode == "force" else ("task: stopAllServices action: STOP", "error: stopAllServices task completed")
    for node in nodes:
        for line in ("waiting for actor ID", f"actor ID: {uuid.uuid4()}", "sequence: reboot action: START", "error: reboot sequence completed",
                     *stopped):  # fmt: skip
            _say(node, line)
    left, said = list(nodes), dict[str, str]()
    while left and time.monotonic() < end:
        for node in list(left):
            try:
                _, results = session.rpc("get", [node], type="machinestatus", id="", namespace="")
                if "code" in results[0]:
                    raise RpcError(results[0]["code"], results[0]["desc"])
                spec = results[0]["reply"]["items"][0]["spec"]
            except RpcError:
                _say(node, "unavailable, retrying...")
                continue
            unmet = " ".join(f'name:"{item["name"]}" reason:{json.dumps(item["reason"])}' for item in spec["status"]["unmetConditions"])
            line = f"stage: {spec['stage'].upper()} ready: {str(spec['status']['ready']).lower()} unmetCond: [{unmet}]"
            if spec["stage"] == "rebooting":  # not down yet
                continue
            if spec["stage"] == "running" and spec["status"]["ready"]:
                _say(node, "events check condition met")
                _say(node, "post check passed")
                left.remove(node)
            elif said.get(node) != line:
                said[node] = line
                _say(node, line)
        if left:
            time.sleep(POLL_S)
    if left:
        raise SystemExit(1)


def _kube(session: Session) -> Callable[..., dict[str, Any]]:
    """A caller of the Kubernetes API by the kubeconfig that the endpoint hands out."""
    import http.client
    import urllib.parse

    _, results = session.rpc("kubeconfig", [session.endpoints[0]])
    if "code" in results[0]:
        raise Failure(text(results[0]))
    config = goyaml.load(results[0]["reply"])
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    url = urllib.parse.urlsplit(cluster["server"])
    pair = unb64(user["client-certificate-data"]) + unb64(user["client-key-data"])
    tls = transport.context(unb64(cluster["certificate-authority-data"]), pair)

    def request(method: str, path: str, body: Any = None, what: str = "") -> dict[str, Any]:
        link = http.client.HTTPSConnection(url.hostname or "", url.port or 6443, timeout=10, context=tls)
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        try:
            link.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": kind})
            answer = link.getresponse()
            return {"status": answer.status, "body": json.loads(answer.read() or b"{}")}
        except OSError as error:
            why = "connect: connection refused" if isinstance(error, ConnectionRefusedError) else str(error).lower()
            raise Failure(f'{what}: Get "{cluster["server"]}{path}": dial tcp {url.hostname}:{url.port}: {why}') from None

    return request


def _drain(session: Session, node: str, timeout: float) -> Callable[[], None]:
    """Cordon a node and evict its pods; what is returned uncordons it."""
    _, results = session.rpc("get", [node], type="nodename", id="", namespace="")
    name = results[0]["reply"]["items"][0]["spec"]["nodename"]
    ask = _kube(session)
    path = f"/api/v1/nodes/{name}"
    ask("GET", path, what=f'error getting node "{name}"')
    err(f"{name}: cordoning node\n")
    ask("PATCH", path, {"spec": {"unschedulable": True}})
    err(f"{name}: node cordoned\n{name}: draining node\n")
    pods = ask("GET", f"/api/v1/pods?fieldSelector=spec.nodeName%3D{name}")["body"].get("items", [])
    end = time.monotonic() + timeout
    for pod in pods:
        meta = pod["metadata"]
        if any(owner.get("kind") == "DaemonSet" for owner in meta.get("ownerReferences") or []):
            continue
        full = f"{meta['namespace']}/{meta['name']}"
        err(f"{name}: evicting pod {full}\n")
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": meta["name"], "namespace": meta["namespace"]}}
        where = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        while ask("POST", f"{where}/eviction", body)["status"] == 429:
            if time.monotonic() > end:
                raise Failure(f'error draining node "{name}": error when evicting pods/"{meta["name"]}" -n "{meta["namespace"]}": '
                              "client rate limiter Wait returned an error: rate: Wait(n=1) would exceed context deadline")  # fmt: skip
            time.sleep(1)
        err(f"{name}: evicted pod {full}\n")
    err(f"{name}: node drained\n")

    def undo() -> None:
        err(f"{name}: waiting for node to become Ready\n{name}: uncordoning node\n")
        ask("PATCH", path, {"spec": {"unschedulable": None}})
        err(f"{name}: node uncordoned\n")

    return undo


def reboot(session: Session) -> None:
    call = session.call
    end = time.monotonic() + seconds(call["timeout"])
    undo = [_drain(session, node, seconds(call["drain-timeout"])) for node in session.nodes] if call["drain"] else []
    if not call["wait"]:
        session.unary("reboot", "error executing reboot: ", mode=call["mode"])
        return
    started, failed = [], False
    for node in session.nodes:
        try:
            _, results = session.rpc("reboot", [node], mode=call["mode"])
            if "code" in results[0]:
                raise RpcError(results[0]["code"], results[0]["desc"])
            started.append(node)
        except RpcError as error:
            failed = True
            _say(node, str(error))
            _say(node, "unavailable, retrying...") if "x509" in error.desc else None
    _wait_for_boot(session, started, end, call["mode"])
    if failed:
        raise SystemExit(1)
    for step in undo:
        step()


def upgrade(call: Call, tag: str, contract: str) -> None:
    for flag in ("preserve", "stage", "force", "insecure"):
        if flag in call.given:
            err(f"Flag --{flag} has been deprecated, legacy flag for MachineService.Upgrade fallback, to be removed in Talos 1.18\n")
    if call["insecure"] and call["wait"]:
        raise Failure("cannot use --wait and --insecure together")
    session = Session(call, tag, contract)
    if call["legacy"]:
        err("WARNING: Forcing use of legacy upgrade method. This flag is deprecated and will be removed in Talos 1.18.\n")
    image = str(call["image"]).replace("v1.14.0-rc.1", tag) if "image" not in call.given else call["image"]
    session.unary("version", "error checking Talos version compatibility: error getting server versions: ")
    slots: dict[str, Any] = {}
    for node in session.nodes:
        _, results = session.rpc("image/pull", [node], image=image)
        if "code" in results[0]:
            raise Failure(f"error pulling upgrade image: error from node {node}: {text(results[0])}")
        slots[node] = results[0]["reply"]
        err(f"{node}: pulled image {image.rsplit(':', 1)[0]}@sha256:{'0' * 64}\n")
    for node in session.nodes:
        _, results = session.rpc("upgrade", [node], slot=slots[node])
        if "code" in results[0]:
            raise Failure(f"error during upgrade: error from node {node}: {text(results[0])}")
        lines = results[0]["reply"]
        err("".join(f"{node}: {line}\n" if "host Talos version" not in line else f"{line}\n" for line in lines))
        if lines[-1] != "Exit code: 0":
            err(f"{node}: upgrade failed with exit code 1\n")
            raise Failure(f"error during upgrade: node {node}: upgrade failed with exit code 1")
        err(f"{node}: upgrade completed\n")
    if call["no-reboot"]:
        return
    end = time.monotonic() + seconds(call["timeout"])
    undo = [_drain(session, node, seconds(call["drain-timeout"])) for node in session.nodes] if call["drain"] else []
    session.unary("reboot", "error executing reboot: ", mode=call["reboot-mode"])
    if call["wait"]:
        _wait_for_boot(session, session.nodes, end, call["reboot-mode"])
        for step in undo:
            step()


def simple(name: str, prefix: str, **fixed: Any) -> Callable[[Session], None]:
    def run_it(session: Session) -> None:
        call = session.call
        args = dict(fixed)
        if name == "reset":
            args = {"labels": call["system-labels-to-wipe"], "disks": call["user-disks-to-wipe"], "reboot": bool(call["reboot"])}
        if name == "wipe":
            args = {"devices": call.arguments}
        session.unary(name, prefix, **args)

    return run_it


def kubeconfig(session: Session) -> None:
    call = session.call
    data = session.stream("kubeconfig", "error initializing gzip: ", "error copying: ")
    if call["force-context-name"]:
        old = re.search(r"^current-context: (.*)$", data, re.M)
        assert old is not None
        marks = "  name: {0}\ncurrent-context: {0}"
        data = data.replace(marks.format(old[1]), marks.format(call["force-context-name"]))
    where = call.arguments[0] if call.arguments else os.environ.get("KUBECONFIG") or os.path.join(os.environ.get("HOME", "/"), ".kube", "config")
    if where == "-":
        out(data)
        return
    path = Path(where)
    if path.is_dir() or where.endswith("/"):
        path = path / "kubeconfig"
    merge = call["merge"] and path.exists()
    if path.exists() and not merge and not call["force"]:
        raise Failure(f'kubeconfig file already exists, use --force to overwrite: "{path}"')
    path.parent.mkdir(parents=True, exist_ok=True)
    if merge:
        data = _merged(path.read_text(encoding="utf-8"), data, force=bool(call["force"]))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(data)


def _merged(old_text: str, new_text: str, *, force: bool) -> str:
    old, new = goyaml.load(old_text) or {}, goyaml.load(new_text)
    user, context, cluster = new["users"][0], new["contexts"][0], new["clusters"][0]
    for entry, key in ((user, "users"), (context, "contexts")):
        names = {item["name"] for item in old.get(key) or []}
        name, number = entry["name"], 0
        while entry["name"] in names and not force:
            number += 1
            entry["name"] = f"{name}-{number}"
        if number:
            out(f'renamed {"auth info" if key == "users" else "context"} "{name}" -> "{entry["name"]}"\n')
    context["context"]["user"] = user["name"]
    for key, entry in (("clusters", cluster), ("contexts", context), ("users", user)):
        old[key] = [item for item in old.get(key) or [] if item["name"] != entry["name"]] + [entry]
    return goyaml.dump({**old, "current-context": context["name"]})


_SESSION: dict[str, Callable[[Session], None]] = {
    "version": version,
    "get": get,
    "read": read,
    "dmesg": dmesg,
    "logs": logs,
    "memory": memory,
    "service": service,
    **{f"etcd {verb}": etcd for verb in ("members", "status", "snapshot")},
    "health": health,
    "bootstrap": bootstrap,
    "reboot": reboot,
    "kubeconfig": kubeconfig,
    "rollback": simple("rollback", "error executing rollback: "),
    "shutdown": simple("shutdown", "error executing shutdown: "),
    "reset": simple("reset", "error executing reset: "),
    "wipe disk": simple("wipe", ""),
    "meta write": simple("meta", ""),
    "meta delete": simple("meta", ""),
}
_OWN: dict[str, Callable[[Call, str, str], None]] = {"apply-config": apply_config, "patch": patch, "upgrade": upgrade}


def run(call: Call, tag: str, contract: str) -> int:
    name = call.command.name
    if name == "version" and not call["json"]:
        out("Server:\n")
    if name in _OWN:
        _OWN[name](call, tag, contract)
    elif name in _SESSION:
        _SESSION[name](Session(call, tag, contract))
    else:
        raise Failure(f"501 not simulated in the lab: {name}")
    return 0
