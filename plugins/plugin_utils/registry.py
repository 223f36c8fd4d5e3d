# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The part of the OCI registry API that reads: manifests and config blobs, by HTTP(S), with mirrors and tokens."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.images import contents, platforms
from ansible_collections.motley.inference.plugins.module_utils.images.reference import DOCKER_HUB, Reference

_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_LIMIT = 8 * 2**20  # no manifest or config is larger; a registry that answers more is none


class RegistryError(MotleyError):
    """A registry that refuses or does not answer. status is 0 when nobody answered."""

    def __init__(self, message: str, *, status: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status


@dataclass(frozen=True)
class Image:
    """What a registry says of one reference."""

    reference: Reference
    digest: str
    single: bool
    platforms: tuple[platforms.Platform, ...]
    contents: Mapping[str, contents.Contents]  # by architecture

    @property
    def architectures(self) -> list[str]:
        return sorted({p.architecture for p in self.platforms if p.os == "linux"})


class _NoRedirectAuth(urllib.request.HTTPRedirectHandler):
    """Blobs are often redirected to a storage service, which must not get our credentials."""

    def redirect_request(self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None and urllib.parse.urlsplit(newurl).netloc != urllib.parse.urlsplit(req.full_url).netloc:
            new.headers.pop("Authorization", None)
        return new


class Registry:
    """Reads from registries. mirrors: registry name -> base URL (as a container runtime is configured)."""

    def __init__(
        self, *, mirrors: Mapping[str, str] | None = None, auth_file: str | Path | None = None, timeout: float = 20.0, ca_file: str | None = None
    ) -> None:
        self._mirrors = {name: url.rstrip("/") for name, url in (mirrors or {}).items()}
        self._logins = _logins(auth_file)
        self._timeout = timeout
        handlers: list[urllib.request.BaseHandler] = [_NoRedirectAuth()]
        if ca_file:
            handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca_file)))
        self._open = urllib.request.build_opener(*handlers)
        self._tokens: dict[tuple[str, str], str] = {}

    # -- what actions ask ------------------------------------------------------------------------------------------
    def inspect(self, reference: Reference) -> Image:
        """Digest, platforms and contents of an image, without its layers: one manifest and one config per platform."""
        document, digest, kind = self._manifest(reference, reference.version)
        if not platforms.is_index(document, kind):
            config = self._config(reference, document)
            platform = platforms.of_config(config)
            return Image(reference, digest, True, (platform,), {platform.architecture: contents.read(config)})
        found = tuple(platforms.of_index(document))
        inside = {}
        for platform in found:
            if platform.os == "linux" and platform.digest and platform.architecture not in inside:
                manifest = self._manifest(reference, platform.digest)[0]
                inside[platform.architecture] = contents.read(self._config(reference, manifest))
        return Image(reference, digest, False, found, inside)

    def _manifest(self, reference: Reference, version: str) -> tuple[dict[str, Any], str, str]:
        body, headers = self._get(reference, f"manifests/{version}", accept=platforms.ACCEPT)
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        told = headers.get("docker-content-digest", digest)
        for claim in (told, version if version.startswith("sha256:") else digest):
            if claim.startswith("sha256:") and claim != digest:
                raise RegistryError(
                    f"{reference}: the registry sent a manifest with digest {digest} for {claim}",
                    hint="a proxy or mirror changes what it passes on; ask the registry itself",
                )
        return _json(body, f"the manifest of {reference}"), digest, headers.get("content-type", "")

    def _config(self, reference: Reference, manifest: Mapping[str, Any]) -> dict[str, Any]:
        digest = str((manifest.get("config") or {}).get("digest", ""))
        if not digest:
            raise RegistryError(f"the manifest of {reference} names no config", hint="it is no container image")
        body, _headers = self._get(reference, f"blobs/{digest}", accept="*/*")
        return _json(body, f"the config of {reference}")

    # -- HTTP ------------------------------------------------------------------------------------------------------
    def endpoints(self, reference: Reference) -> list[str]:
        """Where to ask, in order: the mirror, then the registry itself."""
        host = reference.registry
        own = "https://registry-1.docker.io" if host == DOCKER_HUB else f"{_scheme(host)}://{host}"
        mirror = self._mirrors.get(host) or self._mirrors.get("*")
        return [mirror, own] if mirror else [own]

    def _get(self, reference: Reference, what: str, *, accept: str) -> tuple[bytes, dict[str, str]]:
        failures = []
        for endpoint in self.endpoints(reference):
            url = f"{endpoint}/v2/{reference.repository}/{what}"
            try:
                return self._fetch(url, reference, accept)
            except RegistryError as error:
                failures.append(error)
        # Of a mirror and the registry behind it, the one that answered knows more.
        telling = next((f for f in failures if f.status), failures[0])
        raise RegistryError("; ".join(dict.fromkeys(f.message for f in failures)), status=telling.status, hint=telling.hint)

    def _fetch(self, url: str, reference: Reference, accept: str) -> tuple[bytes, dict[str, str]]:
        host = urllib.parse.urlsplit(url).netloc
        for attempt in (1, 2):
            headers = {"Accept": accept, "User-Agent": "motley"}
            if token := self._tokens.get((host, reference.repository)):
                headers["Authorization"] = token
            try:
                with self._open.open(urllib.request.Request(url, headers=headers), timeout=self._timeout) as answer:
                    body = answer.read(_LIMIT + 1)
                    if len(body) > _LIMIT:
                        raise RegistryError(f"{url} answers with more than {_LIMIT >> 20} MiB", hint="it is no registry")
                    return body, {k.lower(): v for k, v in answer.headers.items()}
            except urllib.error.HTTPError as error:
                challenge = error.headers.get("WWW-Authenticate", "") if error.headers else ""
                if error.code == 401 and attempt == 1 and challenge and self._login(host, reference, challenge):
                    continue
                raise _refused(error, reference, host) from None
            except (urllib.error.URLError, OSError) as error:
                reason = getattr(error, "reason", error)
                raise RegistryError(
                    f"the registry {host} does not answer: {reason}",
                    hint="is it reachable from here? motley_registry_mirrors maps a registry to a mirror's URL (http:// for a plain one)",
                ) from None
        raise AssertionError("unreachable")

    def _login(self, host: str, reference: Reference, challenge: str) -> bool:
        """Answer a 401: a bearer token (anonymous ones too), or basic credentials."""
        scheme, dummy, rest = challenge.partition(" ")
        login = self._logins.get(host) or self._logins.get(reference.registry)
        key = (host, reference.repository)
        if scheme.lower() == "basic":
            if login:
                self._tokens[key] = f"Basic {login}"
            return bool(login)
        fields = dict(_CHALLENGE.findall(rest))
        if scheme.lower() != "bearer" or "realm" not in fields:
            return False
        query = {"service": fields.get("service", host), "scope": fields.get("scope") or f"repository:{reference.repository}:pull"}
        request = urllib.request.Request(f"{fields['realm']}?{urllib.parse.urlencode(query)}", headers={"User-Agent": "motley"})
        if login:
            request.add_header("Authorization", f"Basic {login}")
        with contextlib.suppress(OSError, ValueError), self._open.open(request, timeout=self._timeout) as answer:
            document = json.loads(answer.read(_LIMIT))
            token = document.get("token") or document.get("access_token")
            if token:
                self._tokens[key] = f"Bearer {token}"
                return True
        return False


def _scheme(host: str) -> str:
    """Registries on the machine itself speak plain HTTP, as container runtimes assume too; all others HTTPS."""
    name = host.rsplit(":", 1)[0]
    return "http" if name in ("localhost", "127.0.0.1", "[::1]") else "https"


def _logins(auth_file: str | Path | None) -> dict[str, str]:
    """Registry -> base64 of user:password, from a file in the form of Docker's config.json."""
    if not auth_file:
        return {}
    try:
        document = json.loads(Path(auth_file).expanduser().read_text())
    except (OSError, ValueError) as error:
        hint = "it must be a file as `docker login` writes it: {auths: {...}}"
        raise MotleyError(f"the registry credentials {auth_file} can not be read", hint=hint) from error
    found = {}
    for name, entry in (document.get("auths") or {}).items():
        host = urllib.parse.urlsplit(name if "://" in name else f"//{name}").netloc
        text = entry.get("auth") or base64.b64encode(f"{entry.get('username', '')}:{entry.get('password', '')}".encode()).decode()
        found["registry-1.docker.io" if host == "index.docker.io" else host] = text
    return found


def _refused(error: urllib.error.HTTPError, reference: Reference, host: str) -> RegistryError:
    message = ""
    with contextlib.suppress(Exception):
        problems = json.loads(error.read(65536)).get("errors") or []
        message = "; ".join(f"{p.get('code', '')} {p.get('message', '')}".strip() for p in problems)
    hint = "try again in a minute"
    if error.code == 404:
        hint = f"check the spelling: is there a tag {reference.tag or reference.digest} of {reference.name}?"
    elif error.code in (401, 403):
        hint = "the image is private or does not exist: give credentials in motley_container_image_auth_file, and check the spelling"
    elif error.code == 429:
        hint = "the registry limits anonymous requests: wait, log in, or use a mirror (motley_registry_mirrors)"
    return RegistryError(f"{host} answers {error.code} for {reference}" + (f": {message}" if message else ""), status=error.code, hint=hint)


def _json(body: bytes, what: str) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError as error:
        hint = "something between here and the registry answers in its place (a proxy, a login page)"
        raise RegistryError(f"{what} is no JSON", hint=hint) from error
    if not isinstance(document, dict):
        raise RegistryError(f"{what} is no JSON object", hint="it is no container image")
    return document
