# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The machine API: a listener over TLS, who may call what, and forwarding to other machines.

POST /NAME with `{"nodes": [...], "args": {...}}` answers `{"nested": bool, "results": [{"node", "reply" | "code", "desc"}]}`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from motley_lab import record
from motley_lab.talos import images, pki, resources, transport
from motley_lab.talos.transport import RpcError

if TYPE_CHECKING:
    from motley_lab.talos.machine import Machine

ROLES = ("os:reader", "os:operator", "os:admin")


class Listener(ThreadingHTTPServer):
    """One open port; closing it closes it for real."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, machine: Machine, address: tuple[str, int], tls: ssl.SSLContext, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self.machine, self.mutual = machine, tls.verify_mode == ssl.CERT_REQUIRED
        self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that breaks off is no error of the server; what it has sent is read, so that it sees the TLS alert, not a reset."""
        with contextlib.suppress(OSError):
            request.settimeout(0.2)
            socket.socket.recv(request, 65536)


class _Handler(BaseHTTPRequestHandler):
    server: Listener
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are recorded elsewhere."""

    def body(self) -> dict[str, Any]:
        return dict(json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}"))

    def answer(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(data)
        self.close_connection = True


class Trustd(_Handler):
    """Signs certificates for workers that know the token."""

    def do_POST(self) -> None:
        body, machine = self.body(), self.server.machine
        if machine.config is None or body.get("token") != machine.config.get("machine.token"):
            self.answer({"error": "failed to verify token"})
            return
        pair = machine.sign(str(body["kind"]), list(body["names"]), str(body["hostname"]))
        self.answer({"crt": pair.crt, "key": pair.key})


class Rpc(_Handler):
    """One call of the machine API."""

    def do_POST(self) -> None:
        machine, body = self.server.machine, self.body()
        name, nodes, args = self.path.strip("/"), list(body.get("nodes") or []), dict(body.get("args") or {})
        roles = self._roles(body)
        own = {machine.address, machine.hostname}
        local = not nodes or set(nodes) <= own
        control = machine.role in ("controlplane", "init") and self.server.mutual
        if not local and not control:
            self.answer({"nested": False, "results": [_failed("", RpcError("PermissionDenied", "no request forwarding"))]})
            return
        targets = nodes or [machine.address]
        bad = next((node for node in targets if ":" in node and node.count(":") == 1), None)
        if bad:
            self.answer({"nested": False, "results": [_failed("", RpcError("Internal", f'invalid target "{bad}"'))]})
            return
        results: list[dict[str, Any]] = [{} for _ in targets]

        def one(index: int, node: str) -> None:
            results[index] = self._local(node, name, args, roles) if node in own else _Proxy.of(machine).call(node, name, args, roles)

        threads = [threading.Thread(target=one, args=pair) for pair in enumerate(targets)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.answer({"nested": control and bool(nodes) and not body.get("forwarded"), "results": results})

    def _roles(self, body: dict[str, Any]) -> list[str]:
        if not self.server.mutual:
            return []
        certificate: Any = self.connection.getpeercert() or {}
        mine = [value for part in certificate.get("subject", ()) for key, value in part if key == "organizationName"]
        return list(body.get("roles") or []) if "os:impersonator" in mine else mine

    def _local(self, node: str, name: str, args: dict[str, Any], roles: list[str]) -> dict[str, Any]:
        machine = self.server.machine
        row = CALLS.get(name)
        status, result = 200, {}
        try:
            if row is None:
                raise RpcError("Unimplemented", f"501 not simulated in the lab: {name}")
            function, needed, open_, _ = row
            allowed = open_ and not machine.state["config"] if not self.server.mutual else _allows(roles, needed)
            if not allowed:
                raise RpcError("PermissionDenied", "not authorized")
            result = {"node": node, "reply": function(machine, args)}
        except RpcError as error:
            status, result = 400, _failed(node, error)
        dry, method = bool(args.get("dry_run")), "GET" if row and row[3] else "POST"
        agent = self.headers.get("User-Agent", "talosctl")
        record.record(machine.lab, server="machine", node=machine.name, method=method, path=f"/{name}", status=status, dry_run=dry, agent=agent)
        return result


def _allows(roles: list[str], needed: str) -> bool:
    return any(role in ROLES and ROLES.index(role) >= ROLES.index(needed) for role in roles)


def _failed(node: str, error: RpcError) -> dict[str, Any]:
    return {"node": node, "code": error.code, "desc": error.desc}


class _Proxy:
    """Connections of a control plane to other machines; one that was refused is not dialled again at once."""

    _all: dict[int, _Proxy] = {}

    def __init__(self, machine: Machine) -> None:
        assert machine.config is not None
        ca = pki.Pair.decoded(machine.config.get("machine.ca"))
        pair = pki.issue(ca, organizations=["os:impersonator"], days=1)
        self.tls = transport.context(ca.crt, pair.crt, pair.key)
        self.backoff: dict[str, tuple[float, int, RpcError]] = {}

    @classmethod
    def of(cls, machine: Machine) -> _Proxy:
        key = hash(machine.state["config"])
        if key not in cls._all:
            cls._all = {key: cls(machine)}
        return cls._all[key]

    def call(self, node: str, name: str, args: dict[str, Any], roles: list[str]) -> dict[str, Any]:
        until, tries, last = self.backoff.get(node, (0.0, 0, RpcError("", "")))
        if time.monotonic() < until:
            return _failed(node, last)
        try:
            answer = transport.call(node, name, {"nodes": [], "args": args, "roles": roles, "forwarded": True}, tls=self.tls)
        except RpcError as error:
            if "connection refused" in error.desc:
                self.backoff[node] = (time.monotonic() + min(1.6**tries, 15.0), tries + 1, error)
            return _failed(node, error)
        self.backoff.pop(node, None)
        return {**answer["results"][0], "node": node}


# -- the calls ---------------------------------------------------------------------------------------------------------


def _version(machine: Machine, args: dict[str, Any]) -> Any:
    return {"tag": machine.running()["version"], "sha": "0000000", "goVersion": "go1.26.8", "os": "linux", "arch": machine.arch,
            "rbac": machine.config is not None}  # fmt: skip


def _get(machine: Machine, args: dict[str, Any]) -> Any:
    try:
        kind = resources.kind(args["type"])
    except resources.UnknownKind as error:
        raise RpcError(*error.args) from None
    columns = [list(column) for column in kind.columns]
    head = {"type": kind.type, "short": kind.short, "namespace": kind.namespace, "columns": columns}
    wanted = args.get("namespace") or kind.namespace
    if wanted not in ("network", "runtime", "cluster", "config", "k8s"):
        return {**head, "code": "PermissionDenied", "desc": f'namespace "{wanted}" is not supported'}
    if kind.type == resources.SECRET and (machine.config is None or not args.get("admin")):
        return {**head, "code": "PermissionDenied", "desc": "not authorized"}
    items = resources.listed(machine, kind)
    if args.get("id"):
        items = [item for item in items if str(item["metadata"]["id"]) == args["id"]]
        if not items:
            text = f"resource {kind.type}({kind.namespace}/{args['id']}@undefined) doesn't exist"
            return {**head, "code": "NotFound", "desc": text}
    return {**head, "items": items}


def _apply(machine: Machine, args: dict[str, Any]) -> Any:
    return machine.apply(args["data"], args["mode"], dry_run=args["dry_run"], timeout=float(args.get("timeout", 60)))


def _control(machine: Machine, what: str) -> None:
    if machine.role not in ("controlplane", "init"):
        raise RpcError("Unimplemented", f"{what} is only available on control plane nodes")


def _bootstrap(machine: Machine, args: dict[str, Any]) -> Any:
    _control(machine, "bootstrap")
    if machine.state["stage"] not in ("booting", "running"):
        raise RpcError("FailedPrecondition", "bootstrap is not available yet")
    if machine.state["bootstrapped"]:
        raise RpcError("AlreadyExists", "etcd data directory is not empty")
    machine.save(bootstrapped=True)
    return {}


def _kubeconfig(machine: Machine, args: dict[str, Any]) -> Any:
    _control(machine, "kubeconfig")
    return machine.admin_kubeconfig()


def _etcd(machine: Machine, what: str) -> None:
    _control(machine, what)
    if not machine.state["bootstrapped"]:
        text = "error building etcd client TLS config: open /system/secrets/etcd/admin.crt: no such file or directory"
        raise RpcError("Unknown", f"failed to create etcd client: {text}" if what == "etcd status" else text)
    if machine.fault("etcd-unhealthy"):
        raise RpcError("DeadlineExceeded", "context deadline exceeded")


def _members(machine: Machine, args: dict[str, Any]) -> Any:
    _etcd(machine, "member list")
    return [["1c2b3a4958677685", machine.hostname, f"https://{machine.address}:2380", f"https://{machine.address}:2379", "false"]]


def _etcd_status(machine: Machine, args: dict[str, Any]) -> Any:
    _etcd(machine, "etcd status")
    member = "1c2b3a4958677685"
    return [[member, "20 MB", "8.2 MB (40.00%)", member, "2048", "2", "2048", "false", "3.6.12", "3.6.0", ""]]


def _snapshot(machine: Machine, args: dict[str, Any]) -> Any:
    from motley_lab.talos.machine import snapshot

    _etcd(machine, "etcd snapshot")
    return base64.b64encode(snapshot()).decode()


def _pull(machine: Machine, args: dict[str, Any]) -> Any:
    if not machine.state["installed"]:
        raise RpcError("FailedPrecondition", "machine is not installed")
    return images.pull(args["image"], machine.mirrors())


def _upgrade(machine: Machine, args: dict[str, Any]) -> Any:
    if not machine.state["installed"]:
        raise RpcError("FailedPrecondition", "machine is not installed")
    return machine.upgrade(args["slot"])


def _reboot(machine: Machine, args: dict[str, Any]) -> Any:
    machine.reboot(force=args.get("mode") == "force")
    return {}


def _rollback(machine: Machine, args: dict[str, Any]) -> Any:
    other = next((slot for slot in machine.state["slots"] if slot != machine.state["active"]), None)
    if other is None:
        raise RpcError("Unknown", "failed to revert bootloader: no other boot entry found")
    machine.save(next=other)
    machine.reboot()
    return {}


def _shutdown(machine: Machine, args: dict[str, Any]) -> Any:
    machine.rebooting = True
    machine.stage("shutting down")
    threading.Timer(0.3, machine.events.put, ["off"]).start()
    return {}


def _reset(machine: Machine, args: dict[str, Any]) -> Any:
    for path in args.get("disks") or []:
        if path == machine.state["system_disk"]:
            raise RpcError("Unknown", f"reset user disk failed: device {path} is the system disk")
        if path not in [disk["path"] for disk in machine.hardware["disks"]]:
            raise RpcError("Unknown", f"reset user disk failed: device {path} wasn't found")
    for label in args.get("labels") or []:
        if label not in ("EPHEMERAL", "STATE", "META"):
            raise RpcError("Unknown", f'failed to get volume status with label "{label}": resource '
                           f"VolumeStatuses.block.talos.dev(runtime/{label}@undefined) doesn't exist")  # fmt: skip
    threading.Timer(0.3, machine.reset, [list(args.get("labels") or [])], {"reboot": bool(args.get("reboot"))}).start()
    return {}


def _wipe(machine: Machine, args: dict[str, Any]) -> Any:
    for name in args["devices"]:
        disk = next((disk for disk in machine.hardware["disks"] if disk["path"] == f"/dev/{name}"), None)
        if disk is None:
            raise RpcError("NotFound", f'blockdevice "{name}" not found')
        if disk["path"] == machine.state["system_disk"]:
            raise RpcError("FailedPrecondition", f'blockdevice "{name}" is in use by volume "META"')
        machine.save(disks={**machine.state["disks"], disk["path"]: []})
    return {}


def _memory(machine: Machine, args: dict[str, Any]) -> Any:
    total = machine.hardware["memory_bytes"] >> 20
    return [str(value) for value in (total, total // 10, total * 8 // 10, 8, 36, total // 20, total * 9 // 10)]


def _health(machine: Machine, args: dict[str, Any]) -> Any:
    _control(machine, "cluster health check")
    return {"nodes": [item["address"] for item in machine.members()], "bootstrapped": machine.state["bootstrapped"],
            "etcd": bool(machine.state["bootstrapped"]) and not machine.fault("etcd-unhealthy"),
            "unready": [] if machine.readiness()[0] else [machine.hostname]}  # fmt: skip


def _logs(machine: Machine, args: dict[str, Any]) -> Any:
    name = str(args["service"])
    file = machine.dir / f"{name}.log"
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if "/" not in name and file.is_file() else []
    return lines[-int(args["tail"]):] if int(args.get("tail", -1)) > 0 else lines


def _service_action(machine: Machine, args: dict[str, Any]) -> Any:
    if args["service"] not in [row[0] for row in machine.services()]:
        raise RpcError("Unknown", f'service "{args["service"]}" is not registered')
    child = machine.children.get(args["service"])
    if child is not None and args["action"] in ("restart", "stop"):
        child.terminate()  # the machine starts it again
    return f'Service "{args["service"]}" {args["action"]}ed'.replace("stoped", "stopped")


Call = tuple[Callable[["Machine", dict[str, Any]], Any], str, bool, bool]
# name -> function, least role, allowed in maintenance, reads only
CALLS: dict[str, Call] = {
    "version": (_version, "os:reader", True, True),
    "get": (_get, "os:reader", True, True),
    "getsecret": (lambda machine, args: _get(machine, {**args, "admin": True}), "os:admin", False, True),
    "apply": (_apply, "os:admin", True, False),
    "bootstrap": (_bootstrap, "os:admin", False, False),
    "kubeconfig": (_kubeconfig, "os:admin", False, True),
    "etcd/members": (_members, "os:reader", False, True),
    "etcd/status": (_etcd_status, "os:reader", False, True),
    "etcd/snapshot": (_snapshot, "os:operator", False, True),
    "image/pull": (_pull, "os:admin", False, False),
    "upgrade": (_upgrade, "os:admin", False, False),
    "reboot": (_reboot, "os:operator", False, False),
    "rollback": (_rollback, "os:admin", False, False),
    "shutdown": (_shutdown, "os:operator", False, False),
    "reset": (_reset, "os:admin", False, False),
    "wipe": (_wipe, "os:admin", True, False),
    "meta": (lambda machine, args: {}, "os:admin", False, False),
    "services": (lambda machine, args: machine.services(), "os:reader", True, True),
    "service": (_service_action, "os:operator", False, False),
    "read": (lambda machine, args: base64.b64encode(machine.read(args["path"])).decode(), "os:admin", False, True),
    "dmesg": (lambda machine, args: machine.kmsg, "os:reader", True, True),
    "logs": (_logs, "os:reader", False, True),
    "memory": (_memory, "os:reader", True, True),
    "health": (_health, "os:reader", False, True),
}
