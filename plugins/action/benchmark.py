# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure an OpenAI endpoint under concurrency; definitions and figures are in module_utils/serving."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.serving import metrics, requests, statistics
from ansible_collections.motley.inference.plugins.plugin_utils import openai
from ansible_collections.motley.inference.plugins.plugin_utils.action import Context, MotleyAction

FILE = "benchmark.jsonl"
SAMPLE_WORDS, SAMPLE_SEED = 32, 999_999
WARM_UP = 900_000  # prompts from this number on are for the warm-up, so that no measured one is in the prefix cache
SETTINGS = ("requests", "concurrency", "prompt_tokens", "output_tokens", "seed", "api")


@dataclass(frozen=True)
class _Target:
    """What is measured: the planned service, or any endpoint that was named."""

    endpoint: requests.Endpoint
    key: str | None
    plan: Mapping[str, Any] | None
    record: bool


class ActionModule(MotleyAction):
    """Once per plan and settings, or whenever asked with force; against the plan's endpoint, or any with url."""

    ARGUMENTS: ClassVar[dict[str, Any]] = {
        "url": {"type": "str"},
        "api_key_file": {"type": "path"},
        "model": {"type": "str"},
        "requests": {"type": "int", "default": 64},
        "concurrency": {"type": "int", "default": 8},
        "prompt_tokens": {"type": "int", "default": 64},
        "output_tokens": {"type": "int", "default": 32},
        "seed": {"type": "int", "default": 0},
        "api": {"type": "str", "choices": ["auto", "completions", "chat"], "default": "auto"},
        "timeout": {"type": "int", "default": 300},
        "force": {"type": "bool", "default": False},
    }

    def perform(self, args: dict[str, Any], context: Context) -> dict[str, Any]:
        for name in ("requests", "concurrency", "prompt_tokens", "output_tokens", "timeout"):
            if args[name] < 1:
                raise MotleyError(f"{name} is {args[name]}", hint=f"set {name} to 1 or more")
        target = _target(args, context)
        earlier = _earlier(context, target, args)
        if earlier and not args["force"]:
            context.display(f"  measured before ({earlier['time']}): " + statistics.lines(earlier)[1])
            return {"changed": False, "skipped_because": "this plan has a result with these settings", "result": earlier}
        if context.check_mode:
            context.display(f"  would send {args['requests']} requests to {target.endpoint.text}")
            return {"changed": True, "result": None}
        context.hide(target.key)
        result = _measure(args, target, context)
        for line in statistics.lines(result):
            context.display(f"  {line}")
        if target.record:
            _append(context, result)
        if not result["completed"]:
            raise MotleyError("no request was answered", evidence=[f"{n} x {text}" for text, n in result["errors"].items()],
                              hint="run --tags verify" if target.plan else "check the address, the key and the model")
        return {"changed": target.record, "result": result}


def _target(args: Mapping[str, Any], context: Context) -> _Target:
    if args["url"]:
        try:
            endpoint = requests.endpoint(str(args["url"]))
        except ValueError as error:
            raise MotleyError(f"url: {error}", hint="write it as http://HOST:PORT") from error
        recorded = bool(args["state_dir"] or context.variable("motley_state_dir"))
        return _Target(endpoint, _key(args["api_key_file"]), None, recorded)
    cluster, plan = context.cluster(), context.plan()
    node = plan["stages"][0]["workers"][0]["node"]
    where = requests.endpoint(f"http://{context.node(node)['address']}:{cluster['engine']['port']}")
    file = args["api_key_file"] or cluster["secrets"]["api_key_file"] or context.state.path("api_key")
    key = None if context.check_mode and not Path(str(file)).expanduser().exists() else _key(str(file))
    return _Target(where, key, plan, True)


def _key(file: str | None) -> str | None:
    if not file:
        return None
    try:
        return Path(file).expanduser().read_text().strip()
    except OSError as error:
        hint = "run --tags ray_cluster, or correct api_key_file"
        raise MotleyError(f"the API key file {file} cannot be read: {error.strerror}", hint=hint) from error


def _earlier(context: Context, target: _Target, args: Mapping[str, Any]) -> dict[str, Any] | None:
    """The newest good result of this plan with these settings."""
    if not target.plan:
        return None
    for line in reversed((context.state.read_text(FILE) or "").splitlines()):
        try:
            row = json.loads(line)
        except ValueError:
            continue  # a run that was killed while it wrote
        asked = row.get("settings") or {}
        if row.get("plan") == target.plan["inputs_sha256"] and row.get("completed") and all(asked.get(k) == args[k] for k in SETTINGS):
            return dict(row)
    return None


def _append(context: Context, result: Mapping[str, Any]) -> None:
    old = context.state.read_text(FILE) or ""
    context.state.write_text(FILE, old + ("" if not old or old.endswith("\n") else "\n") + json.dumps(result, sort_keys=True) + "\n")


@dataclass(frozen=True)
class _Server:
    model: str
    api: requests.Api
    is_vllm: bool
    words: int  # that make about prompt_tokens


def _server(args: Mapping[str, Any], target: _Target) -> _Server:
    """Ask the server who it is, and how it counts a prompt of known words."""
    reply = openai.fetch(target.endpoint, "/v1/models", key=target.key, timeout=30)
    served, is_vllm = requests.served_model(reply.json())
    model = args["model"] or served
    if not model:
        hint = "run --tags vllm_serve: the planned service does not answer"
        if not target.plan:
            hint = "give the key by api_key_file" if reply.status in (401, 403) else "name the model, or check the address"
        raise MotleyError(f"{target.endpoint.text} names no model: {reply.problem}", hint=hint)
    api: requests.Api = ("completions" if is_vllm else "chat") if args["api"] == "auto" else args["api"]
    sample = requests.body(api, model, requests.prompt(SAMPLE_SEED, SAMPLE_WORDS), output_tokens=1, stream=False)
    reply = openai.fetch(target.endpoint, requests.PATHS[api], method="POST", document=sample, key=target.key, timeout=float(args["timeout"]))
    if reply.status != 200:
        raise MotleyError(f"{target.endpoint.text} refuses a first request: {reply.problem}",
                          hint="run --tags verify" if target.plan else "check the key, the model and the api option")
    counted = ((reply.json() or {}).get("usage") or {}).get("prompt_tokens") or SAMPLE_WORDS
    return _Server(str(model), api, is_vllm, requests.words_for(args["prompt_tokens"], words=SAMPLE_WORDS, tokens=counted))


def _measure(args: Mapping[str, Any], target: _Target, context: Context) -> dict[str, Any]:
    server = _server(args, target)
    path, key, limit = requests.PATHS[server.api], target.key, float(args["timeout"])

    def document(number: int) -> dict[str, Any]:
        text = requests.prompt(args["seed"] * 1_000_003 + number, server.words)
        return requests.body(server.api, server.model, text, output_tokens=args["output_tokens"], ignore_eos=server.is_vllm)

    def progress(done: int, tokens: int, seconds: float) -> None:
        context.display(f"  benchmark: {done} of {args['requests']} requests, {seconds:.0f} s so far, {tokens / max(seconds, 0.001):.0f} tok/s")

    warm = [document(WARM_UP + i) for i in range(min(args["concurrency"], args["requests"]))]
    openai.load(target.endpoint, path, warm, concurrency=args["concurrency"], key=key, timeout=limit)
    before = metrics.engine(openai.fetch(target.endpoint, "/metrics").text) if server.is_vllm else {}
    documents = [document(i) for i in range(args["requests"])]
    outcomes, seconds = openai.load(target.endpoint, path, documents, concurrency=args["concurrency"], key=key, timeout=limit, progress=progress)
    after = metrics.engine(openai.fetch(target.endpoint, "/metrics").text) if server.is_vllm else {}
    plan = target.plan or {}
    return {
        "schema": 1, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "tool": "motley.inference benchmark 1", "url": target.endpoint.text,
        "model": server.model, "vllm": server.is_vllm, "plan": plan.get("inputs_sha256"), "layer_partition": plan.get("layer_partition"),
        "pipeline": plan.get("pipeline"), "tensor": plan.get("tensor"), "predicted": plan.get("predicted"),
        "nodes": sorted({w["node"] for s in plan.get("stages") or [] for w in s["workers"]}),
        "engine_version": (plan.get("engine") or {}).get("version"), "settings": {k: args[k] for k in SETTINGS}, "api_used": server.api,
        "ignore_eos": server.is_vllm, "warm_up": len(warm), "concurrency": args["concurrency"],
        **statistics.summary(outcomes, seconds), "engine_counters": metrics.grown(before, after),
    }
