# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts of a model: bytes of weights and KV cache, layer by layer, as vLLM holds them for a tensor size.

The figures come from the shapes in config.json. `tests/unit/planner/test_engine_logs.py` compares them with engine starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.planner.catalog import MODELS
from ansible_collections.motley.inference.plugins.module_utils.planner.device import nearest

MIB = 1 << 20
DTYPES: dict[str, int] = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4}
VOCAB_PADDING = 64  # vLLM pads the vocabulary to a multiple of this before it divides by the tensor size

Cut = Literal["column", "row", "none"]


@dataclass(frozen=True)
class Weights:
    """How a format stores a linear layer of `inputs` x `outputs`."""

    method: str  # "none", "fp8", "fp8-block", "awq", "gptq", "int4", "nvfp4", "mxfp4", "int8"
    bits: int
    group: int | None = None
    block: tuple[int, int] | None = None

    def size(self, inputs: int, outputs: int, dtype_bytes: int, *, zero_bytes: float = 0.5) -> list[int]:
        """Bytes of each tensor of the layer."""
        values = inputs * outputs
        match self.method:
            case "none":
                return [values * dtype_bytes]
            case "fp8-block" if self.block:
                return [values, -(-inputs // self.block[1]) * -(-outputs // self.block[0]) * 4]
            case "fp8":
                return [values, 4]
            case "awq" | "gptq" | "int4":
                groups = -(-inputs // (self.group or inputs))
                zeros = int(groups * outputs * zero_bytes) if self.method == "awq" else 0
                return [values * self.bits // 8, groups * outputs * dtype_bytes, zeros]
            case "nvfp4":
                return [values // 2, values // 16, 8]
            case "mxfp4":
                return [values // 2, values // 32]
            case _:
                return [values * self.bits // 8, outputs * 4]


PLAIN = Weights("none", 16)


@dataclass(frozen=True)
class Linear:
    """One weight matrix; `copies` of it for experts."""

    inputs: int
    outputs: int
    cut: Cut = "none"
    quantised: bool = True
    copies: int = 1
    bias: bool = False
    kv_outputs: int = 0  # of `outputs`, how many belong to key and value heads, which are copied when there are too few
    role: str = ""


@dataclass(frozen=True)
class LayerKind:
    """Layers of equal cost share one of these."""

    linears: tuple[Linear, ...]
    plain: int  # elements that every tensor rank holds whole: norms, sinks
    experts: int = 0
    active_experts: int = 0
    extra_bytes: int = 0  # held whole by every tensor rank, in bytes


@dataclass(frozen=True)
class KvGroup:
    """Layers whose blocks come from one table (vLLM's KV cache group)."""

    layers: tuple[int, ...]
    window: int | None  # tokens of a sliding window; None is full attention


@dataclass(frozen=True)
class ModelFacts:
    """What the planner knows of one model."""

    name: str
    architecture: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_position: int
    tied: bool
    dtype: str
    weights: Weights
    kinds: tuple[LayerKind, ...]
    kind_of: tuple[int, ...]
    kv_groups: tuple[KvGroup, ...]
    rotary_dim: int
    rope_caches: int = 1
    mla: tuple[int, int] | None = None  # kv_lora_rank, qk_rope_head_dim
    table_on_every_stage: bool = False
    logit_dtype_bytes: int = 4
    moe_intermediate: int = 0
    kv_dtype: str = "auto"
    warnings: tuple[str, ...] = field(default=())

    def __hash__(self) -> int:
        return hash((self.name, self.layers, self.hidden, self.dtype, self.weights))

    @property
    def dtype_bytes(self) -> int:
        return DTYPES[self.dtype]

    @property
    def kv_dtype_bytes(self) -> int:
        return 1 if self.kv_dtype.startswith("fp8") else self.dtype_bytes

    def kv_bytes_per_token(self, tensor: int) -> int:
        """KV bytes of one token in one layer on one worker."""
        if self.mla:
            return sum(self.mla) * self.kv_dtype_bytes
        return 2 * max(1, self.kv_heads // tensor) * self.head_dim * self.kv_dtype_bytes


@dataclass(frozen=True)
class LayerBytes:
    """One layer on one worker."""

    load: int  # as the allocator counts it
    read: int  # read for each token whatever the batch
    expert: int  # bytes of one routed expert, read when some token of the batch asks for it
    flops: float  # multiply-adds x 2 for one token


@dataclass(frozen=True)
class WeightTable:
    """All that a tensor size and a backend decide about the weights of a model."""

    kinds: tuple[LayerBytes, ...]
    embedding: int
    head: int
    norm: int
    rope: int
    rope_waste: tuple[int, ...]  # by number of layers on the worker (capped): what reuse of freed blocks wastes


def rounded(size: int) -> int:
    """Bytes that PyTorch's allocator takes for one tensor while vLLM loads weights.

    vLLM sets max_split_size_mb to 20, so a block beyond that is not split: whole pieces of 2 MiB.
    """
    if size <= 10 * MIB:
        return -(-size // 512) * 512
    whole = -(-size // (2 * MIB)) * 2 * MIB
    return whole if size > 20 * MIB or whole - size <= MIB else -(-size // 512) * 512


def linear_tensors(model: ModelFacts, linear: Linear, tensor: int, capability: str) -> list[int]:
    """Bytes of the tensors of one linear layer on one worker."""
    inputs, outputs = linear.inputs, linear.outputs
    match linear.cut:
        case "column":
            own_kv = linear.kv_outputs
            if own_kv and model.kv_heads < tensor:
                own_kv = 2 * model.head_dim * tensor
            outputs = (outputs - linear.kv_outputs) // tensor + own_kv // tensor
        case "row":
            inputs //= tensor
        case _:
            pass
    form = model.weights if linear.quantised else PLAIN
    zero_bytes = 2.0 if capability == "9.0" else 0.5  # Hopper's kernel keeps AWQ zero points unpacked, seen in 0.25.1
    if form.method == "mxfp4" and capability != "9.0":  # Marlin pads both sides; Hopper's kernel does not
        inner, outer = (256, 128) if linear.role == "down" else (128, 256)
        inputs, outputs = -(-inputs // inner) * inner, -(-outputs // outer) * outer
    sizes = [s * linear.copies for s in form.size(inputs, outputs, model.dtype_bytes, zero_bytes=zero_bytes)]
    if linear.bias:
        bias_bytes = 4 if form.method == "mxfp4" else model.dtype_bytes
        sizes.append(outputs * linear.copies * bias_bytes)
    return [s for s in sizes if s]


def _layer(model: ModelFacts, kind: LayerKind, tensor: int, *, cuda: bool, capability: str) -> LayerBytes:
    load = read = expert = 0
    flops = 0.0
    for linear in kind.linears:
        sizes = linear_tensors(model, linear, tensor, capability)
        load += sum(rounded(s) if cuda else s for s in sizes)
        share = 1 if linear.cut == "none" else tensor
        if linear.copies > 1:
            expert += sum(sizes) // linear.copies
            flops += 2.0 * linear.inputs * linear.outputs * kind.active_experts / share
        else:
            read += sum(sizes)
            flops += 2.0 * linear.inputs * linear.outputs / share
    plain = kind.plain * model.dtype_bytes + kind.extra_bytes
    return LayerBytes(load + plain + (4 * 512 if cuda else 16), read + plain, expert, flops)


def _rope_waste(model: ModelFacts, kinds: Sequence[LayerKind], tensor: int, capability: str) -> tuple[int, ...]:
    """Bytes lost when weights move into blocks that the rope cache's making left free, by number of layers.

    Making it leaves three float32 blocks free: two of half its elements and one of all. A block of more than 20 MiB is not
    split, and taken by a tensor that fills all but 20 MiB of it.
    """
    elements = model.max_position * model.rotary_dim
    free = sorted(b for b in (elements * 2, elements * 2, elements * 4) if b > 20 * MIB)
    waste, total, out = list(free), 0, [0]
    order = [t for linear in kinds[0].linears[2:] for t in linear_tensors(model, linear, tensor, capability)]
    for kind in kinds[1:4]:
        out.append(total)
        for size in order:
            fit = next((b for b in waste if b >= size > max(20 * MIB, b - 20 * MIB)), None)
            if fit is not None:
                waste.remove(fit)
                total += fit - rounded(size)
        out[-1] = total
        order = [t for linear in kind.linears for t in linear_tensors(model, linear, tensor, capability)]
    return tuple(out)


@lru_cache(maxsize=256)
def weight_table(model: ModelFacts, tensor: int, cuda: bool, capability: str) -> WeightTable:
    """Bytes per kind of layer and of the parts that only some stages hold."""
    padded = -(-model.vocab // VOCAB_PADDING) * VOCAB_PADDING
    table = padded // tensor * model.hidden * model.dtype_bytes
    size = rounded(table) if cuda else table
    rope = model.max_position * model.rotary_dim * model.dtype_bytes * model.rope_caches
    order = [model.kinds[k] for k in model.kind_of]
    uses_waste = cuda and model.weights.method == "none" and not model.mla
    return WeightTable(
        kinds=tuple(_layer(model, kind, tensor, cuda=cuda, capability=capability) for kind in model.kinds),
        embedding=size,
        head=size,
        norm=model.hidden * model.dtype_bytes,
        rope=rounded(rope) if cuda else rope,
        rope_waste=_rope_waste(model, order, tensor, capability) if uses_waste else (0,),
    )


# ---------------------------------------------------------------------------------------------------------------- config.json


def _number(config: Mapping[str, Any], key: str, default: int | None = None, *, least: int = 1) -> int:
    value = config.get(key)
    if value is None:
        if default is None:
            raise MotleyError(f"config.json has no {key!r}", hint="give the config.json of a causal language model")
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 10**9:
        raise MotleyError(f"config.json: {key!r} must be a whole number of at least {least}, not {value!r}", hint="use the model's own config.json")
    return value


def _quantisation(config: Mapping[str, Any], wanted: str | None) -> Weights:
    given = config.get("quantization_config") or config.get("compression_config")
    if given is not None and not isinstance(given, Mapping):
        raise MotleyError("config.json: 'quantization_config' must be a mapping", hint="use the model's own config.json")
    if not given:
        return _named_format(wanted)
    method = str(given.get("quant_method", "")).lower()
    form = _checkpoint_format(method, given)
    if wanted and not _compatible(wanted, method):
        raise MotleyError(
            f"the checkpoint is quantised by {method!r}, not by {wanted!r}", hint=f"leave the quantisation out, or name a checkpoint made by {wanted}"
        )
    return form


def _compatible(wanted: str, method: str) -> bool:
    return wanted.split("_")[0].split("-")[0] == method.split("_")[0].split("-")[0]


def _named_format(wanted: str | None) -> Weights:
    match (wanted or "none").lower():
        case "none":
            return PLAIN
        case "fp8":
            return Weights("fp8", 8)
        case "awq" | "awq_marlin":
            return Weights("awq", 4, group=128)
        case "gptq" | "gptq_marlin":
            return Weights("gptq", 4, group=128)
        case "nvfp4" | "modelopt_fp4":
            return Weights("nvfp4", 4, group=16)
        case "mxfp4":
            return Weights("mxfp4", 4, group=32)
        case other:
            known = ["fp8", "awq", "gptq", "nvfp4", "mxfp4"]
            raise MotleyError(f"unknown quantisation {other!r}", hint=nearest(other, known))


def _checkpoint_format(method: str, given: Mapping[str, Any]) -> Weights:
    match method:
        case "awq" | "gptq" | "auto-round":
            bits = _number(given, "bits", 4)
            group = given.get("group_size", 128)
            name = "awq" if method == "awq" else "gptq"
            return Weights(name, bits, group=group if isinstance(group, int) and group > 0 else None)
        case "fp8" | "fbgemm_fp8":
            block = given.get("weight_block_size")
            if isinstance(block, (list, tuple)) and len(block) == 2 and all(isinstance(b, int) and b > 0 for b in block):
                return Weights("fp8-block", 8, block=(block[0], block[1]))
            return Weights("fp8", 8)
        case "mxfp4":
            return Weights("mxfp4", 4, group=32)
        case "modelopt" | "modelopt_fp4":
            algorithm = str(
                given.get("quant_algo", given.get("quantization", {}).get("quant_algo", "") if isinstance(given.get("quantization"), Mapping) else "")
            )
            return Weights("nvfp4", 4, group=16) if "FP4" in algorithm.upper() or method.endswith("fp4") else Weights("fp8", 8)
        case "compressed-tensors":
            return _compressed(given)
        case other:
            raise MotleyError(f"unknown quantisation {other!r} in config.json", hint="known: awq, gptq, fp8, mxfp4, modelopt, compressed-tensors")


def _compressed(given: Mapping[str, Any]) -> Weights:
    groups = given.get("config_groups")
    first: Any = next(iter(groups.values()), {}) if isinstance(groups, Mapping) and groups else {}
    weights = first.get("weights", {}) if isinstance(first, Mapping) else {}
    weights = weights if isinstance(weights, Mapping) else {}
    bits, kind = _number(weights, "num_bits", 8), str(weights.get("type", "int"))
    group = weights.get("group_size")
    group = group if isinstance(group, int) and group > 0 else None
    if bits == 4 and kind == "float":
        return Weights("nvfp4", 4, group=group or 16)
    if bits == 4:
        return Weights("int4", 4, group=group)
    return Weights("fp8", 8) if kind == "float" else Weights("int8", bits)


@dataclass(frozen=True)
class _Shape:
    """The fields of config.json that several of the functions below need."""

    architecture: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int


_QK_NORM = ("Qwen3", "Gemma3", "Olmo2")
_QKV_BIAS = ("Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration")
# Models whose class makes the embedding, the head and the final norm on every stage, whatever it needs (code of 0.32.0).
_TABLE_EVERYWHERE = (
    "GptOss", "Qwen2Moe", "Qwen3Moe", "Qwen3Next", "Mixtral", "Gemma2", "Gemma3", "Cohere", "GraniteMoe", "PhiMoE", "Dbrx",
)  # fmt: skip
_KNOWN = (
    "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM",
    "MixtralForCausalLM", "GptOssForCausalLM", "Gemma3ForCausalLM", "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM",
)  # fmt: skip


def _attention(config: Mapping[str, Any], shape: _Shape) -> tuple[list[Linear], int]:
    """Matrices of the attention part and the plain elements beside them."""
    if config.get("kv_lora_rank"):
        return _latent_attention(config, shape)
    kv = 2 * shape.kv_heads * shape.head_dim
    query = shape.heads * shape.head_dim
    oss = shape.architecture.startswith("GptOss")
    bias = bool(config.get("attention_bias")) or shape.architecture in _QKV_BIAS
    plain = 2 * shape.head_dim if shape.architecture.startswith(_QK_NORM) else 0
    return (
        [
            Linear(shape.hidden, query + kv, "column", quantised=not oss, bias=bias, kv_outputs=kv, role="qkv"),
            Linear(query, shape.hidden, "row", quantised=not oss, bias=bool(config.get("attention_bias")), role="o"),
        ],
        plain + (shape.heads if oss else 0),
    )


def _latent_attention(config: Mapping[str, Any], shape: _Shape) -> tuple[list[Linear], int]:
    nope, rope = _number(config, "qk_nope_head_dim"), _number(config, "qk_rope_head_dim")
    value, rank = _number(config, "v_head_dim"), _number(config, "kv_lora_rank")
    query_rank = config.get("q_lora_rank")
    query = shape.heads * (nope + rope)
    linears = [
        Linear(shape.hidden, rank + rope),
        Linear(rank, shape.heads * (nope + value), "column"),
        Linear(shape.heads * value, shape.hidden, "row", role="o"),
    ]
    if query_rank:
        query_rank = _number(config, "q_lora_rank")
        return [Linear(shape.hidden, query_rank), Linear(query_rank, query, "column"), *linears], rank + query_rank
    return [Linear(shape.hidden, query, "column"), *linears], rank


def _dense_mlp(shape: _Shape, width: int) -> list[Linear]:
    return [Linear(shape.hidden, 2 * width, "column", role="gate_up"), Linear(width, shape.hidden, "row", role="down")]


def _expert_mlp(config: Mapping[str, Any], shape: _Shape, experts: int, width: int) -> list[Linear]:
    oss = shape.architecture.startswith("GptOss")
    linears = [
        Linear(shape.hidden, experts, quantised=False, bias=oss, role="router"),
        Linear(shape.hidden, 2 * width, "column", copies=experts, bias=oss, role="gate_up"),
        Linear(width, shape.hidden, "row", copies=experts, bias=oss, role="down"),
    ]
    shared = _number(config, "n_shared_experts", 0, least=0) * width or _number(config, "shared_expert_intermediate_size", 0, least=0)
    if shared:
        linears += _dense_mlp(shape, shared)
    if config.get("shared_expert_intermediate_size"):
        linears.append(Linear(shape.hidden, 1, quantised=False))
    return linears


def _is_moe_layer(config: Mapping[str, Any], index: int) -> bool:
    only = config.get("mlp_only_layers") or []
    if index < _number(config, "first_k_dense_replace", 0, least=0) or (isinstance(only, (list, tuple)) and index in only):
        return False
    step = _number(config, "decoder_sparse_step", 1)
    every = _number(config, "moe_layer_freq", 1)
    return (index + 1) % step == 0 and index % every == 0


def _kinds(config: Mapping[str, Any], shape: _Shape) -> tuple[tuple[LayerKind, ...], tuple[int, ...], int]:
    attention, plain = _attention(config, shape)
    norms = 4 if shape.architecture.startswith("Gemma3") else 2
    plain += norms * shape.hidden
    dense = LayerKind(tuple(attention + _dense_mlp(shape, shape.intermediate)), plain)
    experts = next((_number(config, k) for k in ("num_experts", "n_routed_experts", "num_local_experts") if config.get(k)), 0)
    if not experts:
        return (dense,), (0,) * shape.layers, 0
    width = _number(config, "moe_intermediate_size", shape.intermediate)
    active = next((_number(config, k) for k in ("num_experts_per_tok", "experts_per_token") if config.get(k)), 1)
    if active > experts:
        raise MotleyError(f"config.json: {active} active experts of {experts}", hint="use the model's own config.json")
    sparse = LayerKind(tuple(attention + _expert_mlp(config, shape, experts, width)), plain, experts, active)
    flags = tuple(_is_moe_layer(config, i) for i in range(shape.layers))
    if all(flags):
        return (sparse,), (0,) * shape.layers, width
    return (dense, sparse), tuple(int(f) for f in flags), width


def _windows(config: Mapping[str, Any], layers: int, architecture: str) -> list[int | None]:
    window = config.get("sliding_window")
    if not window or config.get("use_sliding_window") is False:
        return [None] * layers
    window = _number(config, "sliding_window")
    types = config.get("layer_types")
    if isinstance(types, (list, tuple)):
        if len(types) != layers:
            raise MotleyError(f"config.json: 'layer_types' has {len(types)} entries for {layers} layers", hint="use the model's own config.json")
        return [window if t == "sliding_attention" else None for t in types]
    pattern = config.get("sliding_window_pattern") or (6 if architecture.startswith("Gemma3") else 0)
    if pattern:
        return [None if (i + 1) % pattern == 0 else window for i in range(layers)]
    return [window] * layers


def kv_groups(windows: Sequence[int | None]) -> tuple[KvGroup, ...]:
    """Groups of equal size, as vLLM makes them over the whole model: each type in as many groups as the smallest type's size asks for."""
    by_type: dict[int | None, list[int]] = {}
    for layer, window in enumerate(windows):
        by_type.setdefault(window, []).append(layer)
    if len(by_type) == 1:
        return (KvGroup(tuple(range(len(windows))), windows[0]),)
    sizes = [len(v) for v in by_type.values()]
    size = max(sizes) if max(sizes) < min(sizes) * 1.25 else min(sizes)
    groups = []
    for window, layers in by_type.items():
        count = -(-len(layers) // size)
        groups += [KvGroup(tuple(layers[i::count]), window) for i in range(count)]
    return tuple(groups)


def _dtype(config: Mapping[str, Any], wanted: str | None) -> str:
    given = wanted if wanted not in (None, "auto") else config.get("torch_dtype") or config.get("dtype") or "bfloat16"
    name = str(given).removeprefix("torch.")
    if name not in DTYPES:
        raise MotleyError(f"unknown dtype {name!r}", hint=nearest(name, list(DTYPES)))
    if wanted in (None, "auto") and name in ("float32", "float"):
        return "bfloat16"  # vLLM's own rule: a float32 checkpoint is served in a half type unless --dtype says otherwise
    return {"half": "float16", "float": "float32"}.get(name, name)


def from_config(
    config: Mapping[str, Any], *, name: str = "", quantization: str | None = None, dtype: str | None = None, kv_cache_dtype: str | None = None
) -> ModelFacts:
    """Facts from a config.json; an architecture that is not known is planned as a Llama, with a warning."""
    warnings: list[str] = []
    inner = config.get("text_config")
    if isinstance(inner, Mapping):
        warnings.append("only the text part of this model is counted; its encoders take memory on the first stage too")
        outer = {k: config[k] for k in ("quantization_config", "torch_dtype", "dtype", "tie_word_embeddings") if k in config}
        config = {**outer, **inner, "architectures": inner.get("architectures") or config.get("architectures")}
    names = config.get("architectures")
    architecture = str(names[0]) if isinstance(names, (list, tuple)) and names else "unknown"
    if architecture not in _KNOWN:
        warnings.append(f"architecture {architecture} is not in the table: planned like Llama from its shapes; compare the first start with the plan")
    heads, hidden = _number(config, "num_attention_heads"), _number(config, "hidden_size")
    kv_heads = _number(config, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise MotleyError(
            f"config.json: {heads} attention heads are no multiple of {kv_heads} key-value heads", hint="use the model's own config.json"
        )
    latent = bool(config.get("kv_lora_rank"))
    head_dim = _number(config, "head_dim", max(1, hidden // heads))
    layers = _number(config, "num_hidden_layers")
    if layers > 1024:
        raise MotleyError(f"config.json: {layers} layers", hint="use the model's own config.json")
    shape = _Shape(architecture, hidden, _number(config, "intermediate_size", 4 * hidden), heads, kv_heads, head_dim, layers)
    kinds, kind_of, moe_width = _kinds(config, shape)
    windows = _windows(config, layers, architecture)
    gemma = architecture.startswith("Gemma")
    partial = config.get("partial_rotary_factor")
    share = float(partial) if isinstance(partial, (int, float)) and not isinstance(partial, bool) and 0 < partial <= 1 else 1.0
    rotary = _number(config, "qk_rope_head_dim") if latent else int(head_dim * share)
    return ModelFacts(
        name=name or architecture, architecture=architecture, layers=layers, hidden=hidden, intermediate=shape.intermediate, heads=heads,
        kv_heads=kv_heads, head_dim=head_dim, vocab=_number(config, "vocab_size"), max_position=_number(config, "max_position_embeddings", 8192),
        tied=bool(config.get("tie_word_embeddings", gemma)), dtype=_dtype(config, dtype), weights=_quantisation(config, quantization),
        kinds=kinds, kind_of=kind_of, kv_groups=kv_groups(windows), rotary_dim=rotary,
        rope_caches=2 if architecture.startswith("Gemma3") else 1,
        mla=(_number(config, "kv_lora_rank"), _number(config, "qk_rope_head_dim")) if latent else None,
        table_on_every_stage=architecture.startswith(_TABLE_EVERYWHERE), moe_intermediate=moe_width,
        kv_dtype=kv_cache_dtype or "auto", warnings=tuple(warnings),
    )  # fmt: skip


def from_name(name: str, *, quantization: str | None = None, dtype: str | None = None, kv_cache_dtype: str | None = None) -> ModelFacts:
    """Facts of a model of the table."""
    if name not in MODELS:
        raise MotleyError(f"model {name!r} is not in the table and no config.json was given", hint=nearest(name, list(MODELS)))
    return from_config(MODELS[name], name=name, quantization=quantization, dtype=dtype, kv_cache_dtype=kv_cache_dtype)


def unquantised(model: ModelFacts) -> ModelFacts:
    """The same shapes without quantisation."""
    return replace(model, weights=PLAIN)


# ------------------------------------------------------------------------------------------------------------- tensor sizes


def tensor_refusal(model: ModelFacts, tensor: int) -> str | None:
    """Why vLLM would refuse this tensor size, in its own words where it has some; None if it would not."""
    reasons = tensor_refusals(model, tensor)
    return reasons[0] if reasons else None


def tensor_refusals(model: ModelFacts, tensor: int) -> list[str]:
    """All rules that a tensor size breaks."""
    if tensor == 1:
        return []
    out: list[str] = []
    if model.heads % tensor:
        out.append(f"Total number of attention heads ({model.heads}) must be divisible by tensor parallel size ({tensor}).")
    if not model.mla and model.kv_heads % tensor and tensor % model.kv_heads:
        out.append(f"{model.kv_heads} key-value heads and tensor parallel size {tensor}: neither divides the other")
    padded = -(-model.vocab // VOCAB_PADDING) * VOCAB_PADDING
    if padded % tensor:
        out.append(f"the vocabulary of {padded} (padded) is not divisible by {tensor}")
    widths = {model.intermediate} if any(not k.experts for k in model.kinds) else set()
    experts = max((k.experts for k in model.kinds), default=0)
    if experts:
        widths.add(model.moe_intermediate)
        if tensor > experts:
            out.append(f"Tensor parallel size {tensor} is greater than the number of experts {experts}.")
    for width in sorted(widths, reverse=True):
        out += _width_refusals(model, width, tensor)
    return out


def _width_refusals(model: ModelFacts, width: int, tensor: int) -> list[str]:
    if width % tensor:
        return [f"{width} is not divisible by {tensor}"]
    share = width // tensor
    form = model.weights
    if form.block and (share % form.block[0] or share % form.block[1]):
        return [f"{width}/{tensor} = {share} is not a multiple of the quantisation block {max(form.block)}"]
    if form.method in ("awq", "gptq", "int4") and form.group and share % form.group:
        return [f"{width}/{tensor} = {share} is not a multiple of group_size {form.group}"]
    return []


def experts_touched(experts: int, active: int, batch: float) -> float:
    """How many distinct experts a batch is expected to read."""
    return experts * (1.0 - (1.0 - active / experts) ** batch) if experts else 0.0


def partition_refusal(partition: Sequence[int], pipeline: int, layers: int) -> str | None:
    """vLLM's own words for a partition that does not fit, plus the cases it does not catch itself."""
    if len(partition) != pipeline:
        return f"len(partitions)={len(partition)} does not match pp_size={pipeline}."
    if sum(partition) != layers:
        return f"sum(partitions)={sum(partition)} does not match num_hidden_layers={layers}."
    if min(partition) < 1:
        return f"every stage needs at least one layer, not {','.join(map(str, partition))}"
    return None


def default_partition(layers: int, pipeline: int) -> list[int]:
    """What vLLM does without VLLM_PP_LAYER_PARTITION: the remainder goes to stages from the second-last backwards."""
    out = [layers // pipeline] * pipeline
    for back in range(layers % pipeline):
        out[-(back + 2) if pipeline > 1 else -1] += 1
    return out
