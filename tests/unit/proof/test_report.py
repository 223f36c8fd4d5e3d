"""The report page: complete, self-contained, safe, and the same for the same data."""

from __future__ import annotations

import copy
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from ansible_collections.motley.inference.plugins.module_utils.report import page

DIGEST = "ab" * 32


def worker(rank: int, node: str, device: int, **more: Any) -> dict[str, Any]:
    return {"rank": rank, "node": node, "device": device, "accelerator": "gb10", "weights_gib": 19.5, "reserve_gib": 0.5, "budget_gib": 22.0, "kv_gib": 2.0,
            "kv_tokens": 2000, "step_ms": 22.0, "memory_gib": 24.0, **more}


def inputs(**more: Any) -> page.Inputs:
    plan = {
        "model": "org/Model-70B", "inputs_sha256": DIGEST, "pipeline": 2, "tensor": 1, "layer_partition": "3,5", "kv_tokens": 1000, "objective": "balanced",
        "stages": [{"rank": 0, "layers": 3, "workers": [worker(0, "x86-01", 0)]}, {"rank": 1, "layers": 5, "workers": [worker(1, "spark-01", 0)]}],
        "predicted": {"single_stream_tok_s": 5.5, "throughput_tok_s": 19.7, "ttft_ms": 892.0}, "engine": {"version": "0.17.1", "launcher": "ray", "args": ["--x"]},
        "alternatives": [{"name": "even split", "feasible": False, "reason": "weights exceed the room by 3.04 GiB", "layer_partition": "4,4"}],
        "warnings": [], "assumed": [],
    }
    checks = [{"id": "rank-0", "node": "x86-01", "passed": True, "expected": "stage 0 on x86-01", "seen": "stage 0 on x86-01", "evidence": "", "remedy": ""},
              {"id": "weights-1", "node": "spark-01", "passed": None, "expected": "9 GiB", "seen": "not seen", "evidence": "", "remedy": ""}]
    spread = {"mean": 1.0, "std": 0.1, "p50": 1.0, "p95": 2.0, "p99": 3.0, "max": 4.0}
    run = {"plan": DIGEST, "time": "2026-11-30T22:12:00Z", "concurrency": 8, "completed": 64, "failed": 0, "errors": {}, "duration_s": 33.0,
           "request_throughput": 1.94, "output_throughput": 124.1, "total_token_throughput": 248.2, "ttft_ms": spread, "tpot_ms": spread, "itl_ms": spread,
           "e2el_ms": spread, "settings": {"prompt_tokens": 64, "output_tokens": 64}}
    given: dict[str, Any] = {
        "cluster": "home", "plan": plan, "proof": {"passed": True, "checks": checks, "plan": DIGEST, "time": "2026-11-30T22:10:00Z"}, "benchmarks": [run],
        "lock": {"images": {"r/vllm:v1": {"digest": "sha256:" + "4f" * 32, "architectures": ["amd64", "arm64"]}}, "talos": {"x86-01": {"version": "v1.14.1"}}},
        "facts": {"x86-01": {"interface": {"value": {"name": "enp3s0"}, "source": "talosctl get links", "time": "t"}}},
        "nodes": {"x86-01": {"address": "10.0.0.20", "arch": "amd64"}}, "url": "http://10.0.0.20:8000", "key_file": "/home/me/my keys/api_key"}
    return page.Inputs(**{**given, **more})


class Parsed(HTMLParser):
    """Balanced tags, attributes that could fetch, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetches: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link"):
            self.open.append(tag)
        self.fetches += [f"{tag} {k}={v}" for k, v in attrs if k in ("src", "href", "srcset", "action", "data") and v != "data:,"]

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open[-1] != tag and self.open[-1] in ("td", "th", "tr"):
            self.open.pop()
        assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_page_says_what_a_reader_wants_to_know() -> None:
    words = Parsed(page.page(inputs())).words
    for text in ("org/Model-70B", "verified: 1 of 2 checks", "124.1", "layers 3–7", "x86-01 gb10:0", "weights exceed the room by 3.04 GiB", "enp3s0", "not seen",
                 "cat '/home/me/my keys/api_key'", "vLLM 0.17.1", "sha256:4f4f", "placement of rank 0"):
        assert text in words, text


def test_the_page_is_whole_and_asks_for_nothing() -> None:
    text = page.page(inputs())
    parsed = Parsed(text)
    assert (parsed.open, parsed.fetches) == ([], [])
    assert "<script" not in text and "@import" not in text and "url(" not in text


def test_the_same_data_give_the_same_page() -> None:
    assert page.page(inputs()) == page.page(copy.deepcopy(inputs()))


def test_only_the_plan_is_needed() -> None:
    bare = page.page(page.Inputs(cluster="home", plan=inputs().plan))
    words = Parsed(bare).words
    assert "not verified yet" in words
    assert "Benchmark" not in words and "Use it" not in words


def test_text_from_outside_stays_text() -> None:
    evil = "<img src=x onerror=alert(1)>"
    given = inputs(cluster=evil, url="http://" + evil, key_file=evil)
    checks = [{**c, "seen": evil, "evidence": evil, "expected": evil} for c in (given.proof or {})["checks"]]
    made = page.page(inputs(cluster=evil, proof={**(given.proof or {}), "checks": checks, "completion": {"text": evil}}))
    assert "<img" not in made and "&lt;img" in made


@pytest.mark.parametrize("proof, words", [
    (None, "not verified yet"),
    ({"passed": True, "plan": "cd" * 32, "checks": []}, "verified for an older plan"),
    ({"passed": False, "plan": DIGEST, "checks": [{"passed": False}, {"passed": True}]}, "not as planned: 1 of 2 checks failed"),
    ({"passed": False, "plan": DIGEST, "checks": [{"passed": None}]}, "not proven"),
])
def test_the_verdict(proof: dict[str, Any] | None, words: str) -> None:
    assert page.proof_words(proof, inputs().plan)[1] == words


def test_results_of_other_plans_are_left_out() -> None:
    run = inputs().benchmarks[0]
    made = inputs(benchmarks=[{**run, "plan": "cd" * 32}, run, {**run, "time": "later"}])
    assert [b["time"] for b in page.current_benchmarks(made)] == ["later", "2026-11-30T22:12:00Z"]


def test_memory_bars_are_shares_of_the_device() -> None:
    widths = re.findall(r"class=(\w) style='width:([\d.]+)%'", page.page(inputs()))
    # 19.5 of 24 GiB are weights; half of the 2 GiB for KV is in the pool of 1000 tokens; 0.5 GiB is reserve.
    assert widths[:4] == [("w", "81.25"), ("k", "4.17"), ("u", "4.17"), ("r", "2.08")]
