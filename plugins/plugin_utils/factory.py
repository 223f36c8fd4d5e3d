# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Client of an Image Factory: which extensions a release offers, and the registration of schematics."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError

_TRIES = 4
_SECONDS = 30.0
_HINT = "check motley_factory_url and the network; a private factory may be named there"


class Factory:
    """An Image Factory by its address; plain HTTP or HTTPS."""

    def __init__(
        self,
        url: str,
        *,
        open_url: Callable[..., Any] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        tries: int = _TRIES,
    ) -> None:
        self.url = url.rstrip("/")
        self._open = open_url or urllib.request.build_opener().open
        self._sleep = sleep
        self._tries = tries

    def extensions(self, version: str) -> list[dict[str, Any]]:
        """Official extensions of a release: name, ref, digest."""
        status, body = self._request("GET", f"/version/{quote(version)}/extensions/official")
        if status != 200:
            raise MotleyError(
                f"the factory {self.url} offers no extensions for Talos {version}: {body.strip() or status}",
                hint="check motley_talos_version; the factory's list of releases is at /versions",
            )
        found = self._json(body)
        if not isinstance(found, list):
            raise MotleyError(f"{self.url} does not answer as an Image Factory does", hint=_HINT)
        return [item for item in found if isinstance(item, dict)]

    def register(self, text: str) -> str:
        """Register a schematic; the ID that the factory gives it. Registering it again gives the same."""
        status, body = self._request("POST", "/schematics", data=text.encode())
        if status not in (200, 201):
            raise MotleyError(
                f"the factory {self.url} refuses the schematic: {body.strip() or status}", hint="the schematic is shown with --diff"
            )
        answer = self._json(body)
        identifier = str(answer.get("id", "")) if isinstance(answer, dict) else ""
        if not identifier:
            raise MotleyError(f"{self.url} gave no schematic ID", hint=_HINT)
        return identifier

    def knows(self, identifier: str) -> bool:
        """Whether the factory has this schematic; a private one may have been set up anew since it was registered."""
        status, _body = self._request("GET", f"/schematics/{quote(identifier)}")
        return status != 404

    def _json(self, body: str) -> Any:
        try:
            return json.loads(body)
        except ValueError as error:
            raise MotleyError(f"{self.url} does not answer as an Image Factory does", hint=_HINT) from error

    def _request(self, method: str, path: str, *, data: bytes | None = None) -> tuple[int, str]:
        """Status and body. Both calls may be repeated without harm, so passing faults are tried again."""
        reason = ""
        for number in range(1, self._tries + 1):
            request = urllib.request.Request(self.url + path, data=data, method=method, headers={"User-Agent": "motley"})
            if data is not None:
                request.add_header("Content-Type", "application/yaml")
            try:
                with self._open(request, timeout=_SECONDS) as answer:
                    return int(answer.status), answer.read().decode(errors="replace")
            except urllib.error.HTTPError as error:
                body = error.read().decode(errors="replace")
                if error.code not in (429, 502, 503, 504):
                    return int(error.code), body
                reason = f"{error.code} {body.strip()}"
            except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
                reason = str(getattr(error, "reason", error))
                if isinstance(error, ValueError) and not isinstance(error, OSError):
                    break
            if number < self._tries:
                self._sleep(0.5 * number)
        raise MotleyError(f"the Image Factory {self.url} does not answer: {reason}", hint=_HINT)
