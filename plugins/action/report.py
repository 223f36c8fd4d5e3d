# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the report, and end a run with what a person wants to know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from ansible_collections.motley.inference.plugins.module_utils.report import page
from ansible_collections.motley.inference.plugins.module_utils.serving import statistics
from ansible_collections.motley.inference.plugins.plugin_utils.action import Context, MotleyAction

FILE = "report.html"


class ActionModule(MotleyAction):
    """Never changed: the page follows from what others have recorded."""

    ARGUMENTS: ClassVar[dict[str, Any]] = {}

    def perform(self, args: dict[str, Any], context: Context) -> dict[str, Any]:
        del args
        context.require_all_nodes()
        cluster, plan, state = context.cluster(), context.plan(), context.state
        nodes = {n["name"]: n for n in cluster["nodes"]}
        engine_node = nodes[plan["stages"][0]["workers"][0]["node"]]
        key = cluster["secrets"]["api_key_file"] or str(state.root / "api_key")
        inputs = page.Inputs(
            cluster=cluster["name"], plan=plan, proof=state.read_json("verify.json"), benchmarks=_rows(state.read_text("benchmark.jsonl")),
            lock=state.read_json("lock.yml") or {}, facts=state.read_json("nodes.json") or {}, nodes=nodes,
            url=f"http://{engine_node['address']}:{cluster['engine']['port']}", key_file=str(key))
        written = state.write_text(FILE, page.page(inputs))
        path = state.path(FILE)
        _say(context, inputs, str(path))
        return {"changed": False, "path": str(path), "written": written, "url": inputs.url}


def _rows(text: str | None) -> list[Mapping[str, Any]]:
    rows = []
    for line in (text or "").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue  # a line that a killed run left half written
    return rows


def _say(context: Context, inputs: page.Inputs, path: str) -> None:
    model = str(inputs.plan.get("model") or context.cluster()["model"]["name"])
    _style, words = page.proof_words(inputs.proof, inputs.plan)
    lines = [f"{model} at {inputs.url}/v1", *page.completion_command(inputs.url, inputs.key_file, model).splitlines(), "", f"proof      {words}"]
    done = page.current_benchmarks(inputs)
    if done:
        figures = statistics.lines(dict(done[0]))
        lines += [f"benchmark  {figures[0]}", *(f"           {line}" for line in figures[1:])]
    lines.append(f"report     {path}")
    for line in lines:
        context.display(f"  {line}".rstrip())
