# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The split as an SVG picture: a bar per worker in rank order, as tall as its memory, and the layers it holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape

COLOURS = {"weights": "#3b6ea5", "reserve": "#b9b9b9", "kv": "#6aa84f", "free": "#f0f0f0"}
NAMES = {"weights": "weights", "reserve": "reserves", "kv": "KV cache", "free": "beyond the budget"}
BAR, GAP, HEIGHT, LEFT, TOP = 96, 44, 220, 24, 64


def svg(plan: Mapping[str, Any]) -> str:
    """The picture of a feasible plan; of an infeasible one, its first line as text."""
    workers = [(stage, worker) for stage in plan["stages"] for worker in stage["workers"]]
    title = str(plan["explanation"]).split("\n", 1)[0][:140]
    width = max(2 * LEFT + 8 * len(title), 2 * LEFT + len(workers) * (BAR + GAP))
    height = TOP + HEIGHT + 118
    body = [_text(LEFT, 24, title, size=13, bold=True)]
    body += _legend() if workers else []
    tallest = max((w["memory_gib"] for _stage, w in workers), default=1.0)
    for place, (stage, worker) in enumerate(workers):
        body += _worker(LEFT + place * (BAR + GAP), stage, worker, tallest)
        if place + 1 < len(workers):
            body.append(_arrow(LEFT + place * (BAR + GAP) + BAR, TOP + HEIGHT - 12))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" font-family="sans-serif">\n<rect width="{width}" height="{height}" fill="white"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _worker(x: int, stage: Mapping[str, Any], worker: Mapping[str, Any], tallest: float) -> list[str]:
    whole = worker["memory_gib"]
    parts = {
        "weights": worker["weights_gib"],
        "reserve": worker["reserve_gib"],
        "kv": max(0.0, worker["kv_gib"]),
        "free": max(0.0, whole - worker["budget_gib"]),
    }
    out, bottom = [], float(TOP + HEIGHT)
    for name, size in parts.items():
        tall = HEIGHT * size / tallest
        bottom -= tall
        label = f"<title>{escape(NAMES[name])} {size:.3g} GiB</title>"
        out.append(f'<rect x="{x}" y="{bottom:.1f}" width="{BAR}" height="{tall:.1f}" fill="{COLOURS[name]}" stroke="white">{label}</rect>')
    lines = (
        f"rank {worker['rank']} · stage {stage['rank']}",
        f"{worker['node']}",
        f"{worker['accelerator']}:{worker['device']}",
        f"layers {stage['first_layer']}–{stage['last_layer']} ({stage['layers']})",
        f"{worker['weights_gib']:.3g} GiB, {worker['step_ms']:.3g} ms",
    )
    return out + [_text(x, TOP + HEIGHT + 18 + 16 * i, line, size=11, bold=i == 0) for i, line in enumerate(lines)]


def _legend() -> list[str]:
    out, x = [], LEFT
    for name, colour in COLOURS.items():
        out.append(f'<rect x="{x}" y="36" width="12" height="12" fill="{colour}"/>')
        out.append(_text(x + 17, 46, NAMES[name], size=11))
        x += 34 + 7 * len(NAMES[name])
    return out


def _arrow(x: int, y: int) -> str:
    return f'<path d="M{x + 6} {y}h{GAP - 18}m-6 -5l6 5l-6 5" fill="none" stroke="#555" stroke-width="1.5"/>'


def _text(x: int, y: int, text: str, *, size: int, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x}" y="{y}" font-size="{size}"{weight}>{escape(text)}</text>'
