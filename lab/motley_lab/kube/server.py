# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The API server's HTTP side: authentication, routing, watches, and the two ways to start it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import pathlib
import secrets
import signal
import ssl
import sys
import time
import traceback
from typing import Any

import yaml
from aiohttp import web

from motley_lab.kube import errors, kubelet_proxy, selectors, tables
from motley_lab.kube.api import Api, Options, Target, now
from motley_lab.kube.errors import ApiError, Json
from motley_lab.kube.resources import VERSION, Resource
from motley_lab.kube.store import Change, Store

_BOOKMARK_EVERY_S = 30.0
_OPEN_PATHS = ("/healthz", "/livez", "/readyz")


@dataclasses.dataclass(frozen=True)
class User:
    name: str
    groups: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Config:
    tokens: dict[str, User]
    lab: pathlib.Path | None = None
    node: str = ""
    address: str = "127.0.0.1:6443"


def _dump(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


class Server:
    def __init__(self, api: Api, config: Config) -> None:
        self.api = api
        self.config = config
        self.closing = asyncio.Event()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=16 << 20)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        return app

    # One request

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        options = Options()
        try:
            response = await self._answer(request, options)
        except ApiError as error:
            response = self._reply(error.status, error.code, options)
        except Exception as error:  # a client gets a Status whatever happens; the log says where
            sys.stderr.write(f"{now()} {request.method} {request.path}: {traceback.format_exc()}")
            refusal = ApiError(500, "InternalError", f"Internal error occurred: {type(error).__name__}: {error}")
            response = self._reply(refusal.status, 500, options)
        self._record(request, options, response.status)
        return response

    def _record(self, request: web.Request, options: Options, status: int) -> None:
        if self.config.lab is None:
            return
        from motley_lab.record import record

        record(self.config.lab, server="kube", node=self.config.node, method=request.method, path=request.path_qs,
               dry_run=options.dry_run, agent=request.headers.get("User-Agent", ""), status=status)

    async def _answer(self, request: web.Request, options: Options) -> web.StreamResponse:
        path = request.path.rstrip("/") or "/"
        if path in _OPEN_PATHS:
            return web.Response(text="ok")
        user = self._user(request)
        if (fixed := self._fixed(request, path)) is not None:
            return fixed
        target = self._target(path)
        if target is None:
            return web.Response(status=404, text="404 page not found\n", headers={"X-Content-Type-Options": "nosniff"})
        self._options(request, options)
        if target.resource.plural == "endpoints":
            options.warnings.append("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice")
        if target.sub in ("log", "exec"):
            return await self._to_kubelet(request, target)
        match request.method:
            case "GET":
                return await self._read(request, target, options)
            case "POST":
                return await self._post(request, target, options, user)
            case "PUT" | "PATCH" if target.name:
                return await self._change(request, target, options)
            case "DELETE" if not target.sub:
                return await self._delete(request, target, options)
        raise ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    def _user(self, request: web.Request) -> User:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            for known, user in self.config.tokens.items():
                if secrets.compare_digest(known, token.strip()):
                    return user
        elif certificate := request.get_extra_info("peercert"):
            names: dict[str, list[str]] = {}
            for part in certificate.get("subject", ()):
                for key, value in part:
                    names.setdefault(key, []).append(value)
            return User(names.get("commonName", [""])[0], tuple(names.get("organizationName", ())))
        raise ApiError(401, "Unauthorized", "Unauthorized")

    def _fixed(self, request: web.Request, path: str) -> web.Response | None:
        """Documents that are not objects: version, discovery, OpenAPI."""
        registry, parts = self.api.registry, path.strip("/").split("/")
        aggregated = "as=APIGroupDiscoveryList" in request.headers.get("Accept", "")
        document: Json | None = None
        if path == "/version":
            document = VERSION
        elif path in ("/api", "/apis") and aggregated:
            return web.Response(body=_dump(registry.aggregated(core=path == "/api")), headers={
                "Content-Type": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"})
        elif path == "/api":
            where = [{"clientCIDR": "0.0.0.0/0", "serverAddress": self.config.address}]
            document = {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": where}
        elif path == "/apis":
            document = registry.group_list(self.config.address)
        elif path == "/api/v1":
            document = registry.resource_list("", "v1")
        elif parts[0] == "apis" and len(parts) == 2 and parts[1] in registry.groups():
            document = {"kind": "APIGroup", "apiVersion": "v1", **registry.group(parts[1])}
        elif parts[0] == "apis" and len(parts) == 3:
            document = registry.resource_list(parts[1], parts[2])
        elif path == "/openapi/v3":
            document = registry.openapi_index()
        elif path.startswith("/openapi/v3/"):
            group, version = (parts[3], parts[4]) if len(parts) == 5 else ("", parts[-1])
            document = registry.openapi(group, version)
        return None if document is None else web.Response(body=_dump(document), content_type="application/json")

    def _target(self, path: str) -> Target | None:
        parts = path.strip("/").split("/")
        match parts:
            case ["api", version, *rest]:
                group = ""
            case ["apis", group, version, *rest]:
                pass
            case _:
                return None
        namespace = ""
        if rest[:1] == ["namespaces"] and len(rest) > 2 and rest[2] not in ("status", "finalize"):
            namespace, rest = rest[1], rest[2:]
        if not rest or len(rest) > 3:
            return None
        resource = self.api.registry.find(group, version, rest[0])
        if resource is None or (namespace and not resource.namespaced):
            return None
        sub = rest[2] if len(rest) == 3 else ""
        if sub and sub not in resource.subresources:
            if sub in ("attach", "portforward", "proxy", "scale", "ephemeralcontainers", "resize", "token"):
                raise errors.unimplemented(f"{resource.plural}/{sub}")
            return None
        return Target(resource, namespace, rest[1] if len(rest) > 1 else "", sub)

    @staticmethod
    def _options(request: web.Request, options: Options) -> None:
        query = request.query
        agent = request.headers.get("User-Agent", "unknown")
        apply = request.headers.get("Content-Type", "").startswith("application/apply-patch")
        options.manager = query.get("fieldManager") or ("" if apply else agent.split("/")[0])
        if query.get("dryRun", "All") != "All":
            detail = errors.unsupported("dryRun", [query["dryRun"]], ("All",))
            raise errors.unprocessable("meta.k8s.io", "PatchOptions", "", [detail])
        options.dry_run = "dryRun" in query
        options.force = query.get("force") == "true"
        options.validation = query.get("fieldValidation") or "Warn"

    @staticmethod
    async def _body(request: web.Request) -> Any:
        kind = request.headers.get("Content-Type", "application/json")
        raw = await request.read()
        if "protobuf" in kind or "cbor" in kind:
            raise ApiError(415, "UnsupportedMediaType", "the body of the request was in an unknown format - accepted media types include: "
                           "application/json, application/yaml")
        if not raw:
            return {}
        try:
            return yaml.load(raw, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if "yaml" in kind and raw[:1] != b"{" else json.loads(raw)
        except (ValueError, yaml.YAMLError) as error:
            raise errors.bad_request(f"error decoding the body of the request: {error}") from error

    def _reply(self, document: Json, status: int, options: Options) -> web.Response:
        response = web.Response(body=_dump(document), status=status, content_type="application/json")
        for text in dict.fromkeys(options.warnings):
            quoted = text.replace("\\", "\\\\").replace('"', '\\"')
            response.headers.add("Warning", f'299 - "{quoted}"')
        return response

    def _shown(self, request: web.Request, document: Json, resource: Resource) -> Json:
        document = self.api.shown(document, resource)
        if _wants_table(request) and document.get("kind") == resource.kind:
            return tables.render([document], resource, revision=document["metadata"].get("resourceVersion", ""),
                                 include=request.query.get("includeObject", "Metadata"))
        if "as=PartialObjectMetadata;" in request.headers.get("Accept", "").replace("List;", ";"):
            return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": document["metadata"]}
        return document

    # Verbs

    async def _read(self, request: web.Request, target: Target, options: Options) -> web.StreamResponse:
        if target.name and request.query.get("watch") not in ("true", "1"):
            return self._reply(self._shown(request, self.api.get(target), target.resource), 200, options)
        field = request.query.get("fieldSelector", "") if not target.name else f"metadata.name={target.name}"
        selector = selectors.parse(request.query.get("labelSelector", ""), field)
        if request.query.get("watch") in ("true", "1"):
            return await self._watch(request, target, selector)
        found = [self.api.shown(entry, target.resource) for entry in self.api.select(target, selector)]
        revision, more = str(self.api.store.revision), {}
        start, limit = int(request.query.get("continue") or 0), int(request.query.get("limit") or 0)
        if limit and len(found) > start + limit:
            more = {"continue": str(start + limit), "remainingItemCount": len(found) - start - limit}
        found = found[start: start + limit] if limit else found[start:]
        if _wants_table(request):
            table = tables.render(found, target.resource, revision=revision, include=request.query.get("includeObject", "Metadata"))
            return self._reply({**table, "metadata": {"resourceVersion": revision, **more}}, 200, options)
        listed: Json = {"kind": f"{target.resource.kind}List", "apiVersion": target.resource.api_version,
                        "metadata": {"resourceVersion": revision, **more}, "items": found}
        if target.resource.columns is None:
            listed["items"] = [{key: value for key, value in entry.items() if key not in ("kind", "apiVersion")} for entry in found]
        return self._reply(listed, 200, options)

    async def _post(self, request: web.Request, target: Target, options: Options, user: User) -> web.StreamResponse:
        body = await self._body(request)
        if target.sub == "binding":
            return self._reply(self.api.bind(target, body), 201, options)
        if target.sub == "eviction":
            return self._reply(self.api.evict(target, body, options), 201, options)
        if target.name:
            raise ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        match target.resource.kind:
            case "SelfSubjectReview":
                return self._reply({**body, "status": {"userInfo": {"username": user.name, "groups": list(user.groups)}}}, 201, options)
            case "SelfSubjectAccessReview":
                return self._reply({**body, "status": {"allowed": True}}, 201, options)
        if target.resource.namespaced and not target.namespace:
            raise errors.bad_request("an empty namespace may not be set during creation")
        return self._reply(self._shown(request, self.api.create(target, body, options), target.resource), 201, options)

    async def _change(self, request: web.Request, target: Target, options: Options) -> web.StreamResponse:
        body = await self._body(request)
        if request.method == "PUT":
            document, created = self.api.update(target, body, options), False
        else:
            kind = request.headers.get("Content-Type", "").split(";")[0]
            document, created = self.api.patched(target, kind, body, options)
        return self._reply(self._shown(request, document, target.resource), 201 if created else 200, options)

    async def _delete(self, request: web.Request, target: Target, options: Options) -> web.StreamResponse:
        body = await self._body(request)
        for key in ("gracePeriodSeconds", "propagationPolicy", "orphanDependents"):
            if key in request.query:
                text = request.query[key]
                body[key] = int(text) if key == "gracePeriodSeconds" else {"true": True, "false": False}.get(text, text)
        options.dry_run = options.dry_run or bool(body.get("dryRun"))
        if target.name:
            return self._reply(self._shown(request, self.api.delete(target, body, options), target.resource), 200, options)
        selector = selectors.parse(request.query.get("labelSelector", ""), request.query.get("fieldSelector", ""))
        found = self.api.select(target, selector)
        for entry in found:
            self.api.delete(dataclasses.replace(target, name=entry["metadata"]["name"], namespace=entry["metadata"].get("namespace", "")),
                            body, options)
        return self._reply({"kind": f"{target.resource.kind}List", "apiVersion": target.resource.api_version,
                            "metadata": {"resourceVersion": str(self.api.store.revision)}, "items": found}, 200, options)

    # Watching

    async def _watch(self, request: web.Request, target: Target, selector: selectors.Selector) -> web.StreamResponse:
        store, query = self.api.store, request.query
        wanted = int(query.get("resourceVersion") or 0)
        initial = query.get("sendInitialEvents") == "true" or not wanted
        past: list[Change] | None = [] if initial else store.since(wanted)
        if past is None:
            return self._reply(ApiError(410, "Expired", f"too old resource version: {wanted} ({store.revision})").status, 410, Options())
        queue = store.subscribe()
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        try:
            first = self.api.select(target, selector) if initial else []
            lines = [self._event(request, "ADDED", entry, target.resource) for entry in first]
            if query.get("sendInitialEvents") == "true":
                lines.append(self._bookmark(target.resource, end=True))
            lines += filter(None, (self._line(request, change, target, selector) for change in past))
            await response.prepare(request)
            if lines:
                await response.write(b"".join(lines))
            await self._follow(request, response, queue, target, selector)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            store.unsubscribe(queue)
        return response

    async def _follow(self, request: web.Request, response: web.StreamResponse, queue: asyncio.Queue[Change], target: Target,
                      selector: selectors.Selector) -> None:
        end = time.monotonic() + float(request.query.get("timeoutSeconds") or 1800)
        marks = request.query.get("allowWatchBookmarks") in ("true", "1")
        while not self.closing.is_set() and (left := end - time.monotonic()) > 0:
            try:
                change = await asyncio.wait_for(queue.get(), min(left, _BOOKMARK_EVERY_S))
            except TimeoutError:
                if marks:
                    await response.write(self._bookmark(target.resource))
                continue
            lines = [self._line(request, change, target, selector)]
            while not queue.empty():
                lines.append(self._line(request, queue.get_nowait(), target, selector))
            if data := b"".join(filter(None, lines)):
                await response.write(data)

    def _line(self, request: web.Request, change: Change, target: Target, selector: selectors.Selector) -> bytes | None:
        meta = change.document["metadata"]
        if change.resource != target.resource.key or (target.namespace and meta.get("namespace") != target.namespace):
            return None
        before = change.old is not None and selector.takes(change.old)
        after = not change.deleted and selector.takes(change.document)
        if not before and not after:
            return None
        kind = "DELETED" if not after else "MODIFIED" if before else "ADDED"
        return self._event(request, kind, change.document, target.resource)

    def _event(self, request: web.Request, kind: str, document: Json, resource: Resource) -> bytes:
        return _dump({"type": kind, "object": self._shown(request, document, resource)})

    def _bookmark(self, resource: Resource, *, end: bool = False) -> bytes:
        metadata: Json = {"resourceVersion": str(self.api.store.revision), "creationTimestamp": None}
        if end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        return _dump({"type": "BOOKMARK", "object": {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}})

    # Kubelets

    async def _to_kubelet(self, request: web.Request, target: Target) -> web.StreamResponse:
        pod = self.api.get(target)
        name = pod["spec"].get("nodeName", "")
        node = self.api.store.get("/nodes", "", name) if name else None
        if target.sub == "log":
            return await kubelet_proxy.logs(request, pod, node, lab=self.config.lab)
        return await kubelet_proxy.execute(request, pod, node, lab=self.config.lab)


def _wants_table(request: web.Request) -> bool:
    return "as=Table" in request.headers.get("Accept", "")


def _self_signed(address: str) -> ssl.SSLContext:
    """TLS of a server of its own: made at start, nothing to trust."""
    import trustme

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert(address, "localhost").configure_cert(context)
    return context


def _with_pki(folder: pathlib.Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "apiserver.crt", folder / "apiserver.key")
    context.load_verify_locations(folder / "ca.crt")
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


@dataclasses.dataclass
class Running:
    """A server that listens, with its controllers."""

    server: Server
    runner: web.AppRunner
    port: int
    controllers: list[asyncio.Task[None]]

    async def stop(self) -> None:
        self.server.closing.set()
        for task in self.controllers:
            task.cancel()
        await asyncio.gather(*self.controllers, return_exceptions=True)
        await self.runner.cleanup()
        self.server.api.store.save()


async def start(*, host: str, port: int, context: ssl.SSLContext, config: Config, store: Store, controllers: bool = True,
                ca: str = "") -> Running:
    inner = secrets.token_hex(16)
    config.tokens[inner] = User("system:kube-controller-manager", ("system:masters",))
    server = Server(Api(store), config)
    runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=0.2, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, host, port, ssl_context=context, reuse_address=True)
    await site.start()
    bound = runner.addresses[0][1]
    tasks: list[asyncio.Task[None]] = []
    if controllers:
        from motley_lab.kube.controllers import run_all

        # The loopback address is not in every certificate; the connection does not leave this process.
        inside = ssl.create_default_context()
        inside.check_hostname, inside.verify_mode = False, ssl.CERT_NONE
        where = "127.0.0.1" if host in ("", "0.0.0.0") else host
        tasks.append(asyncio.create_task(run_all(f"https://{where}:{bound}", token=inner, context=inside, ca=ca)))
    return Running(server, runner, bound, tasks)


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="motley-lab kube-api", description="A Kubernetes API server for the lab.")
    parser.add_argument("--standalone", "--alone", action="store_true", help="alone, on loopback, with a certificate of its own")
    parser.add_argument("--lab", type=pathlib.Path)
    parser.add_argument("--node", default="")
    parser.add_argument("--pki", type=pathlib.Path)
    parser.add_argument("--port", type=int, default=6443)
    parser.add_argument("--token", default=os.environ.get("MOTLEY_LAB_KUBE_TOKEN", ""))
    parser.add_argument("--host", default="")
    args = parser.parse_args(argv)
    if args.standalone and not args.token:
        parser.error("--standalone needs --token")
    if not args.standalone and not (args.lab and args.node and args.pki):
        parser.error("give --lab, --node and --pki, or --standalone and --token")
    return args


async def serve(args: argparse.Namespace) -> None:
    """Run until SIGTERM or SIGINT."""
    tokens = {args.token: User("kubernetes-admin", ("system:masters", "system:authenticated"))} if args.token else {}
    if args.standalone:
        host, context, store, ca = args.host or "127.0.0.1", _self_signed(args.host or "127.0.0.1"), Store(), ""
        config = Config(tokens, address=f"{host}:{args.port}")
    else:
        folder = args.lab / "nodes" / args.node
        folder.mkdir(parents=True, exist_ok=True)
        host, context, store = args.host or "0.0.0.0", _with_pki(args.pki), Store(folder / "etcd.json")
        ca = (args.pki / "ca.crt").read_text()
        config = Config(tokens, lab=args.lab, node=args.node, address=f"{args.node}:{args.port}")
    running = await start(host=host, port=args.port, context=context, config=config, store=store, ca=ca)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    sys.stderr.write(f"{now()} kube-apiserver: listening on {host}:{running.port}\n")
    await stopped.wait()
    await running.stop()


def main(argv: list[str] | None = None) -> int:
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(_arguments(sys.argv[1:] if argv is None else argv)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
