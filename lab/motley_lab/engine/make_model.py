# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the lab's model: a 28-layer Llama of 84 MB with random weights that writes printable text. `make_model.py DIR [--config-only]`

Runs in the engine's Python (numpy, safetensors, tokenizers); `--config-only`, for the stub engine, needs the standard library
alone. The same files result on every run.
"""

from __future__ import annotations

import json
import pathlib
import sys
import typing

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, VOCABULARY, LENGTH = 28, 256, 4, 2, 64, 704, 512, 2048
SPECIAL = ["<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
    "vocab_size": VOCABULARY, "max_position_embeddings": LENGTH, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False, "torch_dtype": "float32", "bos_token_id": 0, "eos_token_id": 1,
}
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def tokenizer() -> typing.Any:
    """Bytes, frequent pairs of letters to fill the vocabulary, and the special tokens first."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, merges = list(SPECIAL) + sorted(pre_tokenizers.ByteLevel.alphabet()), []
    for first in ["Ġ", *"etaoinshrdluc"]:
        for second in "etaoinshrdlucmfwygpb":
            if len(tokens) < VOCABULARY:
                merges.append((first, second))
                tokens.append(first + second)
    made = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return made


def weights(printable: list[bool]) -> dict[str, typing.Any]:
    """Random; the first hidden channel is held high, and the head turns it against every token that does not print."""
    import numpy

    generator = numpy.random.default_rng(28)

    def draw(rows: int, columns: int, scale: float = 0.05) -> typing.Any:
        return (generator.standard_normal((rows, columns)) * scale).astype(numpy.float32)

    ones = numpy.ones(HIDDEN, numpy.float32)
    made = {"model.embed_tokens.weight": draw(VOCABULARY, HIDDEN, 1.0), "lm_head.weight": draw(VOCABULARY, HIDDEN, 0.3), "model.norm.weight": ones}
    made["model.embed_tokens.weight"][:, 0] = 8.0
    made["lm_head.weight"][:, 0] = numpy.where(printable, 0.0, -20.0)
    for layer in range(LAYERS):
        base = f"model.layers.{layer}"
        for name, rows, columns in (
            ("self_attn.q_proj", HEADS * HEAD_DIM, HIDDEN), ("self_attn.k_proj", KV_HEADS * HEAD_DIM, HIDDEN),
            ("self_attn.v_proj", KV_HEADS * HEAD_DIM, HIDDEN), ("self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM),
            ("mlp.gate_proj", INTERMEDIATE, HIDDEN), ("mlp.up_proj", INTERMEDIATE, HIDDEN), ("mlp.down_proj", HIDDEN, INTERMEDIATE),
        ):
            made[f"{base}.{name}.weight"] = draw(rows, columns)
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            made[f"{base}.{name}.weight"][0] = 0.0
        made |= {f"{base}.input_layernorm.weight": ones.copy(), f"{base}.post_attention_layernorm.weight": ones.copy()}
    return made


def make(folder: pathlib.Path, *, config_only: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if not config_only:
        _make_weights(folder)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "model_max_length": LENGTH,
                "chat_template": TEMPLATE, "clean_up_tokenization_spaces": False}  # fmt: skip
    for name, content in (("tokenizer_config.json", settings), ("config.json", CONFIG),
                          ("generation_config.json", {"bos_token_id": 0, "eos_token_id": 1})):  # fmt: skip
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")


def _make_weights(folder: pathlib.Path) -> None:
    from safetensors.numpy import save_file

    words = tokenizer()
    words.save(str(folder / "tokenizer.json"))
    printable = [words.decode([index]).isprintable() and words.decode([index]).isascii() for index in range(VOCABULARY)]
    save_file(weights([fine and index >= len(SPECIAL) for index, fine in enumerate(printable)]),
              str(folder / "model.safetensors"), metadata={"format": "pt"})


if __name__ == "__main__":
    make(pathlib.Path(sys.argv[1]), config_only="--config-only" in sys.argv[2:])
