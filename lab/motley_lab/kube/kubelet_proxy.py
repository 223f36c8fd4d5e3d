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
named), so the kubelet always gets its name. It relays messages untouched, in both directions.
"""

from __future__ import annotations

import os
import pathlib
import secrets


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
