# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prometheus text of an engine's /metrics, reduced to what a run needs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+\d+)?$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# What is wanted -> the metric's names, newest first: vLLM renamed some.
_WANTED: Mapping[str, tuple[str, ...]] = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_cache_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "preemptions": ("vllm:num_preemptions_total",),
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "generation_tokens": ("vllm:generation_tokens_total",),
    "prefix_cache_queries": ("vllm:prefix_cache_queries_total",),
    "prefix_cache_hits": ("vllm:prefix_cache_hits_total",),
}


def samples(text: str) -> list[tuple[str, dict[str, str], float]]:
    """(name, labels, value) of each sample; what is no sample is skipped."""
    found = []
    for line in text.splitlines():
        match = None if line.startswith("#") else _LINE.match(line.strip())
        if match:
            try:
                found.append((match[1], dict(_LABEL.findall(match[2] or "")), float(match[3])))
            except ValueError:
                continue
    return found


def engine(text: str) -> dict[str, float]:
    """The figures of _WANTED that the text has, summed over labels (engines, model names)."""
    sums: dict[str, float] = {}
    for name, _labels, value in samples(text):
        sums[name] = sums.get(name, 0.0) + value
    found = {key: next((n for n in names if n in sums), None) for key, names in _WANTED.items()}
    return {key: sums[name] for key, name in found.items() if name}


def grown(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, Any]:
    """How much each counter grew during a run."""
    counters = ("preemptions", "prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits")
    return {name: after[name] - before[name] for name in counters if name in before and name in after}
