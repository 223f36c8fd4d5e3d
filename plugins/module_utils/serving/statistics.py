# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Latency and throughput by the definitions of `vllm bench serve`, from what a client saw of each request."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Outcome:
    """One request: seconds on the client's clock since the run began; chunks are arrivals of content."""

    sent: float
    chunks: tuple[float, ...] = ()
    prompt_tokens: int = 0
    output_tokens: int = 0
    counted: bool = True  # token counts are the server's own, not the number of chunks
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def ttft(self) -> float:
        """Time to first token: first content chunk minus send."""
        return self.chunks[0] - self.sent

    @property
    def e2el(self) -> float:
        """End-to-end latency: last chunk minus send."""
        return self.chunks[-1] - self.sent

    @property
    def tpot(self) -> float | None:
        """Time per output token without the first one; nothing for requests of one token."""
        return (self.e2el - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else None

    @property
    def itl(self) -> list[float]:
        """Inter-token latencies: every gap between chunks."""
        return [later - earlier for earlier, later in zip(self.chunks, self.chunks[1:], strict=False)]


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear interpolation between closest ranks, as numpy's default."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    at = (len(ordered) - 1) * percent / 100
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def spread(seconds: Iterable[float]) -> dict[str, float] | None:
    """Mean, standard deviation, percentiles and maximum in milliseconds; None without values."""
    values = [1000 * s for s in seconds]
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values))
    figures = {"mean": mean, "std": std, **{f"p{p}": percentile(values, p) for p in PERCENTILES}, "max": max(values)}
    return {name: round(value, 3) for name, value in figures.items()}


def summary(outcomes: Sequence[Outcome], duration: float) -> dict[str, Any]:
    """The result of a run. duration: seconds from the first send to the last answer."""
    good = [o for o in outcomes if o.ok and o.chunks]
    failed = [o for o in outcomes if not (o.ok and o.chunks)]
    out, prompt = sum(o.output_tokens for o in good), sum(o.prompt_tokens for o in good)
    errors: dict[str, int] = {}
    for outcome in failed:
        text = outcome.error or "the answer had no content"
        errors[text] = errors.get(text, 0) + 1
    per_second = 1 / duration if duration > 0 else 0.0
    return {
        "duration_s": round(duration, 3), "completed": len(good), "failed": len(failed), "errors": errors,
        "total_input_tokens": prompt, "total_output_tokens": out, "tokens_counted_by_server": all(o.counted for o in good),
        "request_throughput": round(len(good) * per_second, 3), "output_throughput": round(out * per_second, 2),
        "total_token_throughput": round((out + prompt) * per_second, 2),
        "ttft_ms": spread(o.ttft for o in good), "tpot_ms": spread(t for o in good if (t := o.tpot) is not None),
        "itl_ms": spread(gap for o in good for gap in o.itl), "e2el_ms": spread(o.e2el for o in good),
    }


def lines(result: dict[str, Any]) -> list[str]:
    """A run's figures for a terminal."""
    texts = [
        f"{result['completed']} requests in {result['duration_s']:.2f} s at concurrency {result['concurrency']}"
        + (f", {result['failed']} FAILED" if result["failed"] else ", none failed"),
        f"{result['request_throughput']:.2f} req/s   {result['output_throughput']:.1f} output tok/s   "
        f"{result['total_token_throughput']:.1f} tok/s with prompts",
        f"{'milliseconds':<24}" + "".join(f"{name:>10}" for name in ("mean", "p50", "p95", "p99", "max")),
    ]
    for key, name in (("ttft_ms", "TTFT (first token)"), ("tpot_ms", "TPOT (each further)"), ("itl_ms", "ITL (between chunks)"),
                      ("e2el_ms", "E2EL (whole request)")):
        figures = result.get(key)
        if figures:
            texts.append(f"{name:<24}" + "".join(f"{figures[c]:>10.1f}" for c in ("mean", "p50", "p95", "p99", "max")))
    texts += [f"{count} x {text}" for text, count in result["errors"].items()]
    return texts
