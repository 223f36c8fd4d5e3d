# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan in words: lines of text for a terminal and for the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Columns of equal width; numbers to the right."""
    cells = [list(head), *[[str(c) for c in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    out = []
    for number, row in enumerate(cells):
        parts = []
        for i, cell in enumerate(row):
            right = number > 0 and cell.replace(".", "", 1).replace(",", "").lstrip("-").isdigit()
            parts.append(cell.rjust(widths[i]) if right else cell.ljust(widths[i]))
        out.append("  ".join(parts).rstrip())
    return out


def lines(plan: Mapping[str, Any]) -> list[str]:
    """The whole explanation."""
    out = _head(plan)
    if plan["feasible"]:
        out += ["", *stages(plan)]
    out += _infeasible(plan) if not plan["feasible"] else []
    if plan["alternatives"]:
        out += ["", "Alternatives", *alternatives(plan)]
    if len(plan["front"]) > 1:
        out += ["", "Trade-offs (none of these is beaten in all three figures)", *_figures(plan["front"])]
    for title, key in (("Assumed", "assumed"), ("Warnings", "warnings")):
        if plan[key]:
            out += ["", title, *[f"  - {text}" for text in plan[key]]]
    return out


def _head(plan: Mapping[str, Any]) -> list[str]:
    if not plan["feasible"]:
        return [f"No plan: {plan['model']} does not fit on these devices."]
    predicted = plan["predicted"]
    workers = [w for stage in plan["stages"] for w in stage["workers"]]
    limit = next(w for w in workers if w["rank"] == plan["limiting_rank"])
    return [
        f"{plan['model']}: pipeline {plan['pipeline']}, tensor {plan['tensor']}, layers {plan['layer_partition']} in rank order; "
        f"engine on {plan['engine_node']}; memory fraction {plan['gpu_memory_utilization']:g}",
        f"Predicted: {predicted['single_stream_tok_s']:.1f} tok/s for one stream, {predicted['throughput_tok_s']:.1f} tok/s for the workload, "
        f"first token after {predicted['ttft_ms']:.0f} ms; KV pool of {plan['kv_tokens']} tokens, limited by rank {limit['rank']} on {limit['node']}",
    ]


def stages(plan: Mapping[str, Any]) -> list[str]:
    """One line per worker."""
    rows = []
    for stage in plan["stages"]:
        for w in stage["workers"]:
            layers = f"{stage['first_layer']}-{stage['last_layer']}"
            rows.append((
                w["rank"], stage["rank"], w["node"], f"{w['accelerator']}:{w['device']}", layers, stage["layers"], f"{w['weights_gib']:.3f}",
                f"{w['reserve_gib']:.3f}", f"{w['kv_gib']:.3f}", w["kv_tokens"], f"{w['step_ms']:.2f}",
            ))  # fmt: skip
    return table(("rank", "stage", "node", "device", "layers", "count", "weights GiB", "reserve GiB", "KV GiB", "KV tokens", "step ms"), rows)


def alternatives(plan: Mapping[str, Any]) -> list[str]:
    """One line per alternative, with figures or the reason."""
    rows = []
    for row in plan["alternatives"]:
        if row["feasible"]:
            rows.append((row["name"], row["layer_partition"], *_three(row), row["reason"]))
        else:
            rows.append((row["name"], row.get("layer_partition", ""), "-", "-", "-", row["reason"]))
    return table(("name", "layers", "one stream tok/s", "workload tok/s", "KV tokens", "why"), rows)


def _three(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return f"{row['single_stream_tok_s']:.1f}", f"{row['throughput_tok_s']:.1f}", str(row["kv_tokens"])


def _figures(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return table(
        ("best for", "pipeline", "tensor", "layers", "one stream tok/s", "workload tok/s", "KV tokens"),
        [(r["name"], r["pipeline"], r["tensor"], r["layer_partition"], *_three(r)) for r in rows],
    )


def _infeasible(plan: Mapping[str, Any]) -> list[str]:
    out = ["", "Why", *[f"  - {text}" for text in plan.get("reasons", [])]]
    changes = plan.get("changes", [])
    if not changes:
        return [*out, "", "No single change makes it fit: use a smaller model or more devices."]
    rows = [(c["name"], c["layer_partition"], *_three(c), c["cost"]) for c in changes]
    return [*out, "", "It would fit with one of", *table(("change", "layers", "one stream tok/s", "workload tok/s", "KV tokens", "cost"), rows)]
