# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan: what it chooses, what it says, what it refuses."""

from __future__ import annotations

import copy
import xml.etree.ElementTree as ElementTree
from typing import Any

import planner_starts as starts
import pytest
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.planner import digest, plan
from ansible_collections.motley.inference.plugins.module_utils.planner.catalog import MODELS
from ansible_collections.motley.inference.plugins.module_utils.planner.lines import node_order
from ansible_collections.motley.inference.plugins.module_utils.planner.model import default_partition, from_config, from_name, tensor_refusals
from ansible_collections.motley.inference.plugins.module_utils.planner.picture import svg

TWO_NODES = [
    {"name": "x86-01", "address": "10.0.0.20", "devices": ["rtx4090", "rtx4090"]},
    {"name": "spark-01", "address": "10.0.0.10", "devices": ["gb10"]},
]
X86_ENGINE = [{**TWO_NODES[0], "engine": True}, TWO_NODES[1]]
CARD = {"accelerator": "rtx4090", "memory_gib": 0.054, "reserve_gib": 0.01}
SMALL_LLAMA = {
    "architectures": ["LlamaForCausalLM"], "torch_dtype": "float32", "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 28,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 512, "max_position_embeddings": 2048, "tie_word_embeddings": False,
}  # fmt: skip


def ask(**changes: Any) -> dict[str, Any]:
    """A request for Llama 70B in FP8 on an x86 machine with two cards and a Spark."""
    engine = {"version": "0.32.0", **changes.pop("engine", {})}
    request = {
        "model": "meta-llama/Llama-3.1-70B-Instruct", "quantization": "fp8", "nodes": copy.deepcopy(TWO_NODES),
        "links": [{"nodes": ["x86-01", "spark-01"], "link": "10gbe-tcp"}],
        "workload": {"max_model_len": 8192, "concurrency": 8, "prompt_tokens": 512, "output_tokens": 128}, "engine": engine,
    }  # fmt: skip
    return {**request, **changes}


def small(**changes: Any) -> dict[str, Any]:
    """A 28-layer Llama of 80 MB on cards declared so small that only all three hold it."""
    nodes = [
        {"name": "x86-01", "address": "10.0.0.20", "devices": [CARD, CARD], "engine": True},
        {"name": "spark-01", "address": "10.0.0.10", "devices": [{"accelerator": "gb10", "memory_gib": 0.067, "reserve_gib": 0.01}]},
    ]
    return {
        "model": "example/llama-28l", "config": SMALL_LLAMA, "dtype": "float32", "nodes": nodes, "workload": {"max_model_len": 512, "concurrency": 8},
        "engine": {"version": "0.32.0", "backend": "cpu"}, **changes,
    }  # fmt: skip


def alternative(response: dict[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in response["alternatives"] if row["name"] == name)


def workers(response: dict[str, Any]) -> list[dict[str, Any]]:
    return [w for stage in response["stages"] for w in stage["workers"]]


@pytest.mark.parametrize(("rule", "order"), [("address", ["engine", "b", "c", "a"]), ("node_id", ["engine", "a", "b", "c"])])
def test_the_rank_order_is_the_executors(rule: str, order: list[str]) -> None:
    """V1: fewer workers first, then the address as text (10.0.0.10 is before 10.0.0.9); V2, pinned: addresses alone."""
    nodes = [("a", "10.0.0.1", 2), ("b", "10.0.0.10", 1), ("engine", "10.0.0.99", 4), ("c", "10.0.0.9", 1)]
    assert node_order(nodes, "engine", rule) == order


# ------------------------------------------------------------------------------------------------------------ choices


def test_bandwidth_aware_split_beats_the_memory_proportional_one() -> None:
    response = plan(ask(objective="latency"))
    proportional = alternative(response, "memory-proportional split")
    assert response["pipeline"] == 3
    assert response["predicted"]["single_stream_tok_s"] == pytest.approx(5.6, abs=0.1)
    assert response["predicted"]["single_stream_tok_s"] >= 1.27 * proportional["single_stream_tok_s"]


def test_no_alternative_is_better_at_its_objective() -> None:
    for objective, figure in (("latency", "single_stream_tok_s"), ("throughput", "throughput_tok_s")):
        response = plan(ask(objective=objective))
        assert all(response["predicted"][figure] >= row[figure] for row in response["alternatives"] if row["feasible"])
    response = plan(ask(objective="capacity"))
    assert all(response["kv_tokens"] >= row["kv_tokens"] for row in response["alternatives"] if row["feasible"])


def test_engine_node_holds_stage_0() -> None:
    for nodes, engine in ((X86_ENGINE, "x86-01"), ([TWO_NODES[0], {**TWO_NODES[1], "engine": True}], "spark-01")):
        response = plan(ask(nodes=nodes, objective="latency"))
        assert response["engine_node"] == engine
        assert response["stages"][0]["workers"][0]["node"] == engine


def test_70b_in_bf16_needs_more_than_a_spark_and_one_card() -> None:
    request = ask(nodes=[{**TWO_NODES[0], "devices": ["rtx4090"]}, TWO_NODES[1]], engine={"gpu_memory_utilization": 0.9})
    request.pop("quantization")
    response = plan(request)
    assert not response["feasible"]
    assert "weights 131." in response["reasons"][0]
    names = [change["name"] for change in response["changes"]]
    assert "quantization fp8" in names
    assert "one more rtx4090 in x86-01" in names
    assert all(change["cost"] for change in response["changes"])


def test_70b_in_bf16_fits_a_spark_and_two_cards_as_three_stages() -> None:
    request = ask()
    request.pop("quantization")
    response = plan(request)
    assert (response["pipeline"], response["tensor"]) == (3, 1)
    spark = next(stage["layers"] for stage in response["stages"] if stage["workers"][0]["node"] == "spark-01")
    assert 55 <= spark <= 62


def test_cards_declared_small_give_three_stages() -> None:
    response = plan(small())
    assert (response["pipeline"], response["tensor"], response["layer_partition"]) == (3, 1, "10,10,8")
    assert response["kv_tokens"] == 9 * 128
    assert response["gpu_memory_utilization"] == 0.92
    # 10 layers of 2,951,168 bytes, the table of 512 x 256, the rope cache of 2048 x 64, all of 4 bytes; 16 bytes of scales a layer
    assert workers(response)[0]["weights_bytes"] == 10 * (2951168 + 16) + 512 * 256 * 4 + 2048 * 64 * 4
    assert not any(alternative(response, f"{node} alone")["feasible"] for node in ("x86-01", "spark-01"))


def test_an_override_wins_over_the_host_reserve_of_unified_memory() -> None:
    spark = {"name": "spark-01", "address": "10.0.0.10", "devices": [{"accelerator": "gb10", "memory_gib": 100.0, "reserve_gib": 1.5}]}
    response = plan(ask(nodes=[spark], links=[]))
    assert response["gpu_memory_utilization"] == 0.92
    assert workers(response)[0]["reserve_gib"] == pytest.approx(1.5)
    assert workers(response)[0]["budget_gib"] == pytest.approx(92.0)


def test_unified_memory_keeps_room_for_its_host() -> None:
    response = plan(ask(nodes=[TWO_NODES[1]], links=[]))
    assert response["gpu_memory_utilization"] == 0.89  # (119.6 - 12) / 119.6, rounded down


def test_every_reserve_has_a_reason() -> None:
    for worker in workers(plan(ask())):
        assert worker["reserves"]
        assert all(reserve["reason"] for reserve in worker["reserves"])
        assert sum(reserve["gib"] for reserve in worker["reserves"]) == pytest.approx(worker["reserve_gib"], abs=1e-5)


def test_kv_pool_is_the_smallest_stage() -> None:
    response = plan(ask())
    limit = next(w for w in workers(response) if w["rank"] == response["limiting_rank"])
    assert response["kv_blocks"] == min(w["kv_blocks"] for w in workers(response)) == limit["kv_blocks"]
    assert response["kv_tokens"] == 16 * response["kv_blocks"]


def test_of_equal_cards_none_is_starved() -> None:
    nodes = [{"name": "x86-01", "address": "10.0.0.20", "devices": ["rtx4090"] * 4}]
    response = plan(ask(nodes=nodes, links=[], objective="latency", engine={"tensor": 1, "pipeline": 4}))
    layers = [stage["layers"] for stage in response["stages"]]
    assert max(layers) - min(layers) <= 4


# ---------------------------------------------------------------------------------------------- fixed parts and evaluation


@pytest.mark.parametrize("given", ["22,20,38", [22, 20, 38], "22, 20, 38"])
def test_a_given_partition_is_evaluated_not_replaced(given: Any) -> None:
    response = plan(ask(nodes=X86_ENGINE, engine={"version": "0.17.0", "partition": given}))
    assert response["layer_partition"] == "22,20,38"
    assert [stage["workers"][0]["node"] for stage in response["stages"]] == ["x86-01", "x86-01", "spark-01"]
    assert alternative(response, "Motley's own choice")["single_stream_tok_s"] > response["predicted"]["single_stream_tok_s"]


def test_a_partition_that_does_not_start_says_where() -> None:
    response = plan(ask(nodes=X86_ENGINE, engine={"partition": "40,20,20"}))
    assert not response["feasible"]
    assert any("stage 0 (x86-01, rtx4090, 40 layers): weights exceed the room by" in reason for reason in response["reasons"])


@pytest.mark.parametrize(
    ("partition", "pipeline", "text"),
    [
        ("40,39", 2, "sum(partitions)=79 does not match num_hidden_layers=80."),
        ("40,40,0", 2, "len(partitions)=3 does not match pp_size=2."),
        ("40,x", 2, "Invalid partition string: 40,x"),
        ("", 2, "Invalid partition string: "),
        ("-1,81", 2, "every stage needs at least one layer"),
        ("0,80", 2, "every stage needs at least one layer"),
    ],
)
def test_a_partition_that_does_not_fit_the_launch_is_refused_in_the_engines_words(partition: str, pipeline: int, text: str) -> None:
    with pytest.raises(MotleyError, match=text.replace("(", r"\(").replace(")", r"\)")):
        plan(ask(engine={"partition": partition, "pipeline": pipeline}))


def test_layers_by_node_are_written_in_rank_order() -> None:
    nodes = [
        {"name": "x86-01", "address": "10.0.0.20", "devices": ["rtx4090"], "engine": True},
        {"name": "spark-01", "address": "10.0.0.10", "devices": ["gb10"]},
    ]
    response = plan(ask(model="meta-llama/Llama-3.2-3B-Instruct", nodes=nodes, engine={"partition_by_node": {"spark-01": 25, "x86-01": 3}}))
    assert response["layer_partition"] == "3,25"
    assert response["engine"]["env"]["VLLM_PP_LAYER_PARTITION"] == "3,25"
    assert [s["workers"][0]["node"] for s in response["stages"]] == ["x86-01", "spark-01"]


def test_layers_by_device_of_a_node() -> None:
    response = plan(ask(nodes=X86_ENGINE, engine={"partition_by_node": {"spark-01": 40, "x86-01": [22, 18]}, "version": "0.17.0"}))
    assert response["layer_partition"] == "22,18,40"


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ({"spark-01": 25, "x86-02": 3}, "unknown node 'x86-02'"),
        ({"spark-01": 25, "x86-01": [1, 1, 1]}, "3 numbers for 2 devices"),
        ({"spark-01": 80}, "the engine node x86-01 has no layers"),
        ({"spark-01": 50, "x86-01": [10, 10]}, "does not match num_hidden_layers=80"),
        ({"spark-01": "many", "x86-01": 1}, "must be a whole number"),
        ([1, 2], "must map nodes to layers"),
    ],
)
def test_wrong_layers_by_node(layers: Any, text: str) -> None:
    with pytest.raises(MotleyError, match=text):
        plan(ask(nodes=X86_ENGINE, engine={"partition_by_node": layers}))


def test_fixed_sizes_are_kept() -> None:
    response = plan(ask(engine={"pipeline": 2, "tensor": 1}))
    assert (response["pipeline"], response["tensor"]) == (2, 1)
    with pytest.raises(MotleyError, match="must be divisible by tensor parallel size"):
        plan(ask(engine={"tensor": 3}))


# -------------------------------------------------------------------------------------------------------- alternatives


def test_alternatives_have_a_number_or_a_reason() -> None:
    response = plan(ask())
    names = [row["name"] for row in response["alternatives"]]
    assert names == [
        "even split",
        "memory-proportional split",
        "flat tensor parallel 3",
        "tensor parallel 2 inside a node, pipeline between nodes",
        "x86-01 alone",
        "spark-01 alone",
    ]
    assert all(row["reason"] for row in response["alternatives"] if not row["feasible"])
    assert alternative(response, "flat tensor parallel 3")["reason"] == (
        "Total number of attention heads (64) must be divisible by tensor parallel size (3)."
    )
    assert "every pipeline stage must use the same tensor parallel size" in alternative(response, names[3])["reason"]


def test_flat_tensor_parallelism_counts_the_smallest_device() -> None:
    nodes = [{"name": "a", "address": "10.0.0.1", "devices": ["rtx4090"]}, {"name": "b", "address": "10.0.0.2", "devices": ["gb10"]}]
    row = alternative(plan(ask(nodes=nodes, links=[])), "flat tensor parallel 2")
    assert "2 x 23.6 GiB (rtx4090)" in row["reason"]


def test_each_of_three_nodes_is_left_out_once() -> None:
    nodes = [{"name": n, "address": f"10.0.0.{i}", "devices": ["h100-sxm"]} for i, n in enumerate("abc")]
    response = plan(ask(nodes=nodes, links=[], objective="capacity"))
    assert {"without a", "without b", "without c"} <= {row["name"] for row in response["alternatives"]}


def test_a_tensor_group_over_nodes_is_warned_of() -> None:
    nodes = [{"name": f"spark-{i}", "address": f"10.0.0.{i}", "devices": ["gb10"]} for i in range(1, 5)]
    config = {**SMALL_LLAMA, "num_hidden_layers": 93, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
              "intermediate_size": 14336, "vocab_size": 128256, "torch_dtype": "bfloat16"}  # fmt: skip
    response = plan(
        {"config": config, "nodes": nodes, "workload": {"max_model_len": 2048}, "engine": {"version": "0.32.0", "tensor": 2, "pipeline": 2}}
    )
    assert response["layer_partition"] == "47,46"
    assert any("spans spark-1 and spark-2" in text for text in response["warnings"])
    assert response["engine"]["node_env"]["spark-1"]["RAY_memory_monitor_refresh_ms"] == "0"


def test_front_holds_nothing_that_is_beaten() -> None:
    front = plan(ask())["front"]
    figures = [(row["single_stream_tok_s"], row["throughput_tok_s"], row["kv_tokens"]) for row in front]
    assert len(front) > 1
    assert not any(a != b and all(x >= y for x, y in zip(a, b, strict=True)) for a in figures for b in figures)


def test_explanation_names_each_worker_and_alternative() -> None:
    response = plan(ask())
    text = response["explanation"]
    assert all(f"{w['accelerator']}:{w['device']}" in text for w in workers(response))
    assert all(row["name"] in text for row in response["alternatives"])
    infeasible = plan(ask(nodes=[{"name": "a", "devices": ["rtx4090"] * 3}], links=[]))
    assert infeasible["explanation"].startswith("No plan")
    assert "It would fit with one of" in infeasible["explanation"]


def test_picture_is_well_formed_and_shows_every_worker() -> None:
    response = plan(ask())
    texts = [e.text for e in ElementTree.fromstring(svg(response)).iter() if e.text and e.text.strip()]
    assert all(f"rank {w['rank']} · stage {i}" in texts for i, w in enumerate(workers(response)))
    ElementTree.fromstring(svg(plan(ask(nodes=[{"name": "a<&>", "devices": ["rtx4090"]}], links=[]))))


# --------------------------------------------------------------------------------------------------------------- launch


def test_launch_block() -> None:
    request = ask(nodes=X86_ENGINE, engine={"args": ["--dtype", "bfloat16", "--max-num-seqs=4"], "env": {"A": "1"}, "port": 8001}, dtype="bfloat16")
    response = plan(request)
    engine = response["engine"]
    args = engine["args"]
    assert args[args.index("--pipeline-parallel-size") + 1] == str(response["pipeline"])
    assert args[args.index("--port") + 1] == "8001"
    assert args[args.index("--gpu-memory-utilization") + 1] == f"{response['gpu_memory_utilization']:g}"
    assert args[args.index("--distributed-executor-backend") + 1] == "ray"
    assert args.count("--dtype") == 1
    assert "--max-num-seqs" not in args  # the operator's own form of it is there
    assert args[-3:] == ["--dtype", "bfloat16", "--max-num-seqs=4"]
    assert engine["env"] == {"A": "1", "RAY_DEDUP_LOGS": "0", "VLLM_PP_LAYER_PARTITION": response["layer_partition"]}
    assert engine["node_env"]["spark-01"] == {"VLLM_HOST_IP": "10.0.0.10", "RAY_memory_monitor_refresh_ms": "0"}
    assert engine["ray_gpus"] == {"x86-01": 2, "spark-01": 1}


def test_a_node_that_gives_some_devices_names_them() -> None:
    response = plan(ask(nodes=X86_ENGINE, engine={"partition_by_node": {"spark-01": 60, "x86-01": 20}}))
    assert response["engine"]["node_env"]["x86-01"]["CUDA_VISIBLE_DEVICES"] == "0"
    assert response["engine"]["ray_gpus"]["x86-01"] == 1


@pytest.mark.parametrize(("launcher", "version"), [("ray", "0.17.1"), ("native", "0.32.0")])
def test_version_by_default(launcher: str, version: str) -> None:
    request = ask(engine={"launcher": launcher})
    request["engine"].pop("version")
    assert plan(request)["engine"]["version"] == version


# --------------------------------------------------------------------------------------------------------------- models


@pytest.mark.parametrize(
    ("name", "total", "layer"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 8030261248, 218112000),
        ("meta-llama/Llama-3.1-70B-Instruct", 70553706496, 855654400),
        ("meta-llama/Llama-3.2-3B-Instruct", 3212749824, 100669440),
        ("Qwen/Qwen2.5-7B-Instruct", 7615616512, 233057792),
        ("Qwen/Qwen2.5-72B-Instruct", 72706203648, 877684736),
        ("Qwen/Qwen3-32B", 32762123264, 487598336),
        ("Qwen/Qwen3-30B-A3B", 30532122624, 623120640),
        ("mistralai/Mistral-Large-Instruct-2407", 122610069504, 1384144896),
    ],
)
def test_parameters_of_the_table_models(name: str, total: int, layer: int) -> None:
    model = from_name(name)
    kind = model.kinds[0]
    count = kind.plain + sum(li.copies * (li.inputs * li.outputs + (li.outputs if li.bias else 0)) for li in kind.linears)
    assert count == layer
    tables = model.vocab * model.hidden * (1 if model.tied else 2)
    assert model.layers * count + tables + model.hidden == total


def test_every_model_of_the_table_is_readable() -> None:
    assert all(from_name(name).layers > 0 for name in MODELS)


@pytest.mark.parametrize(
    ("layers", "stages", "expected"),
    [
        (61, 3, [20, 21, 20]), (61, 16, [3, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 3]), (43, 2, [22, 21]), (80, 3, [27, 27, 26]),
        (48, 5, [9, 10, 10, 10, 9]), (36, 8, [4, 4, 4, 5, 5, 5, 5, 4]), (28, 3, [9, 10, 9]), (81, 2, [41, 40]), (5, 1, [5]),
    ],
)  # fmt: skip
def test_default_partition(layers: int, stages: int, expected: list[int]) -> None:
    assert default_partition(layers, stages) == expected


@pytest.mark.parametrize(
    ("changes", "tensor", "text"),
    [
        ({"num_attention_heads": 32}, 3, "Total number of attention heads (32) must be divisible by tensor parallel size (3)."),
        ({"intermediate_size": 29568, "quantization_config": {"quant_method": "awq", "group_size": 128}}, 2, "29568/2 = 14784 is not a multiple of group_size 128"),
        (
            {"num_attention_heads": 128, "intermediate_size": 18432, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
            32,
            "18432/32 = 576 is not a multiple of the quantisation block 128",
        ),
        ({"num_attention_heads": 12, "num_key_value_heads": 4}, 6, "4 key-value heads and tensor parallel size 6"),
    ],
)  # fmt: skip
def test_tensor_sizes_that_are_refused(changes: dict[str, Any], tensor: int, text: str) -> None:
    config = {**starts.LLAMA_8B, "num_key_value_heads": 4, **changes}
    config.pop("head_dim")
    assert any(text in reason for reason in tensor_refusals(from_config(config), tensor))


def test_largest_tensor_size_of_a_block_quantised_moe() -> None:
    config = {**starts.DEEPSEEK_V2_LITE, "num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048,
              "n_routed_experts": 256, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}  # fmt: skip
    model = from_config(config)
    assert [t for t in (1, 2, 4, 8, 16, 32) if not tensor_refusals(model, t)] == [1, 2, 4, 8, 16]
    assert "2048/32 = 64 is not a multiple of the quantisation block 128" in tensor_refusals(model, 32)


def test_an_unknown_architecture_is_planned_with_a_warning() -> None:
    response = plan(small(config={**SMALL_LLAMA, "architectures": ["NovelForCausalLM"]}))
    assert response["feasible"]
    assert any("NovelForCausalLM is not in the table" in text for text in response["warnings"])


def test_a_float32_checkpoint_is_served_in_half_unless_told() -> None:
    assert from_config(SMALL_LLAMA).dtype == "bfloat16"
    assert from_config(SMALL_LLAMA, dtype="float32").dtype == "float32"


# --------------------------------------------------------------------------------------------------------------- inputs


def test_digest_is_of_the_inputs_alone() -> None:
    request = ask()
    assert plan(request)["inputs_sha256"] == digest(request)
    assert digest({**request, "config": {"a": 1}}) == digest(request)
    assert digest({**request, "observed": {"log": "x"}}) == digest(request)
    assert digest(ask(objective="latency")) != digest(request)


def test_planning_twice_gives_the_same() -> None:
    assert plan(ask()) == plan(ask())


def test_observed_log_is_set_against_the_plan() -> None:
    log = "\n".join([
        "(Worker_PP0 pid=1) INFO [gpu_model_runner.py:1] Model loading took 9.15 GiB memory and 3.1 seconds",
        "(Worker_PP1 pid=2) INFO [gpu_model_runner.py:1] Model loading took 5.90 GiB memory and 3.0 seconds",
        "(Worker_PP0 pid=1) INFO [gpu_worker.py:1] Available KV cache memory: 114.83 GiB",
        "(EngineCore pid=9) INFO [kv_cache_utils.py:1] GPU KV cache size: 1,505,072 tokens",
    ])  # fmt: skip
    start = next(s for s in starts.EXACT if s.id == "llama8b-graphs-20-12")
    rows = plan({**starts.request(start), "observed": {"log": log}})["observed"]
    assert [(r["rank"], r["figure"]) for r in rows] == [(0, "weights_gib"), (1, "weights_gib"), (0, "kv_gib"), (None, "kv_tokens")]
    assert all(abs(r["difference"]) < 0.02 for r in rows)
