# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wrong requests give one sentence and a way on, never a traceback."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.planner import plan
from hypothesis import given, settings
from hypothesis import strategies as st

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 1024, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
GOOD: dict[str, Any] = {
    "model": "example/tiny", "config": CONFIG, "quantization": None, "dtype": None, "kv_cache_dtype": None, "revision": None, "trust_remote_code": False,
    "nodes": [
        {"name": "a", "address": "10.0.0.1", "engine": True, "devices": ["rtx4090", {"accelerator": "rtx4090", "memory_gib": 22.0}]},
        {"name": "b", "address": "10.0.0.2", "devices": [{"accelerator": "gb10", "reserve_gib": 3.0, "bandwidth_gbs": 240.0, "host_reserve_gib": 8.0}]},
    ],
    "links": [{"nodes": ["a", "b"], "link": "10gbe-tcp", "gbs": 1.1, "rtt_us": 50.0}],
    "workload": {"max_model_len": 512, "concurrency": 4, "prompt_tokens": 128, "output_tokens": 32},
    "engine": {
        "version": "0.32.0", "launcher": "ray", "backend": None, "gpu_memory_utilization": 0.8, "pipeline": 2, "tensor": 1, "partition": [2, 2],
        "max_num_batched_tokens": 512, "max_num_seqs": 16, "enforce_eager": True, "port": 8000, "args": [], "env": {}, "block_size": 16,
    },
    "objective": "balanced",
}  # fmt: skip


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a request."""
    out = [at] if at else []
    if isinstance(value, dict):
        for key, item in value.items():
            out += paths(item, (*at, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            out += paths(item, (*at, index))
    return out


def changed(place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    request = copy.deepcopy(GOOD)
    spot: Any = request
    for key in place[:-1]:
        spot = spot[key]
    spot[place[-1]] = value
    return request


def answer(request: Any) -> dict[str, Any] | MotleyError:
    """The response, which must be plain JSON, or the error, which must say what and what next."""
    try:
        response = plan(request)
    except MotleyError as error:
        assert error.message
        assert error.hint
        return error
    json.dumps(response, allow_nan=False)
    return response


def test_the_good_request_is_good() -> None:
    response = answer(GOOD)
    assert isinstance(response, dict)
    assert response["feasible"]


NONSENSE: tuple[Any, ...] = (
    None,
    True,
    "",
    "many",
    -1,
    0,
    1.5,
    10**30,
    -(10**30),
    math.nan,
    math.inf,
    [],
    {},
    [[]],
    {"x": 1},
    b"bytes",
    "0",
    object(),
)


@pytest.mark.parametrize("place", paths(GOOD), ids=lambda p: ".".join(map(str, p)))
def test_no_value_anywhere_gives_a_traceback(place: tuple[Any, ...]) -> None:
    for value in NONSENSE:
        answer(changed(place, value))


@pytest.mark.parametrize(
    ("place", "value", "text", "hint"),
    [
        (("nodes", 0, "devices", 0), "rtx409", "unknown accelerator 'rtx409'", "Did you mean 'rtx4090'"),
        (("nodes", 0, "devices", 0), "NVIDIA A100-SXM4-80GB MIG 1g.10gb", "slice of a card", "whole card"),
        (("nodes", 0, "devices", 1, "memory_gb"), 22.0, "unknown key 'memory_gb'", "Did you mean 'memory_gib'"),
        (("nodes", 0, "devices", 1, "memory_gib"), -1, "must be above 0", "finite"),
        (("nodes", 0, "devices", 1, "memory_gib"), math.nan, "must be above 0", "finite"),
        (("nodes", 1, "devices", 0, "reserve_gib"), math.inf, "reserve_gib must be", "finite"),
        (("nodes", 1, "name"), "a", "two nodes are named 'a'", "own name"),
        (("nodes", 1, "address"), "10.0.0.1", "same address", "unique"),
        (("nodes", 1, "engine"), True, "both marked as engine", "one node"),
        (("links", 0, "link"), "10gbe", "unknown link '10gbe'", "Did you mean '10gbe-tcp'"),
        (("links", 0, "nodes"), ["a", "c"], "unknown node 'c'", "a, b"),
        (("workload", "concurrency"), 0, "must be from 1", "give a number"),
        (("workload", "max_model_len"), "8192", "must be a whole number", "give a number"),
        (("workload", "max_model_len"), 4096, "more than the 1024 positions", "at most 1024"),
        (("engine", "gpu_memory_utilization"), 1.2, "above 0 up to 1", "finite"),
        (("engine", "launcher"), "rays", "cannot be 'rays'", "Did you mean 'ray'"),
        (("engine", "version"), "newest", "not a vLLM version", "0.32.0"),
        (("engine", "version"), "0.6.1", "too old", "0.17.1"),
        (("engine", "enforce_eager"), "yes", "must be true or false", "without quotes"),
        (("engine", "pipelines"), 2, "unknown key 'pipelines'", "Did you mean 'pipeline'"),
        (("objective",), "fast", "cannot be 'fast'", "balanced"),
        (("quantization",), "fp9", "unknown quantisation 'fp9'", "Did you mean 'fp8'"),
        (("config", "num_hidden_layers"), 0, "'num_hidden_layers' must be a whole number", "config.json"),
        (("config", "hidden_size"), None, "no 'hidden_size'", "config.json"),
        (("config", "quantization_config"), {"quant_method": "magic"}, "unknown quantisation 'magic'", "awq"),
        (("model",), 7, "model must be text", "non-empty"),
        (("nodes",), [], "no node has a device", "devices"),
    ],
)  # fmt: skip
def test_what_is_wrong_and_what_next(place: tuple[Any, ...], value: Any, text: str, hint: str) -> None:
    error = answer(changed(place, value))
    assert isinstance(error, MotleyError), error
    assert text in error.message
    assert hint in error.hint


def test_a_model_that_is_not_known_names_the_nearest() -> None:
    request = {**GOOD, "model": "meta-llama/Llama-3.1-70B-Instruc"}
    request.pop("config")
    error = answer(request)
    assert isinstance(error, MotleyError)
    assert "Did you mean 'meta-llama/Llama-3.1-70B-Instruct'" in error.hint


@pytest.mark.parametrize("request_", [None, [], "plan", 7, {}, {"modle": "x"}])
def test_no_request_at_all(request_: Any) -> None:
    assert isinstance(answer(request_), MotleyError)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "devices", "nodes", "x"]) | st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(paths(GOOD)), JSON)
def test_fuzz(place: tuple[Any, ...], value: Any) -> None:
    answer(changed(place, value))
