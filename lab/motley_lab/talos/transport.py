# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One call to a machine API: JSON over HTTPS, with the connection errors of the real client."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import random
import socket
import ssl
import tempfile
from pathlib import Path
from typing import Any

PORT = 50000
HANDSHAKE_S = 20.0
UNKNOWN_CA = "tls: failed to verify certificate: x509: certificate signed by unknown authority"
FOREIGN_CA = (
    f'{UNKNOWN_CA} (possibly because of \\"x509: Ed25519 verification failure\\" '
    'while trying to verify candidate authority certificate \\"talos\\")'
)


class RpcError(Exception):
    """A gRPC status; `reached` tells whether the endpoint answered at all."""

    def __init__(self, code: str, desc: str, *, reached: bool = True) -> None:
        self.code, self.desc, self.reached = code, desc, reached
        super().__init__(f"rpc error: code = {code} desc = {desc}")


def unavailable(desc: str) -> RpcError:
    return RpcError("Unavailable", desc, reached=False)


def _connection(text: str) -> RpcError:
    return unavailable(f'connection error: desc = "{text}"')


def unb64(text: str) -> str:
    """PEM text out of a configuration; here so that a client need not load the certificate library."""
    return base64.b64decode(text).decode()


def context(ca: str | None = None, crt: str = "", key: str = "") -> ssl.SSLContext:
    """TLS 1.3 of a client: with a CA and a certificate, or neither (maintenance)."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.check_hostname = False
    if ca is None:
        made.verify_mode = ssl.CERT_NONE
        return made
    made.load_verify_locations(cadata=ca)
    if crt:
        with tempfile.NamedTemporaryFile("w", prefix="talos-") as file:  # OpenSSL takes a key from a file only
            file.write(crt + key.replace("ED25519 PRIVATE KEY", "PRIVATE KEY"))
            file.flush()
            made.load_cert_chain(file.name)
    return made


def _dial(host: str, port: int, timeout: float) -> socket.socket:
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4]
    except OSError:
        raise unavailable("name resolver error: produced zero addresses") from None
    shown = f"{host}:{port}"
    try:
        return socket.create_connection(address[:2], timeout=timeout)  # type: ignore[arg-type]
    except ConnectionRefusedError:
        reason = "connect: connection refused"
    except TimeoutError:
        reason = "i/o timeout"
    except OSError as error:
        reason = f"connect: {(error.strerror or str(error)).lower()}"
    raise _connection(f"transport: Error while dialing: dial tcp {shown}: {reason}")


def _alert(error: OSError, local: str, remote: str) -> RpcError:
    """What a refused client certificate looks like: a race between the alert and the broken pipe."""
    text = str(error).upper()
    names = {
        "CERTIFICATE_REQUIRED": "certificate required",
        "CERTIFICATE_EXPIRED": "expired certificate",
        "UNKNOWN_CA": "unknown certificate authority",
        "BAD_CERTIFICATE": "bad certificate",
    }
    name = next((words for mark, words in names.items() if mark in text), None)
    chance = random.random()
    if name and chance < 0.45:
        return _connection(f"error reading server preface: remote error: tls: {name}")
    return unavailable(f"write tcp {local}->{remote}: write: {'broken pipe' if chance < 0.98 else 'connection reset by peer'}")


def fingerprint(der: bytes) -> str:
    """base64(sha256(SubjectPublicKeyInfo)) of a certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = x509.load_der_x509_certificate(der).public_key()
    return base64.b64encode(hashlib.sha256(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()).decode()


def call(
    host: str,
    name: str,
    body: dict[str, Any],
    *,
    tls: ssl.SSLContext,
    port: int = PORT,
    timeout: float = 600.0,
    pinned: list[str] | None = None,
) -> Any:
    """POST one request and return the decoded answer."""
    raw = _dial(host, port, HANDSHAKE_S)
    local, remote = "{}:{}".format(*raw.getsockname()[:2]), f"{host}:{port}"
    try:
        secure = tls.wrap_socket(raw, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raw.close()
        text = UNKNOWN_CA if error.verify_code == 18 else FOREIGN_CA
        raise _connection(f"transport: authentication handshake failed: {text}") from None
    except TimeoutError:
        raw.close()
        raise _connection("transport: authentication handshake failed: context deadline exceeded") from None
    except OSError:
        raw.close()
        reset = f"transport: authentication handshake failed: write tcp {local}->{remote}: write: connection reset by peer"
        raise _connection(reset) from None
    if pinned:
        seen = fingerprint(secure.getpeercert(binary_form=True) or b"")
        if seen not in pinned:
            secure.close()
            text = f"leaf peer certificate doesn't match the provided fingerprints: [{' '.join(pinned)}]"
            raise _connection(f"transport: authentication handshake failed: {text}")
    secure.settimeout(timeout)
    link = http.client.HTTPConnection(host, port)
    link.sock = secure
    try:
        link.request("POST", f"/{name}", json.dumps(body), {"Content-Type": "application/json"})
        answer = link.getresponse().read()
    except TimeoutError:
        raise RpcError("DeadlineExceeded", "context deadline exceeded") from None
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, http.client.HTTPException):
            raise unavailable("error reading from server: EOF") from None
        raise _alert(error, local, remote) from None
    finally:
        link.close()
    return json.loads(answer)


def server_context(folder: Path, *, ca: str | None, crt: str, key: str) -> ssl.SSLContext:
    """TLS 1.3 of a server: mutual with a CA, open without."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "server.pem"
    file.touch(mode=0o600)
    file.write_text(crt + key.replace("ED25519 PRIVATE KEY", "PRIVATE KEY"), encoding="utf-8")
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.load_cert_chain(file)
    if ca is not None:
        made.verify_mode = ssl.CERT_REQUIRED
        made.load_verify_locations(cadata=ca)
    return made
