# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Work out which node holds which layers; the work is in module_utils/planner, this reads and writes."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ansible.module_utils.urls import open_url
from ansible_collections.motley.inference.plugins.module_utils import inventory
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.planner import digest, plan
from ansible_collections.motley.inference.plugins.module_utils.planner.catalog import MODELS
from ansible_collections.motley.inference.plugins.plugin_utils.action import Context, MotleyAction

HUB = "https://huggingface.co"
HUB_SECONDS = 20
MOST_BYTES = 4 << 20


class ActionModule(MotleyAction):
    """Without a request: plan the inventory and record plan.json. With one: answer it, write nothing."""

    ARGUMENTS: ClassVar[dict[str, Any]] = {
        "request": {"type": "dict"},
        "hub_url": {"type": "str"},
    }

    def perform(self, args: dict[str, Any], context: Context) -> dict[str, Any]:
        if args["request"] is not None:
            return {"changed": False, "plan": _answer(args["request"], args["hub_url"] or os.environ.get("HF_ENDPOINT") or HUB, None)}
        context.require_all_nodes()
        cluster = context.cluster()
        old = context.state.read_json("plan.json") or {}
        request = inventory.plan_request(cluster)
        hub = args["hub_url"] or cluster["engine"]["env"].get("HF_ENDPOINT") or os.environ.get("HF_ENDPOINT") or HUB
        known = (old.get("request") or {}) if _same_model(old.get("request") or {}, request) else {}
        request, config = with_config(request, hub, _token(cluster, context), known.get("config"))
        response = plan(request)
        context.display(response["explanation"])
        if not response["feasible"]:
            raise MotleyError(
                f"no split of {response['model']} over these devices starts",
                evidence=response["reasons"],
                hint="; or ".join(f"{c['name']} ({c['cost']})" for c in response["changes"]) or "use a smaller model or more devices",
            )
        document = {**response, "request": request, "inputs": inventory.inputs(cluster)}
        changed = context.state.write_json("plan.json", document)
        return {"changed": changed, "plan": response, **({"diff": _diff(old, response)} if context.diff_mode and changed else {})}


def _answer(request: Mapping[str, Any], hub: str, token: str | None) -> dict[str, Any]:
    return {**plan(with_config(request, hub, token, None)[0]), "inputs_sha256": digest(request)}


def _same_model(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return all(old.get(key) == new.get(key) for key in ("model", "revision"))


def _token(cluster: Mapping[str, Any], context: Context) -> str | None:
    name = cluster["secrets"]["hf_token_file"]
    token = Path(name).expanduser().read_text().strip() if name and Path(name).expanduser().is_file() else os.environ.get("HF_TOKEN")
    context.hide(token)
    return token


def with_config(request: Mapping[str, Any], hub: str, token: str | None, known: Mapping[str, Any] | None) -> tuple[dict[str, Any], Any]:
    """The request with the model's config.json in it, if the model is a folder or is not in the table."""
    out, model = dict(request), request.get("model")
    if out.get("config") is not None:
        return out, out["config"]
    folder = model.get("path") if isinstance(model, Mapping) else model if isinstance(model, str) and model.startswith(("/", "./", "~")) else None
    if isinstance(folder, str):
        out["config"] = read_config(folder)
        if isinstance(model, Mapping):
            out["model"] = model.get("name") or folder
    elif isinstance(model, str) and model not in MODELS and "/" in model:
        out["config"] = known or fetch_config(model, request.get("revision"), hub, token)
    return out, out.get("config")


def read_config(folder: str) -> Any:
    """config.json of a model's folder (or the file itself)."""
    path = Path(folder).expanduser()
    path = path / "config.json" if path.is_dir() else path
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise MotleyError(f"{path} cannot be read as a config.json: {error}", hint="name the folder that holds the model's config.json") from error


def fetch_config(model: str, revision: Any, hub: str, token: str | None) -> Any:
    """config.json of a model from the hub; no weights are fetched."""
    url = f"{hub.rstrip('/')}/{urllib.parse.quote(model)}/resolve/{urllib.parse.quote(str(revision or 'main'), safe='')}/config.json"
    if not url.startswith(("http://", "https://")):
        raise MotleyError(f"{hub!r} is no address of a model hub", hint="set hub_url or HF_ENDPOINT to http(s)://HOST")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        answer = open_url(url, headers=headers, timeout=HUB_SECONDS, http_agent="motley", unredirected_headers=["Authorization"])
        return json.loads(answer.read(MOST_BYTES))
    except urllib.error.HTTPError as error:
        hint = "the model asks for a licence: accept it on the hub and set motley_hf_token_file" if error.code in (401, 403) else "check motley_model"
        raise MotleyError(f"{model} is not in the planner's table, and {url} answered {error.code}", hint=hint) from error
    except (OSError, ValueError) as error:
        raise MotleyError(
            f"{model} is not in the planner's table, and {url} cannot be read: {error}",
            hint="name a folder that holds its config.json, or set HF_ENDPOINT in motley_engine_env to a hub that answers",
        ) from error


def _diff(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, str]:
    return {"before": str(old.get("explanation", "")) + "\n", "after": str(new["explanation"]) + "\n"}
