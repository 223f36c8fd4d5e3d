# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An OCI registry that serves what an image says of itself: index, manifests, config. Digests are those of the bytes."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from motley_lab import faults

OCI = {
    "index": "application/vnd.oci.image.index.v1+json",
    "manifest": "application/vnd.oci.image.manifest.v1+json",
    "config": "application/vnd.oci.image.config.v1+json",
    "layer": "application/vnd.oci.image.layer.v1.tar+gzip",
}
DOCKER = {
    "index": "application/vnd.docker.distribution.manifest.list.v2+json",
    "manifest": "application/vnd.docker.distribution.manifest.v2+json",
    "config": "application/vnd.docker.container.image.v1+json",
    "layer": "application/vnd.docker.image.rootfs.diff.tar.gzip",
}
_EMPTY_TAR = bytes(10240)
CREATED = "2026-11-01T00:00:00Z"


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def as_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


@dataclass
class Image:
    """One image: its documents by digest, and what a tag names."""

    root: str = ""
    documents: dict[str, tuple[str, bytes]] = field(default_factory=dict)

    def add(self, media_type: str, data: bytes) -> dict[str, Any]:
        """Keep a document and describe it."""
        digest = digest_of(data)
        self.documents[digest] = (media_type, data)
        return {"mediaType": media_type, "digest": digest, "size": len(data)}


def build(
    platforms: Iterable[str], *, labels: Mapping[str, str], form: Mapping[str, str] = OCI,
    attestations: bool = False, environment: Iterable[str] = (),
) -> Image:  # fmt: skip
    """Documents of a multi-platform image."""
    image, entries, proofs = Image(), [], []
    for platform in platforms:
        system, _, architecture = platform.partition("/")
        entry = image.add(form["manifest"], _manifest(image, form, architecture, labels, environment))
        entries.append({**entry, "platform": {"architecture": architecture, "os": system}})
        if attestations:
            proof = image.add(form["manifest"], _manifest(image, form, "unknown", {}, ()))
            notes = {"vnd.docker.reference.digest": entry["digest"], "vnd.docker.reference.type": "attestation-manifest"}
            proofs.append({**proof, "annotations": notes, "platform": {"architecture": "unknown", "os": "unknown"}})
    index = {"schemaVersion": 2, "mediaType": form["index"], "manifests": [*entries, *proofs]}
    image.root = image.add(form["index"], as_json(index))["digest"]
    return image


def _manifest(image: Image, form: Mapping[str, str], architecture: str, labels: Mapping[str, str], environment: Iterable[str]) -> bytes:
    known = architecture != "unknown"
    config = {
        "architecture": architecture,
        "os": "linux" if known else "unknown",
        "created": CREATED,
        "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin", *environment], "Labels": dict(labels)} if known else {},
        "rootfs": {"type": "layers", "diff_ids": [digest_of(_EMPTY_TAR)]},
        "history": [{"created": CREATED, "created_by": "lab"}],
    }
    layers = [image.add(form["layer"], gzip.compress(_EMPTY_TAR, mtime=0))]
    described = image.add(form["config"], as_json(config))
    return as_json({"schemaVersion": 2, "mediaType": form["manifest"], "config": described, "layers": layers})


def refusal(status: int, code: str, message: str, detail: Any = None) -> web.Response:
    body = {"errors": [{"code": code, "message": message, "detail": detail}]}
    return web.json_response(body, status=status, headers={"Docker-Distribution-API-Version": "registry/2.0"})


class Registry:
    """The images of the table. What a fault changes is built anew at the moment of the request."""

    def __init__(self, lab_dir: Path, table: Path | None = None) -> None:
        self._lab = lab_dir
        text = (table or Path(__file__).with_name("images.yml")).read_text(encoding="utf-8")
        self._table: dict[str, dict[str, Any]] = {entry["repository"]: entry for entry in yaml.safe_load(text)}

    def image(self, repository: str, tag: str | None = None) -> Image | None:
        entry = self._table.get(repository)
        if entry is None or (tag is not None and tag not in entry["tags"]):
            return None
        platforms, labels = list(entry["platforms"]), dict(entry["labels"])
        attestations = bool(entry.get("attestations"))
        if entry.get("engine"):
            if self._fault("image-amd64-only", repository):
                platforms = ["linux/amd64"]
            if self._fault("image-attestation-only", repository):
                platforms, attestations = platforms[:1], True
            if self._fault("image-without-ray", repository):
                labels.pop("io.ray.version", None)
        environment = [*entry.get("environment", []), f"LAB_IMAGE_TAG={tag or entry['tags'][-1]}"]
        form = DOCKER if entry.get("form") == "docker" else OCI
        return build(platforms, labels=labels, form=form, attestations=attestations, environment=environment)

    def _fault(self, name: str, repository: str) -> bool:
        found = faults.active(self._lab, name)
        return found is not None and found.get("image", repository) == repository

    def documents(self, repository: str) -> dict[str, tuple[str, bytes]] | None:
        """Every document of a repository, by digest."""
        if repository not in self._table:
            return None
        found: dict[str, tuple[str, bytes]] = {}
        for tag in self._table[repository]["tags"]:
            image = self.image(repository, tag)
            found.update(image.documents if image else {})
        return found

    async def base(self, request: web.Request) -> web.Response:
        return web.json_response({}, headers={"Docker-Distribution-API-Version": "registry/2.0"})

    async def tags(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self._table:
            return refusal(404, "NAME_UNKNOWN", "repository name not known to registry", {"name": name})
        return web.json_response({"name": name, "tags": self._table[name]["tags"]})

    async def manifest(self, request: web.Request) -> web.Response:
        name, reference = request.match_info["name"], request.match_info["reference"]
        if reference.startswith("sha256:"):
            return serve_manifest(request, self.documents(name) or {}, reference)
        image = self.image(name, reference)
        return serve_manifest(request, image.documents if image else {}, image.root if image else reference)

    async def blob(self, request: web.Request) -> web.Response:
        return serve_blob(request, self.documents(request.match_info["name"]) or {})


def serve_manifest(request: web.Request, documents: Mapping[str, tuple[str, bytes]], reference: str) -> web.Response:
    """A manifest, if the client accepts its form.

    A client that does not know lists gets the amd64 manifest out of a Docker list, and a refusal for an OCI index,
    as Docker's registry does.
    """
    media_type, data = documents.get(reference, ("", b""))
    if media_type not in {form[kind] for form in (OCI, DOCKER) for kind in ("index", "manifest")}:
        return refusal(404, "MANIFEST_UNKNOWN", "manifest unknown", {"name": request.match_info["name"]})
    accepted = {part.split(";")[0].strip() for header in request.headers.getall("Accept", []) for part in header.split(",")}
    if media_type not in accepted:
        if media_type in (OCI["index"], OCI["manifest"]):
            what = "index" if media_type == OCI["index"] else "manifest"
            text = f"OCI {what} found, but accept header does not support OCI {'indexes' if what == 'index' else 'manifests'}"
            return refusal(404, "MANIFEST_UNKNOWN", text)
        if media_type == DOCKER["index"]:
            entries = json.loads(data)["manifests"]
            amd64 = next((entry["digest"] for entry in entries if entry["platform"]["architecture"] == "amd64"), "")
            if not amd64:
                return refusal(404, "MANIFEST_UNKNOWN", "manifest unknown")
            reference, (media_type, data) = amd64, documents[amd64]
    headers = {"Docker-Content-Digest": reference, "Docker-Distribution-API-Version": "registry/2.0", "ETag": f'"{reference}"'}
    return web.Response(body=data, content_type=media_type, headers=headers)


def serve_blob(request: web.Request, documents: Mapping[str, tuple[str, bytes]]) -> web.Response:
    digest = request.match_info["digest"]
    media_type, data = documents.get(digest, ("", b""))
    if not data:
        return refusal(404, "BLOB_UNKNOWN", "blob unknown to registry", {"digest": digest})
    return web.Response(body=data, content_type="application/octet-stream", headers={"Docker-Content-Digest": digest})
