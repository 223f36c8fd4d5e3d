"""Requests, statistics and the client against a server with a fixed schedule."""

from __future__ import annotations

import importlib.util
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.motley.inference.plugins.module_utils.serving import metrics, requests, statistics
from ansible_collections.motley.inference.plugins.plugin_utils import openai

_spec = importlib.util.spec_from_file_location("fake_openai", Path(__file__).with_name("fake_openai.py"))
assert _spec and _spec.loader
fake_openai = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fake_openai)


@pytest.fixture
def server() -> Iterator[Any]:
    with fake_openai.running() as started:
        yield started


# -- statistics -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("values, percent, expected", [
    ([1, 2, 3, 4], 50, 2.5), ([1, 2, 3, 4], 25, 1.75), ([4, 1, 3, 2], 99, 3.97), ([7], 95, 7), ([1, 3], 0, 1), ([1, 3], 100, 3),
])
def test_percentile_is_numpys_default(values: list[float], percent: float, expected: float) -> None:
    assert statistics.percentile(values, percent) == pytest.approx(expected)


def outcome(sent: float, *chunks: float, tokens: int, **more: Any) -> statistics.Outcome:
    return statistics.Outcome(sent=sent, chunks=chunks, prompt_tokens=10, output_tokens=tokens, **more)


def test_terms_are_those_of_vllm() -> None:
    one = outcome(1.0, 1.5, 1.7, 2.1, tokens=4)        # two tokens came in one chunk
    assert (one.ttft, one.e2el) == (pytest.approx(0.5), pytest.approx(1.1))
    assert one.tpot == pytest.approx((1.1 - 0.5) / 3)
    assert one.itl == pytest.approx([0.2, 0.4])
    assert outcome(0.0, 0.5, tokens=1).tpot is None


def test_summary() -> None:
    runs = [outcome(0.0, 0.1, 0.2, tokens=2), outcome(0.0, 0.3, 0.6, tokens=2), outcome(0.0, tokens=0),
            outcome(0.0, 0.1, tokens=1, error="HTTP 500: out of luck")]
    seen = statistics.summary(runs, 2.0)
    assert (seen["completed"], seen["failed"]) == (2, 2)
    assert seen["errors"] == {"the answer had no content": 1, "HTTP 500: out of luck": 1}
    assert (seen["request_throughput"], seen["output_throughput"], seen["total_token_throughput"]) == (1.0, 2.0, 12.0)
    assert seen["ttft_ms"] == {"mean": 200.0, "std": 100.0, "p50": 200.0, "p95": 290.0, "p99": 298.0, "max": 300.0}
    assert seen["itl_ms"]["max"] == pytest.approx(300.0)


def test_summary_of_nothing_has_no_latencies() -> None:
    seen = statistics.summary([outcome(0.0, tokens=0, error="no")], 0.0)
    assert seen["ttft_ms"] is None and seen["request_throughput"] == 0.0
    assert any("FAILED" in line for line in statistics.lines({**seen, "concurrency": 1}))


# -- metrics --------------------------------------------------------------------------------------------------------
def test_metrics_are_summed_over_labels() -> None:
    text = ('# HELP vllm:num_requests_running x\nvllm:num_requests_running{engine="0"} 2.0\nvllm:num_requests_running{engine="1"} 3\n'
            'vllm:num_preemptions_total{engine="0",model_name="a b\\"c"} 1.0\nvllm:gpu_cache_usage_perc 0.5\nother 1\nbroken{ x\nvllm:x NaNa\n')
    assert metrics.engine(text) == {"running": 5.0, "preemptions": 1.0, "kv_cache_usage": 0.5}
    assert metrics.grown({"preemptions": 1.0}, {"preemptions": 4.0, "prompt_tokens": 1.0}) == {"preemptions": 3.0}


# -- requests -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("url, text", [
    ("http://10.0.0.20:8000", "http://10.0.0.20:8000"), ("10.0.0.20:8000", "http://10.0.0.20:8000"),
    ("https://api.example.com/openai/v1/", "https://api.example.com:443/openai"), ("http://[fd00::1]:8000/v1", "http://[fd00::1]:8000"),
])
def test_endpoint(url: str, text: str) -> None:
    assert requests.endpoint(url).text == text


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://user:secret@host"])
def test_bad_endpoints_are_refused_without_repeating_a_password(url: str) -> None:
    with pytest.raises(ValueError) as error:
        requests.endpoint(url)
    assert "secret" not in str(error.value)


def test_prompts_repeat_by_seed_and_share_no_beginning() -> None:
    assert requests.prompt(1, 50) == requests.prompt(1, 50)
    beginnings = {requests.prompt(seed, 50)[:40] for seed in range(100)}
    assert len(beginnings) == 100
    assert len(requests.prompt(3, 17).split()) == 17


def test_words_for_tokens() -> None:
    assert requests.words_for(128, words=32, tokens=160) == 26
    assert requests.words_for(128, words=32, tokens=0) == 128


def test_events_across_pieces() -> None:
    reader = requests.EventReader()
    assert reader.feed(b"data: {\"a\"") == []
    assert reader.feed(b": 1}\r\n\r\n: comment\ndata: [DO") == ['{"a": 1}']
    assert reader.feed(b"NE]\n\n") == ["[DONE]"]


def test_reasoning_counts_as_content_and_a_role_does_not() -> None:
    answer = requests.Answer()
    events = ('{"choices":[{"delta":{"role":"assistant","content":""}}]}', '{"choices":[{"delta":{"reasoning_content":"hm"}}]}',
              '{"choices":[{"delta":{"content":"yes"}}]}', '{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}', "[DONE]")
    for at, event in enumerate(events):
        answer.take(event, float(at))
    assert (answer.chunks, answer.text, answer.prompt_tokens, answer.output_tokens, answer.done) == ([1.0, 2.0], "hmyes", 3, 2, True)


@pytest.mark.parametrize("event, words", [("{nope", "no JSON"), ("3", "no object"), ('{"error":{"message":"too long"}}', "too long")])
def test_bad_events_are_errors(event: str, words: str) -> None:
    answer = requests.Answer()
    answer.take(event, 0.0)
    assert words in (answer.error or "")


# -- client ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("api", ["completions", "chat"])
def test_a_run_keeps_its_concurrency_and_measures_the_schedule(server: Any, api: requests.Api) -> None:
    documents = [requests.body(api, "tiny", requests.prompt(i, 12), output_tokens=5) for i in range(12)]
    outcomes, seconds = openai.load(requests.endpoint(server.url), requests.PATHS[api], documents, concurrency=4, key="sk-test")
    seen = statistics.summary(outcomes, seconds)
    assert (seen["completed"], seen["failed"], seen["total_output_tokens"], seen["total_input_tokens"]) == (12, 0, 60, 144)
    assert server.most_active == 4
    assert 20 <= seen["ttft_ms"]["p50"] < 60
    assert 5 <= seen["itl_ms"]["p50"] < 15
    assert seen["tokens_counted_by_server"]


def test_without_usage_chunks_are_counted_and_it_says_so(server: Any) -> None:
    server.usage = False
    outcomes, _ = openai.load(requests.endpoint(server.url), "/v1/completions", [requests.body("completions", "tiny", "a b", output_tokens=3)],
                              concurrency=1, key="sk-test")
    assert (outcomes[0].output_tokens, outcomes[0].counted) == (3, False)


def test_failures_are_counted_with_their_reason(server: Any) -> None:
    server.fail_every = 2
    documents = [requests.body("completions", "tiny", "a", output_tokens=2) for _ in range(6)]
    outcomes, seconds = openai.load(requests.endpoint(server.url), "/v1/completions", documents, concurrency=2, key="sk-test")
    assert statistics.summary(outcomes, seconds)["errors"] == {"HTTP 500: out of luck": 3}


def test_a_wrong_key_is_an_error_that_does_not_show_it(server: Any) -> None:
    outcomes, _ = openai.load(requests.endpoint(server.url), "/v1/completions", [requests.body("completions", "tiny", "a", output_tokens=2)],
                              concurrency=1, key="sk-wrong")
    assert outcomes[0].error == "HTTP 401: Unauthorized"


def test_fetch(server: Any) -> None:
    endpoint = requests.endpoint(server.url)
    assert openai.fetch(endpoint, "/health").status == 200
    assert openai.fetch(endpoint, "/v1/models").status == 401
    assert requests.served_model(openai.fetch(endpoint, "/v1/models", key="sk-test").json()) == ("tiny", True)


def test_nobody_listens() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        endpoint = requests.endpoint(f"http://127.0.0.1:{held.getsockname()[1]}")
        reply = openai.fetch(endpoint, "/health", timeout=2)
        outcomes, _ = openai.load(endpoint, "/v1/completions", [{}], concurrency=1, timeout=2)
    assert reply.status == 0 and "cannot reach" in reply.text and "closed" not in reply.text
    assert "cannot reach" in (outcomes[0].error or "")


def test_a_server_that_hangs_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def hang_up() -> None:
            for _number in range(2):
                listener.accept()[0].close()
        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        reply = openai.fetch(requests.endpoint(f"http://127.0.0.1:{listener.getsockname()[1]}"), "/health", timeout=2)
    assert (reply.status, "closed the connection" in reply.text) == (0, True)


def test_a_kept_connection_that_the_server_has_closed_is_opened_anew(server: Any) -> None:
    server.keep = False     # answers as if it kept the connection, and closes it
    documents = [requests.body("completions", "tiny", "a", output_tokens=2) for _ in range(4)]
    outcomes, _ = openai.load(requests.endpoint(server.url), "/v1/completions", documents, concurrency=1, key="sk-test")
    assert [o.error for o in outcomes] == [None] * 4


def test_a_silent_server_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        reply = openai.fetch(requests.endpoint(f"http://127.0.0.1:{silent.getsockname()[1]}"), "/health", timeout=0.2)
    assert (reply.status, "in time" in reply.text) == (0, True)


def test_progress_is_told_while_it_lasts(server: Any) -> None:
    told: list[tuple[int, int, float]] = []
    documents = [requests.body("completions", "tiny", "a", output_tokens=4) for _ in range(6)]
    openai.load(requests.endpoint(server.url), "/v1/completions", documents, concurrency=1, key="sk-test",
                progress=lambda *figures: told.append(figures), every=0.05)
    assert told and told[-1][0] <= 6
