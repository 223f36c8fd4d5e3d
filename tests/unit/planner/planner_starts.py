# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Engine starts that were measured: vLLM 0.25.1, two H200s in one host, random weights, prefix caching off.

load is what each rank counted for "Model loading took"; blocks and tokens are the KV cache's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

LLAMA = {"architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", "vocab_size": 128256, "max_position_embeddings": 131072, "head_dim": 128}
LLAMA_3B = {
    **LLAMA,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 28,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
}
LLAMA_8B = {**LLAMA, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}
LLAMA_70B = {**LLAMA, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8}
QWEN_30B_A3B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "torch_dtype": "bfloat16",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}
GEMMA_27B = {
    "architectures": ["Gemma3ForCausalLM"],
    "torch_dtype": "bfloat16",
    "hidden_size": 5376,
    "intermediate_size": 21504,
    "num_hidden_layers": 62,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "head_dim": 128,
    "vocab_size": 262208,
    "sliding_window": 1024,
    "sliding_window_pattern": 6,
    "max_position_embeddings": 131072,
}
GPT_OSS_20B = {
    "architectures": ["GptOssForCausalLM"],
    "torch_dtype": "bfloat16",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 201088,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "attention_bias": True,
    "quantization_config": {"quant_method": "mxfp4"},
}
DEEPSEEK_V2_LITE = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "torch_dtype": "bfloat16",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "vocab_size": 102400,
    "max_position_embeddings": 163840,
    "tie_word_embeddings": False,
}
QWEN_72B_AWQ = {
    "architectures": ["Qwen2ForCausalLM"], "torch_dtype": "float16", "hidden_size": 8192, "intermediate_size": 29696, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 152064, "max_position_embeddings": 32768, "tie_word_embeddings": False,
    "sliding_window": None, "use_sliding_window": False,
    "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
}  # fmt: skip


@dataclass(frozen=True)
class Start:
    """One start: what was asked, and what each rank reported."""

    id: str
    config: dict[str, Any]
    pipeline: int
    tensor: int
    partition: str | None
    load: tuple[int, ...] = ()
    load_gib: tuple[float, ...] = ()
    blocks: int | None = None
    tokens: int | None = None
    within: float = 0.01  # of load
    options: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    max_model_len: int = 8192


EXACT = (
    Start("llama8b-tp2", LLAMA_8B, 1, 2, None, (8091410432, 8091410432), (), 119483, 1911728, 0.0005),
    Start("llama70b-fp8-50-30", LLAMA_70B, 2, 1, "50,30", (44952275968, 27838764032), (), 26404, 422464, 0.01, {"quantization": "fp8"}),
    Start("qwen30b-30-18", QWEN_30B_A3B, 2, 1, "30,18", (38643513344, 23688587264), (), 96257, 1540112, 0.0005),
    Start("gemma27b-40-22", GEMMA_27B, 2, 1, "40,22", (36024634368, 21113054208), (), 122040, 278482, 0.002),
    Start("gptoss20b-14-10", GPT_OSS_20B, 2, 1, "14,10", (9133293568, 7196069888), (), 543842, 4346491),
    Start("llama70b-tp2", LLAMA_70B, 1, 2, None, (70588743680, 70588743680), (), 23530, 376480, 0.0005),
    Start("llama8b-graphs-20-12", LLAMA_8B, 2, 1, "20,12", (9825525760, 6335725568), (), 94067, 1505072, 0.0005, engine={"enforce_eager": False}),
    Start("dsv2lite", DEEPSEEK_V2_LITE, 1, 1, None, (31505036800,), (), 203929, 3262864),
    Start("qwen72b-awq-tp2", QWEN_72B_AWQ, 1, 2, None, (21259304960, 21259304960), (), 42135, 674160),
)
ROUNDED = (
    Start("llama3b-25-3", LLAMA_3B, 2, 1, "25,3", (), (5.47, 1.35), None, 1250112),
    Start("llama70b-60-20", LLAMA_70B, 2, 1, "60,20", (), (97.62, 33.86), None, 108064),
    Start("llama3b-even", LLAMA_3B, 2, 1, "14,14", (), (3.41, 3.41), None, 2270976),
    Start("llama3b-tp2", LLAMA_3B, 1, 2, None, (), (3.08, 3.08), None, 2271888),
    Start("llama8b-alone", LLAMA_8B, 1, 1, None, (), (15.0,), None, 891872, max_model_len=32768),
)
REFUSED = Start("llama70b-76-4", LLAMA_70B, 2, 1, "76,4")


def request(start: Start) -> dict[str, Any]:
    """The request that asks for exactly this start."""
    return {
        "config": start.config,
        **start.options,
        "nodes": [{"name": "host", "address": "10.0.0.1", "devices": ["h200"] * (start.pipeline * start.tensor)}],
        "workload": {"max_model_len": start.max_model_len, "concurrency": 8},
        "engine": {
            "version": "0.25.1",
            "launcher": "native",
            "gpu_memory_utilization": 0.9,
            "pipeline": start.pipeline,
            "tensor": start.tensor,
            "partition": start.partition,
            "max_num_batched_tokens": 16384,
            "max_num_seqs": 1024,
            "enforce_eager": True,
            **start.engine,
        },
    }
