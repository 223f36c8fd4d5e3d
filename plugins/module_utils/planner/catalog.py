# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Models that can be named without their config.json. Values of the published config.json files; a new model is a new row."""

from __future__ import annotations

from typing import Any


def _row(
    architecture: str, hidden: int, inter: int, layers: int, heads: int, kv_heads: int, vocab: int, position: int, **more: Any
) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "hidden_size": hidden,
        "intermediate_size": inter,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": position,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        **more,
    }


_LLAMA_70B = _row("LlamaForCausalLM", 8192, 28672, 80, 64, 8, 128256, 131072, head_dim=128)
_QWEN_72B = _row("Qwen2ForCausalLM", 8192, 29568, 80, 64, 8, 152064, 32768)
_AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
_MXFP4 = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
}


def _gpt_oss(layers: int, experts: int) -> dict[str, Any]:
    return _row(
        "GptOssForCausalLM", 2880, 2880, layers, 64, 8, 201088, 131072, head_dim=64, num_local_experts=experts, num_experts_per_tok=4,
        sliding_window=128, layer_types=["sliding_attention", "full_attention"] * (layers // 2), attention_bias=True,
        quantization_config=_MXFP4,
    )  # fmt: skip


MODELS: dict[str, dict[str, Any]] = {
    "deepseek-ai/DeepSeek-R1-Distill-Llama-70B": _LLAMA_70B,
    "meta-llama/Llama-3.1-70B-Instruct": _LLAMA_70B,
    "meta-llama/Llama-3.3-70B-Instruct": _LLAMA_70B,
    "meta-llama/Llama-3.1-8B-Instruct": _row("LlamaForCausalLM", 4096, 14336, 32, 32, 8, 128256, 131072, head_dim=128),
    "meta-llama/Llama-3.2-3B-Instruct": _row("LlamaForCausalLM", 3072, 8192, 28, 24, 8, 128256, 131072, head_dim=128, tie_word_embeddings=True),
    "mistralai/Mistral-Large-Instruct-2407": _row("MistralForCausalLM", 12288, 28672, 88, 96, 8, 32768, 131072, head_dim=128),
    "Qwen/Qwen2.5-72B-Instruct": _QWEN_72B,
    "Qwen/Qwen2.5-72B-Instruct-AWQ": {**_QWEN_72B, "intermediate_size": 29696, "torch_dtype": "float16", "quantization_config": _AWQ},
    "Qwen/Qwen2.5-7B-Instruct": _row("Qwen2ForCausalLM", 3584, 18944, 28, 28, 4, 152064, 32768),
    "Qwen/Qwen3-32B": _row("Qwen3ForCausalLM", 5120, 25600, 64, 64, 8, 151936, 40960, head_dim=128),
    "Qwen/Qwen3-30B-A3B": _row(
        "Qwen3MoeForCausalLM", 2048, 6144, 48, 32, 4, 151936, 40960, head_dim=128, moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8
    ),
    "openai/gpt-oss-20b": _gpt_oss(24, 32),
    "openai/gpt-oss-120b": _gpt_oss(36, 128),
}
