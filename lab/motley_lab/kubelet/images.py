# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images: what a reference resolves to for this node's architecture, and what a container of an image sees."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import typing

import aiohttp

JSON = dict[str, typing.Any]
_ACCEPT = ", ".join(
    ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json",
     "application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
)
# Repository -> what the lab puts in such a container. Anything else in the registry is the machine's own /usr.
_ENGINE = {"view": "engine", "command": ["vllm", "serve"]}
TABLE: dict[str, JSON] = {
    "lab/vllm-ray": _ENGINE,
    "lab/vllm-ray-amd64": _ENGINE,
    "vllm/vllm-openai": _ENGINE,
    "nvidia/k8s-device-plugin": {"view": "plugin", "command": ["nvidia-device-plugin"]},
}


class PullError(Exception):
    """The text that the container runtime gives."""


@dataclasses.dataclass(frozen=True)
class Image:
    reference: str
    digest: str
    view: str
    command: list[str]
    environment: dict[str, str]


def split(reference: str) -> tuple[str, str, str]:
    """Registry, repository, and tag or digest, with Docker's defaults."""
    name, _, digest = reference.partition("@")
    head, _, rest = name.partition("/")
    if rest and ("." in head or ":" in head or head == "localhost"):
        registry, name = head, rest
    else:
        registry, name = "docker.io", name if rest else f"library/{name}"
    name, _, tag = name.partition(":")
    return registry, name, digest or tag or "latest"


class Store:
    """The node's images: pulled from the lab's registry, kept over a reboot as /var is."""

    def __init__(self, file: pathlib.Path, *, architecture: str, service: str, mirrors: dict[str, str]) -> None:
        self._file, self._architecture, self._service, self._mirrors = file, architecture, service, mirrors
        self._images: dict[str, Image] = {}
        with contextlib.suppress(OSError, ValueError, TypeError):
            self._images = {key: Image(**value) for key, value in json.loads(file.read_text()).items()}

    def present(self, reference: str) -> Image | None:
        return self._images.get(reference)

    def _endpoint(self, registry: str) -> str:
        """A configured mirror, the registry itself if it is the lab's, else the lab's registry in the public one's place."""
        return (self._mirrors.get(registry) or self._mirrors.get("*") or self._service).rstrip("/")

    async def pull(self, reference: str) -> Image:
        registry, name, version = split(reference)
        full = f"{registry}/{name}" + (f"@{version}" if version.startswith("sha256:") else f":{version}")
        base = f"{self._endpoint(registry)}/v2/{name}"
        prefix = f'failed to pull and unpack image "{full}": '
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20), headers={"User-Agent": "containerd/2.1"}) as session:
                digest, manifest = await self._manifest(session, base, version, full)
                if "manifests" in manifest:
                    chosen = next((entry for entry in manifest["manifests"] if self._fits(entry.get("platform", {}))), None)
                    if chosen is None:
                        raise PullError(f"{prefix}no match for platform in manifest: not found")
                    _, manifest = await self._manifest(session, base, chosen["digest"], full)
                async with session.get(f"{base}/blobs/{manifest['config']['digest']}") as answer:
                    config = json.loads(await answer.text())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise PullError(f'{prefix}failed to resolve reference "{full}": failed to do request: Head "{base}/manifests/{version}": {error}')
        if not self._fits(config):
            raise PullError(f"{prefix}no match for platform in manifest: not found")
        row, inner = TABLE.get(name, {"view": "base", "command": []}), config.get("config", {})
        image = Image(full, digest, row["view"], inner.get("Entrypoint") or row["command"], dict(e.split("=", 1) for e in inner.get("Env") or []))
        self._images[reference] = image
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps({key: dataclasses.asdict(value) for key, value in self._images.items()}))
        return image

    def _fits(self, platform: JSON) -> bool:
        return platform.get("os", "linux") == "linux" and platform.get("architecture") == self._architecture

    @staticmethod
    async def _manifest(session: aiohttp.ClientSession, base: str, version: str, full: str) -> tuple[str, JSON]:
        async with session.get(f"{base}/manifests/{version}", headers={"Accept": _ACCEPT}) as answer:
            text = await answer.text()
            if answer.status == 404:
                raise PullError(f'failed to pull and unpack image "{full}": failed to resolve reference "{full}": {full}: not found')
            if answer.status >= 400:
                raise PullError(
                    f'failed to pull and unpack image "{full}": failed to resolve reference "{full}": unexpected status from HEAD request to '
                    f"{base}/manifests/{version}: {answer.status} {answer.reason}"
                )
            return answer.headers.get("Docker-Content-Digest", version), json.loads(text)
