# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From plain data to the page. The same data give the same bytes: there is no clock in here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from json import dumps
from shlex import quote
from typing import Any

from ansible_collections.motley.inference.plugins.module_utils.diagnosis import verify
from ansible_collections.motley.inference.plugins.module_utils.report.style import CSS

COLOURS = 8
LATENCIES = (("ttft_ms", "first token (TTFT)"), ("tpot_ms", "each further token (TPOT)"), ("itl_ms", "between chunks (ITL)"),
             ("e2el_ms", "whole request (E2EL)"))


@dataclass(frozen=True)
class Inputs:
    """What the page is made of; only the plan must be there."""

    cluster: str
    plan: Mapping[str, Any]
    proof: Mapping[str, Any] | None = None
    benchmarks: Sequence[Mapping[str, Any]] = ()
    lock: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # node -> fact -> {"value", "source", "time"}
    nodes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # node -> address, arch, role
    url: str = ""
    key_file: str = ""


def page(inputs: Inputs) -> str:
    """The whole document."""
    parts = [piece(inputs) for piece in (_head, _tiles, _use, _split, _proof, _benchmark, _alternatives, _versions)]
    title = escape(f"{inputs.cluster}: {_model(inputs)}")
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f'<meta name="referrer" content="no-referrer">\n<link rel="icon" href="data:,">\n<title>{title}</title>\n<style>\n{CSS}\n</style>\n</head>\n'
        f"<body>\n<main>\n{''.join(p for p in parts if p)}</main>\n</body>\n</html>\n"
    )


def proof_words(proof: Mapping[str, Any] | None, plan: Mapping[str, Any]) -> tuple[str, str]:
    """(style, words) of the verdict; a proof of another plan proves nothing of this one."""
    if not proof:
        return "unseen", "not verified yet"
    if proof.get("plan") not in (None, plan.get("inputs_sha256")):
        return "unseen", "verified for an older plan"
    checks = proof.get("checks") or []
    good = sum(1 for c in checks if c["passed"])
    if proof.get("passed"):
        return "ok", f"verified: {good} of {len(checks)} checks"
    bad = sum(1 for c in checks if c["passed"] is False)
    return "fail", f"not as planned: {bad} of {len(checks)} checks failed" if bad else "not proven"


def current_benchmarks(inputs: Inputs) -> list[Mapping[str, Any]]:
    """Results of this plan, newest first."""
    return [b for b in reversed(inputs.benchmarks) if b.get("plan") == inputs.plan.get("inputs_sha256")]


def completion_command(url: str, key_file: str, model: str) -> str:
    """A line for a shell that asks for a completion; the key is read from its file."""
    body = dumps({"model": model, "prompt": "The capital of France is", "max_tokens": 32})
    key = f'-H "Authorization: Bearer $(cat {quote(key_file)})"'
    return f"curl {url}/v1/completions {key} \\\n  -H 'Content-Type: application/json' -d {quote(body)}"


# -- pieces ---------------------------------------------------------------------------------------------------------
def _model(inputs: Inputs) -> str:
    model = inputs.plan.get("model") or (inputs.plan.get("request") or {}).get("model")
    return str(model if isinstance(model, str) else "model")


def _workers(plan: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    return [(stage, worker) for stage in plan["stages"] for worker in stage["workers"]]


def _colour(stage: Mapping[str, Any]) -> str:
    return f"--c:var(--s{int(stage['rank']) % COLOURS})"


def _span(stage: Mapping[str, Any], plan: Mapping[str, Any]) -> tuple[int, int]:
    first = sum(s["layers"] for s in plan["stages"] if s["rank"] < stage["rank"])
    return first, first + stage["layers"] - 1


def _number(value: Any, digits: int = 1) -> str:
    return f"{value:,.{digits}f}" if isinstance(value, (int, float)) else "–"


def _sizes(*gib: float) -> list[str]:
    """Sizes in the unit of the last, largest one."""
    return [f"{value:.2f} GiB" if gib[-1] >= 1 else f"{value * 1024:.1f} MiB" for value in gib]


def _table(heads: Sequence[tuple[str, bool]], rows: Iterable[tuple[str, Sequence[str]]], css: str = "") -> str:
    """heads: (text, whether numbers); rows: (class of the row, cells of ready HTML); css: class of the table."""
    numbers = [n for _text, n in heads]
    kind = f" class={css}" if css else ""
    head = "".join(f"<th{' class=n' if n else ''} scope=col>{escape(text)}</th>" for text, n in heads)

    def row(kind: str, cells: Sequence[str]) -> str:
        inner = (c if c.startswith("<td") else f"<td{' class=n' if n else ''}>{c}</td>" for c, n in zip(cells, numbers, strict=True))
        return f"<tr{f' class={kind}' if kind else ''}>{''.join(inner)}</tr>\n"

    body = "".join(row(kind, cells) for kind, cells in rows)
    return f'<div class=scroll><table{kind}><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>\n'


def _head(inputs: Inputs) -> str:
    style, words = proof_words(inputs.proof, inputs.plan)
    nodes = list(dict.fromkeys(w["node"] for _stage, w in _workers(inputs.plan)))
    count = len(_workers(inputs.plan))
    over = f"{count} device{'s' * (count != 1)} on {' and '.join(nodes) if len(nodes) < 3 else f'{len(nodes)} nodes'}"
    when = f" · {escape(str(inputs.proof['time']))}" if inputs.proof and inputs.proof.get("time") else ""
    sub = f"cluster {escape(inputs.cluster)} · one endpoint over {escape(over)}{when}"
    return (f"<header><div><h1>{escape(_model(inputs))}</h1><p class=sub>{sub}</p></div><span class='pill {style}'>{escape(words)}</span></header>\n")


def _section(title: str, *body: str) -> str:
    return f"<section><h2>{title}</h2>{''.join(body)}</section>\n"


def _tiles(inputs: Inputs) -> str:
    plan, done = inputs.plan, current_benchmarks(inputs)
    predicted = plan.get("predicted") or {}
    tiles = []
    if done:
        latest = done[0]
        tiles.append((_number(latest["output_throughput"]), "tok/s", f"measured, {latest['concurrency']} at a time"))
        if latest.get("ttft_ms"):
            tiles.append((_number(latest["ttft_ms"]["p50"], 0), "ms", "first token, median, measured"))
    tiles += [(_number(predicted.get("single_stream_tok_s")), "tok/s", "one stream, predicted"),
              (_number(predicted.get("throughput_tok_s")), "tok/s", "whole workload, predicted"),
              (_number(plan.get("kv_tokens"), 0), "tokens", "KV cache, planned"),
              (f"{plan.get('pipeline')} × {plan.get('tensor')}", "", "stages × tensor ranks")]
    cells = (f"<div class=tile><b>{escape(v)} <small>{escape(unit)}</small></b><span>{escape(text)}</span></div>" for v, unit, text in tiles)
    return f"<div class=tiles>{''.join(cells)}</div>\n"


def _use(inputs: Inputs) -> str:
    if not inputs.url:
        return ""
    command = completion_command(inputs.url, inputs.key_file, _model(inputs))
    return _section("Use it", f"<p>OpenAI API at <code>{escape(inputs.url)}/v1</code>. The API key is in the file "
                    f"<code>{escape(inputs.key_file)}</code>.</p><pre>{escape(command)}</pre>")


def _split(inputs: Inputs) -> str:
    """Layers as a ribbon in rank order, then each machine with a memory bar per device."""
    plan = inputs.plan
    total = sum(s["layers"] for s in plan["stages"])
    ribbon, names = [], []
    for stage in plan["stages"]:
        first, last = _span(stage, plan)
        where = ", ".join(f"{w['node']} {w['accelerator']}:{w['device']}" for w in stage["workers"])
        ribbon.append(f"<div style='flex:{stage['layers']};{_colour(stage)}'>" + "<i></i>" * stage["layers"] + "</div>")
        names.append(f"<div style='flex:{stage['layers']};{_colour(stage)}'><i class=dot></i><b>stage {stage['rank']}</b> · layers {first}–{last}"
                     f" · {escape(where)}</div>")
    machines = "".join(_machine(name, inputs) for name in dict.fromkeys(w["node"] for _stage, w in _workers(plan)))
    legend = "".join(f"<span><i class={css}></i>{text}</span>" for css, text in (
        ("w", "weights"), ("k", "KV cache in the pool"), ("u", "KV room that another stage's limit leaves unused"), ("r", "reserve"),
        ("f", "left to the system")))
    text = f"{total} layers in {len(plan['stages'])} stages: {', '.join(str(s['layers']) for s in plan['stages'])} in rank order"
    return _section("The split", f"<div class=ribbon role=img aria-label='{escape(text)}'>{''.join(ribbon)}</div>",
                    f"<div class=names>{''.join(names)}</div><div class=machines>{machines}</div><div class=legend>{legend}</div>")


def _machine(name: str, inputs: Inputs) -> str:
    own = [(s, w) for s, w in _workers(inputs.plan) if w["node"] == name]
    node = inputs.nodes.get(name) or {}
    engine = _workers(inputs.plan)[0][1]["node"] == name
    about = " · ".join(t for t in (str(node.get("address") or ""), str(node.get("arch") or ""), "engine and API" if engine else "") if t)
    return (f"<div class=machine><h3>{escape(name)} <small>{escape(about)}</small></h3>"
            + "".join(_device(stage, worker, inputs) for stage, worker in own) + "</div>")


def _device(stage: Mapping[str, Any], worker: Mapping[str, Any], inputs: Inputs) -> str:
    weights, reserve, room = float(worker["weights_gib"]), float(worker["reserve_gib"]), float(worker["kv_gib"])
    budget = float(worker["budget_gib"])
    memory = float(worker.get("memory_gib") or budget) or 1.0
    share = min(1.0, inputs.plan["kv_tokens"] / worker["kv_tokens"]) if worker.get("kv_tokens") else 0.0
    parts = (("w", weights, "weights"), ("k", room * share, "KV cache"), ("u", room * (1 - share), "unused"), ("r", reserve, "reserve"))
    bars = "".join(f"<i class={css} style='width:{max(0.0, size) / memory * 100:.2f}%'></i>" for css, size, _name in parts)
    held, cache, kept, whole = _sizes(weights, room * share, reserve, memory)
    text = f"{held} weights, {cache} KV cache, {kept} reserve of {whole}"
    step = float(worker.get("step_ms") or 0.0)
    first, last = _span(stage, inputs.plan)
    return (f"<div class=device style='{_colour(stage)}'><div class=head><span><i class=dot></i><b>rank {worker['rank']}</b> · "
            f"{escape(str(worker['accelerator']))}:{worker['device']}</span><span>layers {first}–{last} ({stage['layers']})</span></div>"
            f"<div class=bar role=img aria-label='{escape(text)}'>{bars}</div>"
            f"<div class=foot>{escape(text)} · {_number(step, 1 if step >= 1 else 3)} ms a token</div></div>")


def _proof(inputs: Inputs) -> str:
    proof = inputs.proof
    style, words = proof_words(proof, inputs.plan)
    if not proof:
        return _section("Proof", f"<p>{escape(words)}: run the playbook <code>verify</code>.</p>")
    rows = []
    for check in proof.get("checks") or []:
        css = {True: "ok", False: "fail", None: "unseen"}[check["passed"]]
        why = f"<span class=why>{escape(check['evidence'])}</span>" if check.get("evidence") else ""
        remedy = f"<span class='why fail'>{escape(check['remedy'])}</span>" if check["passed"] is False and check.get("remedy") else ""
        rows.append(("", (f"<span class='badge {css}'>{escape(verify.WORDS[check['passed']])}</span>",
                          f"<td class=one>{escape(verify.title(check['id']))}",
                          f"<td class=one>{escape(check['node'] or '')}", escape(check["expected"]), escape(check["seen"]) + why + remedy)))
    heads = (("", False), ("check", False), ("node", False), ("expected", False), ("seen, and by what", False))
    sample = (proof.get("completion") or {}).get("text")
    said = f"<p class=sub>The completion that was asked for: <q>{escape(str(sample).strip())}</q></p>" if sample else ""
    return _section(f"Proof <span class='badge {style}'>{escape(words)}</span>", _table(heads, rows, "stack"), said)


def _benchmark(inputs: Inputs) -> str:
    done = current_benchmarks(inputs)
    if not done:
        return ""
    latest = done[0]
    names = ("mean", "p50", "p95", "p99", "max")
    rows = [("", (escape(text), *(_number(latest[key][n]) for n in names))) for key, text in LATENCIES if latest.get(key)]
    settings = latest.get("settings") or {}
    about = (f"{latest['completed']} requests in {_number(latest['duration_s'])} s, {latest['concurrency']} at a time, "
             f"about {settings.get('prompt_tokens')} prompt and {settings.get('output_tokens')} output tokens each: "
             f"{_number(latest['request_throughput'], 2)} requests/s, {_number(latest['output_throughput'])} output tokens/s, "
             f"{_number(latest['total_token_throughput'])} tokens/s with prompts"
             + (f"; {latest['failed']} failed" if latest["failed"] else "; none failed"))
    earlier = ""
    if len(done) > 1:
        columns = ("requests", "at a time", "req/s", "output tok/s", "TTFT p50 ms", "TPOT p50 ms")
        runs = _table((("when", False), *((c, True) for c in columns)), [("", _run(b)) for b in done[:10]])
        earlier = f"<details><summary>all runs of this plan</summary>{runs}</details>"
    head = (("milliseconds", False), *((n, True) for n in names))
    when = escape(str(latest.get("time") or ""))
    return _section("Benchmark", f"<p>{escape(about)}.</p>", _table(head, rows), f"<p class=sub>{when}, definitions of vllm bench serve</p>", earlier)


def _run(result: Mapping[str, Any]) -> list[str]:
    medians = [_number((result.get(key) or {}).get("p50")) for key in ("ttft_ms", "tpot_ms")]
    return [escape(str(result["time"])), str(result["completed"]), str(result["concurrency"]), _number(result["request_throughput"], 2),
            _number(result["output_throughput"]), *medians]


def _alternatives(inputs: Inputs) -> str:
    plan = inputs.plan
    heads = (("", False), ("layers", False), ("one stream tok/s", True), ("workload tok/s", True), ("KV tokens", True), ("why not", False))
    predicted = plan.get("predicted") or {}
    rows: list[tuple[str, Sequence[str]]] = [
        ("chosen", ("chosen", escape(str(plan.get("layer_partition") or "")), _number(predicted.get("single_stream_tok_s")),
                    _number(predicted.get("throughput_tok_s")), _number(plan.get("kv_tokens"), 0), ""))]
    for row in plan.get("alternatives") or []:
        keys = (("single_stream_tok_s", 1), ("throughput_tok_s", 1), ("kv_tokens", 0))
        figures = [_number(row.get(k), d) if row.get("feasible") else "–" for k, d in keys]
        rows.append(("", (escape(str(row["name"])), escape(str(row.get("layer_partition") or "")), *figures,
                          f"<td class=note>{escape(str(row.get('reason') or 'slower or smaller'))}</td>")))
    notes = [*(plan.get("warnings") or []), *(f"assumed: {t}" for t in plan.get("assumed") or [])]
    extra = f"<ul>{''.join(f'<li>{escape(str(n))}</li>' for n in notes)}</ul>" if notes else ""
    objective = f" <span class=sub>objective: {escape(str(plan['objective']))}</span>" if plan.get("objective") else ""
    return _section(f"Why this split{objective}", _table(heads, rows), extra)


def _versions(inputs: Inputs) -> str:
    engine = inputs.plan.get("engine") or {}
    rows: list[tuple[str, Sequence[str]]] = [("", ("engine", escape(f"vLLM {engine.get('version')}, launcher {engine.get('launcher')}"), ""))] \
        if engine.get("version") else []
    for image, entry in sorted((inputs.lock.get("images") or {}).items()):
        about = ", ".join([*(entry.get("architectures") or []), *([f"Ray {entry['ray_version']}"] if entry.get("ray_version") else [])])
        rows.append(("", ("image", f"<code>{escape(image)}</code>", f"<code>{escape(str(entry.get('digest') or ''))}</code> {escape(about)}")))
    for node, entry in sorted((inputs.lock.get("talos") or {}).items()):
        schematic = escape(str(entry.get("schematic") or "")[:16])
        rows.append(("", (escape(node), escape(f"Talos {entry.get('version')}"), f"schematic <code>{schematic}</code>")))
    wanted = ("architecture", "interface", "driver", "kernel")
    for node, facts in sorted(inputs.facts.items()):
        known = [(f"{name} {_fact(facts[name]['value'])}", str(facts[name].get("source") or "")) for name in wanted if facts.get(name)]
        if known:
            sources = ", ".join(dict.fromkeys(source for _text, source in known if source))
            rows.append(("", (escape(node), escape(", ".join(text for text, _source in known)), escape(sources))))
    digest = str(inputs.plan.get("inputs_sha256") or "")
    args = " ".join(engine.get("args") or [])
    launch = f"<details><summary>launch line</summary><pre>vllm serve {escape(_model(inputs))} {escape(args)}</pre></details>" if args else ""
    heads = (("", False), ("what", False), ("from", False))
    return _section("Versions", _table(heads, rows) if rows else "", launch, f"<p class=sub>plan <code>{escape(digest[:16])}</code></p>")


def _fact(value: Any) -> str:
    return str(value.get("name") or value.get("version") or value) if isinstance(value, Mapping) else str(value)
