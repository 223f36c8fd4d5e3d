# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the API server reaches a node's kubelet for `log` and `exec`: the interface both sides keep.

Where. The kubelet listens with plain HTTP on its node's address and registers it in its Node object:
`status.addresses` holds `{"type": "InternalIP", "address": ...}` and `status.daemonEndpoints.kubeletEndpoint.Port` the
port (10250). Every request carries `Authorization: Bearer TOKEN`; TOKEN is what `kubelet_token(LAB)` returns (the file
`LAB/kubelet-token`, 0600, made by whoever asks first). Any other token is answered 401.

Logs. `GET /containerLogs/{namespace}/{pod}/{container}` answers 200 `text/plain` with the log as raw bytes. Query, all
optional: `follow=true` (chunked; keeps sending until the container ends or the client goes), `tailLines=N`, `previous=true`
(the instance before the last restart), `timestamps=true` (each line starts with an RFC3339 time and a blank),
`sinceSeconds=N`, `limitBytes=N`. Errors are plain text bodies, passed on to the user as the message:
404 `container "c" in pod "p" not found`, 400 `container "c" in pod "p" is waiting to start: ContainerCreating`,
400 `previous terminated container "c" in pod "p" not found`.

Exec. `GET /exec/{namespace}/{pod}/{container}?command=ls&command=-l&stdin=true&stdout=true&stderr=true&tty=true` with a
WebSocket upgrade. The kubelet picks the first of `v5.channel.k8s.io`, `v4.channel.k8s.io` that is offered. `command` repeats, one
per argument; the flags are absent or `true`. All messages are binary; the first byte names the channel:

    0 stdin (to the kubelet)   1 stdout   2 stderr   3 error (from the kubelet)   4 resize (JSON {"Width","Height"}, to the kubelet)
    255 close (v5 only): the second byte is the channel that its sender has closed; `FF 00` is the end of standard input

When the command has ended and its output is sent, the kubelet sends exactly one message on channel 3, JSON:
`{"metadata":{},"status":"Success"}`, or for exit code 7
`{"metadata":{},"status":"Failure","message":"command terminated with non-zero exit code: exit status 7","reason":"NonZeroExitCode",
"details":{"causes":[{"reason":"ExitCode","message":"7"}]}}`; a command that cannot be started gives a Failure with reason
`InternalError` and the cause in `message`. Then it closes with code 1000. A client that goes away ends the command.
Refused before the upgrade (no such container, not running): 404 or 400 with a plain text body, as for logs.

The API server resolves the container (the only one, or the annotation `kubectl.kubernetes.io/default-container`, or the one
named), so the kubelet always gets its name. It relays messages as they are, in both directions (text messages of a client as binary ones).
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import secrets
from typing import Any

import aiohttp
from aiohttp import web

from motley_lab.kube.errors import ApiError, Json, bad_request

_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_LOG_OPTIONS = ("follow", "tailLines", "previous", "timestamps", "sinceSeconds", "limitBytes")
_EXEC_OPTIONS = ("stdin", "stdout", "stderr", "tty")
_LARGEST_MESSAGE = 16 << 20


def kubelet_token(lab: pathlib.Path) -> str:
    """The token shared by API server and kubelets of a lab; made on the first call."""
    path = lab / "kubelet-token"
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text().strip()
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(16))
    return path.read_text().strip()


def _container(request: web.Request, pod: Json) -> str:
    names = [entry["name"] for entry in pod["spec"].get("initContainers", []) + pod["spec"]["containers"]]
    asked, name = request.query.get("container", ""), pod["metadata"]["name"]
    if asked:
        if asked not in names:
            raise bad_request(f"container {asked} is not valid for pod {name}")
        return asked
    default = pod["metadata"].get("annotations", {}).get("kubectl.kubernetes.io/default-container", "")
    main = [entry["name"] for entry in pod["spec"]["containers"]]
    if default in main:
        return str(default)
    if len(main) > 1:
        raise bad_request(f"a container name must be specified for pod {name}, choose one of: [{' '.join(main)}]")
    return str(main[0])


def _url(node: Json | None, verb: str, pod: Json, container: str) -> str:
    status = (node or {}).get("status", {})
    address = next((entry["address"] for entry in status.get("addresses", []) if entry["type"] == "InternalIP"), "")
    port = status.get("daemonEndpoints", {}).get("kubeletEndpoint", {}).get("Port", 0)
    if node is None or not address or not port:
        raise ApiError(500, "InternalError", f"an error on the server: node {pod['spec'].get('nodeName')} has no kubelet address")
    meta = pod["metadata"]
    return f"http://{address}:{port}/{verb}/{meta['namespace']}/{meta['name']}/{container}"


def _headers(lab: pathlib.Path | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {kubelet_token(lab)}"} if lab else {}


def _failed(status: int, text: str) -> ApiError:
    reason = {400: "BadRequest", 404: "NotFound"}.get(status, "InternalError")
    return ApiError(status if status in (400, 404) else 500, reason, text.strip() or f"the kubelet answered {status}")


async def logs(request: web.Request, pod: Json, node: Json | None, *, lab: pathlib.Path | None) -> web.StreamResponse:
    """The log of a container, passed through as the kubelet sends it."""
    container = _container(request, pod)
    if not pod["spec"].get("nodeName"):
        return web.Response(status=204)
    query = {key: request.query[key] for key in _LOG_OPTIONS if key in request.query}
    url = _url(node, "containerLogs", pod, container)
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_connect=10)) as session, session.get(
                url, params=query, headers=_headers(lab)) as answer:
            if answer.status != 200:
                raise _failed(answer.status, await answer.text())
            response = web.StreamResponse(headers={"Content-Type": "text/plain"})
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            return response
    except aiohttp.ClientConnectionError as error:
        raise ApiError(500, "InternalError", f'Get "{url}": {error}') from error


async def execute(request: web.Request, pod: Json, node: Json | None, *, lab: pathlib.Path | None) -> web.StreamResponse:
    """A command in a container: messages are relayed between the client's and the kubelet's WebSocket."""
    if not pod["spec"].get("nodeName"):
        raise bad_request(f"pod {pod['metadata']['name']} does not have a host assigned")
    if request.headers.get("Upgrade", "").lower() != "websocket":
        raise bad_request("Upgrade request required")
    offered = [part.strip() for part in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
    protocols = [name for name in _PROTOCOLS if name in offered]
    if not protocols:
        raise ApiError(403, "Forbidden", f"unable to upgrade: none of {', '.join(_PROTOCOLS)} is offered")
    query = [("command", part) for part in request.query.getall("command", [])]
    query += [(key, "true") for key in _EXEC_OPTIONS if request.query.get(key, "").lower() in ("true", "1")]
    url = _url(node, "exec", pod, _container(request, pod))
    async with aiohttp.ClientSession() as session:
        try:
            inner = await session.ws_connect(url, params=query, headers=_headers(lab), protocols=protocols, max_msg_size=_LARGEST_MESSAGE)
        except aiohttp.WSServerHandshakeError as error:
            async with session.get(url, params=query, headers=_headers(lab)) as plain:
                raise _failed(error.status, await plain.text()) from error
        except aiohttp.ClientConnectionError as error:
            raise ApiError(500, "InternalError", f"error dialing backend: {error}") from error
        outer = web.WebSocketResponse(protocols=[inner.protocol or protocols[-1]], max_msg_size=_LARGEST_MESSAGE)
        await outer.prepare(request)
        await _relay(outer, inner)
        return outer


async def _relay(outer: web.WebSocketResponse, inner: aiohttp.ClientWebSocketResponse) -> None:
    async def pump(source: Any, sink: Any) -> None:
        async for message in source:
            if message.type is aiohttp.WSMsgType.BINARY:
                await sink.send_bytes(message.data)
            elif message.type is aiohttp.WSMsgType.TEXT:
                await sink.send_bytes(message.data.encode())

    tasks = [asyncio.create_task(pump(outer, inner)), asyncio.create_task(pump(inner, outer))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await inner.close()
        await outer.close()
