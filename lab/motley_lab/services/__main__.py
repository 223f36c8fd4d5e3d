# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`python -m motley_lab.services --lab LAB`: factory, registry and hub on one port, in one process."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler

from motley_lab import faults
from motley_lab.record import record
from motley_lab.services.factory import Factory
from motley_lab.services.hub import Hub
from motley_lab.services.registry import Registry

INSTALLER = "/v2/{installer:(?:metal-)?installer(?:-secureboot)?}/{id}"
_INSTALLER_PATH = re.compile(r"(metal-)?installer(-secureboot)?/")


def server_of(path: str) -> str:
    """Which stand-in a path belongs to."""
    first, _, rest = path.lstrip("/").partition("/")
    if first == "v2":
        return "factory" if _INSTALLER_PATH.match(rest) else "registry"
    return "factory" if first in ("schematics", "versions", "version", "image") else "hub"


async def _unknown(request: web.Request) -> web.Response:
    return web.Response(status=501, text=f"the lab has no stand-in for {request.method} {request.path}\n")


def application(lab_dir: Path, model_dir: Path, nodes: dict[str, str]) -> web.Application:
    """The three services; `nodes` gives the name of a node by its address, for the record."""

    @web.middleware
    async def recorded(request: web.Request, handler: Handler) -> web.StreamResponse:
        server = server_of(request.path)
        status = 500
        try:
            if faults.active(lab_dir, f"{server}-down"):
                raise web.HTTPServiceUnavailable(text="service unavailable\n")
            response = await handler(request)
            status = response.status
            return response
        except web.HTTPException as error:
            status = error.status
            raise
        finally:
            agent = request.headers.get("User-Agent", "")
            node = nodes.get(request.remote or "")
            record(lab_dir, server=server, node=node, method=request.method, path=request.path_qs, agent=agent, status=status)

    factory, images, hub = Factory(lab_dir), Registry(lab_dir), Hub(lab_dir, model_dir)
    app = web.Application(middlewares=[recorded], client_max_size=1 << 20)
    app.add_routes(
        [
            web.post("/schematics", factory.create),
            web.get("/schematics/{id}", factory.show),
            web.get("/versions", factory.versions),
            web.get("/version/{version}/extensions/official", factory.official),
            web.get("/image/{id}/{version}/{file}", factory.media),
            web.get(INSTALLER + "/manifests/{reference}", factory.installer_manifest),
            web.get(INSTALLER + "/blobs/{digest}", factory.installer_blob),
            web.get("/v2/", images.base),
            web.get("/v2/{name:.+}/tags/list", images.tags),
            web.get("/v2/{name:.+}/manifests/{reference}", images.manifest),
            web.get("/v2/{name:.+}/blobs/{digest}", images.blob),
            web.get("/api/models/{organisation}/{name}", hub.info),
            web.get("/api/models/{organisation}/{name}/revision/{revision}", hub.info),
            web.get("/api/models/{organisation}/{name}/tree/{revision}", hub.tree),
            web.get("/{organisation}/{name}/resolve/{revision}/{path:.+}", hub.resolve),
            web.route("*", "/{rest:.*}", _unknown),
        ]
    )
    return app


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m motley_lab.services")
    parser.add_argument("--lab", required=True, type=Path, help="the lab's directory")
    lab_dir: Path = parser.parse_args().lab
    facts = json.loads((lab_dir / "lab.json").read_text(encoding="utf-8"))
    nodes = {node["address"]: name for name, node in facts["nodes"].items()}
    app = application(lab_dir, Path(facts["model_dir"]), nodes)
    web.run_app(app, host=facts["services"]["address"], port=facts["services"]["port"], print=None, access_log=None)


if __name__ == "__main__":
    main()
