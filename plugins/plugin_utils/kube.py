# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Kubernetes API for our actions: few calls, plain data, one kubeconfig from the state directory.

The `kubernetes` library reads the kubeconfig (certificates, tokens, credential plugins) and brings the HTTP and WebSocket
libraries; requests are made on its connection pool, because its typed API costs 0.6 s of imports and turns answers into
objects that have to be turned back.
"""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import ssl
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.kube import objects, waits
from ansible_collections.motley.inference.plugins.module_utils.kube.objects import Identity, Object, Resource

try:
    import urllib3
    import websocket
    import yaml
    from kubernetes.client.configuration import Configuration
    from kubernetes.config import kube_config

    IMPORT_ERROR: ImportError | None = None
except ImportError as error:  # said when a client is made, so that check mode works without it
    IMPORT_ERROR = error

FIELD_MANAGER = "motley"
_CLOSE = 8  # WebSocket opcode


class KubeError(MotleyError):
    """An answer of the API server that is no success."""

    def __init__(self, message: str, *, status: int, reason: str = "", hint: str = "", causes: Sequence[str] = ()) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.reason = reason
        self.causes = tuple(causes)

    @property
    def immutable(self) -> bool:
        """Whether the object can not take this change and has to be made anew."""
        return self.status == 422 and any(mark in self.message for mark in ("immutable", "pod updates may not", "updates to statefulset spec"))


class KubeUnreachable(MotleyError):
    """Nobody answers at the API server's address."""


@dataclass(frozen=True)
class Executed:
    """How a command in a container ended."""

    rc: int
    stdout: str
    stderr: str


@dataclass
class Change:
    """What became of one object, or would."""

    identity: Identity
    action: str  # created, changed, unchanged, recreated, deleted, absent
    before: Object = field(default_factory=dict)
    after: Object = field(default_factory=dict)
    live: Object = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        return self.action not in ("unchanged", "absent")

    def as_dict(self) -> dict[str, Any]:
        return {"kind": self.identity.kind, "namespace": self.identity.namespace, "name": self.identity.name, "action": self.action}


class Waiter(Protocol):
    """What a wait needs of an action's context."""

    def progress(self, what: str, since: float, *, key: str = "") -> None: ...


class Kube:
    """One API server. Not thread-safe; make one per thread."""

    def __init__(self, kubeconfig: str | Path, *, timeout: float = 30.0) -> None:
        if IMPORT_ERROR is not None:
            raise MotleyError(
                f"the Python library of Kubernetes is missing: {IMPORT_ERROR}",
                hint="pip install kubernetes, for the Python that runs ansible-playbook",
            )
        self.kubeconfig = Path(kubeconfig)
        self.timeout = timeout
        self.warnings: list[str] = []
        self._resources: dict[tuple[str, str], Resource] = {}
        self._load()

    # -- connection ------------------------------------------------------------------------------------------------
    def _load(self) -> None:
        folder = tempfile.mkdtemp(prefix="motley-")
        try:
            document = _with_files(_read_kubeconfig(self.kubeconfig), Path(folder))
            configuration = type.__call__(Configuration)  # without the library's global default
            kube_config.load_kube_config_from_dict(document, client_configuration=configuration, persist_config=False, temp_file_path=folder)
            self.host = str(configuration.host).rstrip("/")
            self._configuration = configuration
            self._tls = _tls(configuration)
        except (kube_config.ConfigException, ssl.SSLError, OSError, KeyError, TypeError) as error:
            raise MotleyError(
                f"{self.kubeconfig} can not be used: {error}", hint="remove it and run --tags talos_bootstrap, or set motley_kubeconfig"
            ) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # the keys are in the TLS context now
        options: dict[str, Any] = {"ssl_context": self._tls, "maxsize": 4}
        if getattr(configuration, "tls_server_name", None):
            options["server_hostname"] = configuration.tls_server_name
        proxy = getattr(configuration, "proxy", None)
        self._pool = urllib3.ProxyManager(proxy, **options) if proxy else urllib3.PoolManager(**options)

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "motley"}
        settings = self._configuration.auth_settings()
        for setting in settings.values():
            if setting.get("in") == "header" and setting.get("value"):
                headers[setting["key"]] = setting["value"]
        return headers

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        timeout: float | None = None,
        raw: bool = False,
    ) -> Any:
        """One request. Returns the answer's document (its bytes with raw); KubeError, KubeUnreachable."""
        url = f"{self.host}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = self._headers()
        payload = None
        if body is not None:
            headers["Content-Type"] = content_type
            payload = json.dumps(body).encode()
        retries = urllib3.Retry(total=2, connect=2, read=2 if method == "GET" else 0, status=0, redirect=3, backoff_factor=0.2)
        limit = urllib3.Timeout(connect=5.0, read=timeout or self.timeout)
        try:
            answer = self._pool.request(method, url, body=payload, headers=headers, timeout=limit, retries=retries)
        except urllib3.exceptions.HTTPError as error:
            raise KubeUnreachable(
                f"the Kubernetes API at {self.host} does not answer: {_innermost(error)}",
                hint="is the control plane up and on the network? --tags talos_bootstrap brings it up",
            ) from error
        for warning in answer.headers.getlist("Warning") if hasattr(answer.headers, "getlist") else []:
            text = warning.split('"', 1)[-1].rstrip('"')
            if text not in self.warnings:
                self.warnings.append(text)
        if answer.status >= 400:
            raise _error(answer.status, answer.data, f"{method} {path}")
        if raw:
            return answer.data
        return json.loads(answer.data) if answer.data else {}

    def version(self) -> str:
        """The server's version; also the cheapest proof that it answers."""
        return str(self.request("GET", "/version", timeout=10).get("gitVersion", ""))

    # -- objects ---------------------------------------------------------------------------------------------------
    def resource(self, api_version: str, kind: str) -> Resource:
        """How a kind is addressed; unknown kinds by discovery, once."""
        known = objects.resource(api_version, kind) or self._resources.get((api_version, kind))
        if known:
            return known
        root = "/api/v1" if api_version == "v1" else f"/apis/{api_version}"
        try:
            rows = self.request("GET", root).get("resources") or []
        except KubeError as error:
            if error.status != 404:
                raise
            rows = []
        for row in rows:
            if row.get("kind") == kind and "/" not in row.get("name", ""):
                found = Resource(api_version, row["name"], bool(row.get("namespaced")))
                self._resources[(api_version, kind)] = found
                return found
        raise MotleyError(f"the cluster has no kind {kind} of {api_version}", hint="install what defines it (its CustomResourceDefinition) first")

    def _path(self, who: Identity) -> str:
        where = self.resource(who.api_version, who.kind)
        return where.path(namespace=who.namespace or ("default" if where.namespaced else ""), name=who.name)

    def get(self, who: Identity) -> Object | None:
        """The live object, or None."""
        try:
            return dict(self.request("GET", self._path(who)))
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    def list_objects(self, api_version: str, kind: str, *, namespace: str = "", labels: str = "", fields: str = "") -> list[Object]:
        """All objects of a kind, of a namespace or of all."""
        query = {k: v for k, v in (("labelSelector", labels), ("fieldSelector", fields)) if v}
        where = self.resource(api_version, kind)
        try:
            answer = self.request("GET", where.path(namespace=namespace), query=query)
        except KubeError as error:
            if error.status == 404:
                return []
            raise
        return [{"apiVersion": api_version, "kind": kind, **item} for item in answer.get("items") or []]

    def apply(self, definition: Mapping[str, Any], *, namespace: str = "", dry_run: bool = False, force: bool = False) -> Object:
        """Server-side apply under our name, with strict field validation: a misspelt key is an error."""
        who = objects.identity(definition, namespace=namespace)
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict", "force": str(force).lower()}
        if dry_run:
            query["dryRun"] = "All"
        return dict(self.request("PATCH", self._path(who), query=query, body=definition, content_type="application/apply-patch+yaml"))

    def delete(self, who: Identity, *, dry_run: bool = False, grace: int | None = None) -> bool:
        """Ask for an object's end; False if it was not there."""
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        try:
            self.request("DELETE", self._path(who), query={"dryRun": "All"} if dry_run else None, body=body)
        except KubeError as error:
            if error.status == 404:
                return False
            raise
        return True

    def events(self, namespace: str) -> list[Object]:
        """Events of a namespace, for explanations."""
        return self.list_objects("v1", "Event", namespace=namespace)

    # -- containers ------------------------------------------------------------------------------------------------
    def logs(self, namespace: str, pod: str, *, tail: int | None = None, previous: bool = False, container: str = "") -> str:
        """A container's log; empty before it has a node."""
        query = {k: v for k, v in (("tailLines", tail), ("previous", "true" if previous else None), ("container", container)) if v}
        where = objects.resource("v1", "Pod")
        path = (where.path(namespace=namespace, name=pod) if where else "") + "/log"
        return bytes(self.request("GET", path, query=query, raw=True)).decode(errors="replace")

    def exec(self, namespace: str, pod: str, argv: Sequence[str], *, container: str = "", timeout: float = 60.0) -> Executed:
        """Run a command in a container and wait for its end. Arguments are seen in `ps`: no secrets in them."""
        query = [("command", a) for a in argv] + [("stdout", "true"), ("stderr", "true")] + ([("container", container)] if container else [])
        url = f"{self.host}/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}/exec?{urlencode(query)}"
        headers = [f"{k}: {v}" for k, v in self._headers().items() if k.lower() == "authorization"]
        deadline = time.monotonic() + timeout
        try:
            socket = websocket.create_connection(
                url.replace("http", "ws", 1),
                timeout=min(timeout, self.timeout),
                header=headers,
                sslopt={"context": self._tls},
                subprotocols=["v5.channel.k8s.io", "v4.channel.k8s.io"],
            )
        except websocket.WebSocketBadStatusException as error:
            raise _error(int(error.status_code), getattr(error, "resp_body", None) or b"", f"exec in {namespace}/{pod}") from error
        except (websocket.WebSocketException, OSError) as error:
            raise KubeUnreachable(f"exec in {namespace}/{pod} did not come about: {error}", hint="run again: it goes on from here") from error
        with contextlib.closing(socket):
            return _drain(socket, deadline, f"{argv[0]} in {namespace}/{pod}", timeout)


def _read_kubeconfig(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text())
    except FileNotFoundError as error:
        raise MotleyError(f"there is no kubeconfig at {path}", hint="run --tags talos_bootstrap, or set motley_kubeconfig") from error
    except yaml.YAMLError as error:
        raise MotleyError(f"{path} is no YAML", hint="remove it and run --tags talos_bootstrap") from error
    if not isinstance(document, dict):
        raise MotleyError(f"{path} is no kubeconfig", hint="remove it and run --tags talos_bootstrap")
    # Paths in a kubeconfig are relative to it.
    for group, inner in (("clusters", "cluster"), ("users", "user")):
        for entry in document.get(group) or []:
            for key in ("certificate-authority", "client-certificate", "client-key", "tokenFile"):
                value = (entry.get(inner) or {}).get(key)
                if value:
                    entry[inner][key] = str((path.parent / value).resolve())
    return document


def _with_files(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Certificates and keys that stand in the kubeconfig itself, as files of ours: the library would leave its own behind in /tmp."""
    number = 0
    for group, inner in (("clusters", "cluster"), ("users", "user")):
        for entry in document.get(group) or []:
            part = entry.get(inner) or {}
            for key in ("certificate-authority", "client-certificate", "client-key"):
                data = part.pop(f"{key}-data", None)
                if data:
                    number += 1
                    file = folder / f"{number}.pem"
                    file.touch(mode=0o600)
                    file.write_bytes(base64.b64decode(data))
                    part[key] = str(file)
    return document


def _tls(configuration: Any) -> ssl.SSLContext:
    if configuration.verify_ssl:
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert or None)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # cluster CAs often lack the key identifiers that Python 3.13 asks for
    else:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file or None)
    return context


def _innermost(error: BaseException) -> str:
    reason = getattr(error, "reason", None)
    text = str(reason if reason is not None else error)
    return text.rsplit(">: ", 1)[-1] if ">: " in text else text


def _error(status: int, data: bytes, what: str) -> KubeError:
    try:
        document = json.loads(data)
    except ValueError:
        document = {}
    message = str(document.get("message") or (data or b"").decode(errors="replace").strip() or f"HTTP {status}")
    reason = str(document.get("reason") or "")
    causes = [str(c.get("message")) for c in (document.get("details") or {}).get("causes") or []]
    return KubeError(f"{what}: {message}", status=status, reason=reason, causes=causes, hint=_hint(status, message))


def _hint(status: int, message: str) -> str:
    known = waits.remedy(message)
    if known:
        return known
    if status == 401:
        return "the kubeconfig's credentials are not accepted: is it of this cluster? Remove it and run --tags talos_bootstrap"
    if status == 403 and "terminated" in message:
        return "wait until the namespace is gone, then run again"
    if status == 403:
        return "the user of the kubeconfig may not do this; an administrator's is needed"
    if status == 409 and "conflict" in message:
        return "another program manages this field; let it go, or take it over with force_conflicts: true"
    if status == 400 and "strict decoding" in message:
        return "correct the field's name"
    return "look at the object with kubectl, then run again"


def _drain(socket: Any, deadline: float, what: str, timeout: float) -> Executed:
    """Read an exec's channels until the command has ended."""
    out = {1: bytearray(), 2: bytearray(), 3: bytearray()}
    try:
        while True:
            socket.settimeout(max(0.1, deadline - time.monotonic()))
            opcode, data = socket.recv_data()
            if opcode == _CLOSE:
                break
            if data and data[0] in out:
                out[data[0]] += data[1:]
    except websocket.WebSocketTimeoutException as error:
        raise MotleyError(f"{what} has not ended after {timeout:.0f} s", hint="look into the Pod, then run again") from error
    except (websocket.WebSocketException, OSError):
        pass  # the end without a closing frame; whether the command ended is told by channel 3
    if not out[3]:
        raise KubeUnreachable(f"{what}: the connection ended before the command did", hint="run again: it goes on from here")
    return Executed(_exit_code(bytes(out[3]), what), out[1].decode(errors="replace"), out[2].decode(errors="replace"))


def _exit_code(status: bytes, what: str) -> int:
    document = json.loads(status)
    if document.get("status") == "Success":
        return 0
    for cause in (document.get("details") or {}).get("causes") or []:
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    raise MotleyError(f"{what} could not be started: {document.get('message')}", hint="is the container running, and is the program in its image?")


# -- what several actions do with a client -------------------------------------------------------------------------------


def current(kube: Kube, definitions: Sequence[Object], *, namespace: str = "") -> dict[Identity, Object]:
    """The live counterparts of definitions, with one list request per kind and namespace."""
    wanted = [objects.identity(d, namespace=namespace) for d in definitions]
    groups = {(who.api_version, who.kind, who.namespace) for who in wanted}
    found: dict[Identity, Object] = {}
    for api_version, kind, space in sorted(groups):
        inside = [who for who in wanted if (who.api_version, who.kind, who.namespace) == (api_version, kind, space)]
        if len(inside) == 1:
            live = kube.get(inside[0])
            items = [live] if live else []
        else:
            items = kube.list_objects(api_version, kind, namespace=space)
        for item in items:
            found[Identity(api_version, kind, item["metadata"]["name"], space)] = item
    return {who: found[who] for who in wanted if who in found}


def apply_all(
    kube: Kube,
    definitions: Iterable[Object],
    *,
    namespace: str = "",
    dry_run: bool = False,
    force: bool = False,
    recreate: bool = True,
    timeout: float = 120.0,
) -> list[Change]:
    """Apply a list in the right order. What can not take the change is deleted and made anew (dry: said so)."""
    wanted = objects.ordered(definitions)
    live = current(kube, wanted, namespace=namespace)
    missing_namespaces: set[str] = set()
    changes = []
    for definition in wanted:
        who = objects.identity(definition, namespace=namespace)
        change = _apply_one(
            kube, definition, who, live.get(who), dry_run=dry_run, force=force, recreate=recreate, timeout=timeout, absent=missing_namespaces
        )
        if dry_run and who.kind == "Namespace" and change.action == "created":
            missing_namespaces.add(who.name)
        changes.append(change)
    return changes


def _apply_one(
    kube: Kube,
    definition: Object,
    who: Identity,
    before: Object | None,
    *,
    dry_run: bool,
    force: bool,
    recreate: bool,
    timeout: float,
    absent: set[str],
) -> Change:
    if before and (before.get("metadata") or {}).get("deletionTimestamp"):
        if not dry_run:
            wait_gone(kube, [who], timeout=timeout)
        before = None
    if dry_run and who.namespace in absent:
        # The server refuses even a dry run inside a namespace that only a real run will make.
        return _change(who, "created", None, definition)
    try:
        after = _apply_in_new_namespace(kube, definition, who.namespace, dry_run=dry_run, force=force)
    except KubeError as error:
        if not (error.immutable and before and recreate):
            raise
        if dry_run:
            return _change(who, "recreated", before, definition)
        kube.delete(who)
        wait_gone(kube, [who], timeout=timeout)
        return _change(who, "recreated", before, kube.apply(definition, namespace=who.namespace, force=force))
    if before is None:
        return _change(who, "created", None, after)
    return _change(who, "unchanged" if objects.same(before, after) else "changed", before, after)


def _apply_in_new_namespace(kube: Kube, definition: Object, namespace: str, *, dry_run: bool, force: bool) -> Object:
    """Apply; a namespace that was made a moment ago has no default service account yet, and its Pods are refused until then."""
    deadline = time.monotonic() + 15.0
    while True:
        try:
            return kube.apply(definition, namespace=namespace, dry_run=dry_run, force=force)
        except KubeError as error:
            if error.status != 403 or "looking up service account" not in error.message or time.monotonic() > deadline:
                raise
        time.sleep(0.2)


def _change(who: Identity, action: str, before: Object | None, after: Object) -> Change:
    left, right = objects.redacted_pair(before, after)
    return Change(who, action, left, right, after)


def delete_all(kube: Kube, who: Iterable[Identity], *, dry_run: bool = False, timeout: float = 120.0, grace: int | None = None) -> list[Change]:
    """Take objects down and wait until they are gone."""
    changes = []
    gone = []
    for one in who:
        there = kube.delete(one, dry_run=dry_run, grace=grace)
        changes.append(Change(one, "deleted" if there else "absent"))
        if there:
            gone.append(one)
    if not dry_run:
        wait_gone(kube, gone, timeout=timeout)
    return changes


def wait_gone(kube: Kube, who: Sequence[Identity], *, timeout: float, context: Waiter | None = None) -> None:
    """Wait until objects are really gone (a Pod holds its ports and GPUs until then)."""
    since, pause, left = time.monotonic(), 0.15, list(who)
    while left := [one for one in left if kube.get(one) is not None]:
        if time.monotonic() - since > timeout:
            names = ", ".join(str(one) for one in left)
            raise MotleyError(
                f"waited {timeout:.0f} s for the end of {names}",
                hint="kubectl describe shows what holds it (finalizers, a node that is down)",
            )
        if context:
            context.progress(f"the end of {left[0]}", since, key="kubernetes")
        time.sleep(pause)
        pause = min(2.0, pause * 1.5)


def wait_all(
    kube: Kube, who: Sequence[Identity], *, timeout: float, context: Waiter | None = None, wait: str = "", hint: str = ""
) -> dict[Identity, Object]:
    """Wait until every object has reached what its kind's wait means; the last seen objects."""
    since, pause = time.monotonic(), 0.2
    while True:
        seen: dict[Identity, Object] = {}
        states: dict[Identity, waits.Progress] = {}
        for api_version, kind, namespace in sorted({(w.api_version, w.kind, w.namespace) for w in who}):
            inside = [w for w in who if (w.api_version, w.kind, w.namespace) == (api_version, kind, namespace)]
            found = {item["metadata"]["name"]: item for item in kube.list_objects(api_version, kind, namespace=namespace)}
            for one in inside:
                live = found.get(one.name)
                states[one] = waits.predicate(kind, wait)(live) if live else waits.Progress(False, "does not exist")
                seen[one] = live or {}
        open_ones = [one for one in who if not states[one].done]
        if not open_ones:
            return seen
        broken = next((one for one in open_ones if states[one].failed), None)
        if broken or time.monotonic() - since > timeout:
            raise _wait_failed(kube, broken or open_ones[0], states[broken or open_ones[0]], timeout if not broken else None, hint=hint)
        if context:
            context.progress("; ".join(f"{one}: {states[one].text[:100]}" for one in open_ones[:4]), since, key="kubernetes")
        time.sleep(pause)
        pause = min(2.0, pause * 1.4)


def _wait_failed(kube: Kube, who: Identity, state: waits.Progress, timeout: float | None, *, hint: str) -> MotleyError:
    reason = ""
    if who.namespace:
        with contextlib.suppress(MotleyError):
            reason = waits.reason_of_events(kube.events(who.namespace), who.name)
    evidence = [line for line in (state.text, reason) if line]
    remedy = next((r for text in (reason, state.text) if (r := waits.remedy(text))), "") or hint
    text = f"{who} {state.text}" if timeout is None else f"waited {timeout:.0f} s for {who}: {state.text}"
    return MotleyError(text, hint=remedy or f"kubectl describe {who.kind.lower()} {who.name} -n {who.namespace or 'default'}", evidence=evidence)
