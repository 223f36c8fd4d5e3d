# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Image Factory: schematics, versions, extensions, boot media and installer images.

As in the real one, POST takes any extension name and any argument; a name that the release does not have is refused
only when an image or an installer is asked for.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from motley_lab import faults
from motley_lab.services import registry, schematic

ARCHITECTURES = ("amd64", "arm64")
CMDLINE = "talos.platform=metal console=tty0 init_on_alloc=1 slab_nomerge pti=on consoleblank=0 printk.devkmsg=on"
_VERSION = re.compile(r"v?(\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?)")
_MEDIA = re.compile(
    r"(cmdline-metal|kernel|initramfs|metal|installer)-([a-z0-9]+?)(-secureboot)?(\.iso|\.raw\.xz|\.raw\.zst|\.xz|\.tar|\.efi|)"
)


class FactoryError(web.HTTPException):
    """An answer in plain text, as Go's `http.Error` writes it."""

    def __init__(self, status: int, text: str) -> None:
        self.status_code = status
        super().__init__(text=f"{text}\n", content_type="text/plain", headers={"X-Content-Type-Options": "nosniff"})


class Factory:
    def __init__(self, lab_dir: Path) -> None:
        self._lab = lab_dir
        self._store = lab_dir / "services"
        tables = yaml.safe_load(Path(__file__).with_name("releases.yml").read_text(encoding="utf-8"))
        self._releases: dict[str, dict[str, str]] = tables["releases"]
        self._extensions: dict[str, tuple[str, str]] = tables["extensions"]
        self._aliases: dict[str, str] = tables["aliases"]

    async def create(self, request: web.Request) -> web.Response:
        try:
            text = schematic.canonical((await request.read()).decode("utf-8", "replace"))
        except schematic.SchematicError as error:
            raise FactoryError(400, str(error)) from None
        if schematic.owner(text):
            raise FactoryError(400, "owner field is only supported in Enterprise edition")
        identifier = schematic.identifier(text)
        folder = self._store / "schematics"
        folder.mkdir(parents=True, exist_ok=True)
        fresh = folder / f"{identifier}.new"
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(folder / f"{identifier}.yaml")
        return web.json_response({"id": identifier, "schematic": text}, status=201)

    def _schematic(self, identifier: str) -> str:
        empty = schematic.canonical("{}")
        if identifier == schematic.identifier(empty):
            return empty
        file = self._store / "schematics" / f"{identifier}.yaml"
        if not re.fullmatch("[0-9a-f]{64}", identifier) or not file.exists():
            raise FactoryError(404, "schematic not found")
        return file.read_text(encoding="utf-8")

    async def show(self, request: web.Request) -> web.Response:
        return web.Response(text=self._schematic(request.match_info["id"]), content_type="application/yaml")

    def _release(self, version: str) -> str:
        matched = _VERSION.fullmatch(version)
        if matched is None:
            raise FactoryError(500, "internal server error")
        if f"v{matched[1]}" not in self._releases:
            raise FactoryError(404, f"version {matched[1]} is not available")
        return f"v{matched[1]}"

    def extensions(self, version: str) -> list[dict[str, Any]]:
        """The official extensions of a release, as the API lists them."""
        row = self._releases[version]
        missing = (faults.active(self._lab, "extension-missing") or {}).get("extension")
        found = []
        for name, (tag, text) in self._extensions.items():
            for branch in ("lts", "production") if "{branch}" in name else ("lts",):
                words = {"branch": branch, "talos": version, "driver": row[branch], "toolkit": row["toolkit"]}
                full = f"siderolabs/{name.format(**words)}"
                ref = f"ghcr.io/{full}:{tag.format(**words)}"
                if full != missing:
                    known = {"digest": registry.digest_of(ref.encode()), "author": "Sidero Labs", "description": f"{text}\n"}
                    found.append({"name": full, "ref": ref, **known})
        return sorted(found, key=lambda entry: entry["name"])

    async def versions(self, request: web.Request) -> web.Response:
        return web.json_response(list(self._releases))

    async def official(self, request: web.Request) -> web.Response:
        return web.json_response(self.extensions(self._release(request.match_info["version"])))

    async def _build(self, identifier: str, version: str) -> tuple[str, str]:
        """Schematic and release of an image; refuses what cannot be built, and takes its time at the first call."""
        text, release = self._schematic(identifier), self._release(version)
        offered = {entry["name"] for entry in self.extensions(release)}
        for name in schematic.extensions(text):
            if self._aliases.get(name, name) not in offered:
                raise FactoryError(400, f'official extension "{name}" is not available for Talos version {release}')
        built = self._store / "built" / f"{identifier}-{release}"
        if not built.exists():
            if slow := faults.active(self._lab, "factory-slow"):
                await asyncio.sleep(float(slow.get("seconds", 5)))
            built.parent.mkdir(parents=True, exist_ok=True)
            built.touch()
        return text, release

    async def media(self, request: web.Request) -> web.Response:
        identifier, version, file = (request.match_info[part] for part in ("id", "version", "file"))
        matched = _MEDIA.fullmatch(file)
        if matched is None:
            raise FactoryError(501, f"the lab's factory does not make {file}")
        if matched[2] not in ARCHITECTURES:
            raise FactoryError(400, "invalid architecture")
        text, release = await self._build(identifier, version)
        if matched[1] == "cmdline-metal":
            extra = ((yaml.safe_load(text) or {}).get("customization") or {}).get("extraKernelArgs") or []
            return web.Response(text=" ".join([CMDLINE, *extra]))
        body = f"lab medium {file} of {identifier} for Talos {release}\n".encode()
        headers = {"Content-Disposition": f'attachment; filename="{file}"'}
        return web.Response(body=body, content_type="application/octet-stream", headers=headers)

    async def _installer(self, request: web.Request, version: str) -> registry.Image:
        identifier = request.match_info["id"]
        text, release = await self._build(identifier, version)
        labels = {"org.opencontainers.image.source": "https://github.com/siderolabs/talos", "version": release}
        installer = request.match_info["installer"]
        note = [f"LAB_INSTALLER={installer}", f"LAB_SCHEMATIC={identifier}", f"LAB_TEXT={registry.digest_of(text.encode())}"]
        platforms = [f"linux/{architecture}" for architecture in ARCHITECTURES]
        return registry.build(platforms, labels=labels, environment=note)

    async def installer_manifest(self, request: web.Request) -> web.Response:
        reference = request.match_info["reference"]
        if reference.startswith("sha256:"):
            return registry.serve_manifest(request, await self._documents(request), reference)
        version = [name for name in self._releases if "-" not in name][-1] if reference == "latest" else reference
        image = await self._installer(request, version)
        return registry.serve_manifest(request, image.documents, image.root)

    async def installer_blob(self, request: web.Request) -> web.Response:
        return registry.serve_blob(request, await self._documents(request))

    async def _documents(self, request: web.Request) -> dict[str, tuple[str, bytes]]:
        """What was built of this schematic so far, by digest."""
        found: dict[str, tuple[str, bytes]] = {}
        for built in (self._store / "built").glob(f"{request.match_info['id']}-*"):
            found.update((await self._installer(request, built.name[65:])).documents)
        return found
