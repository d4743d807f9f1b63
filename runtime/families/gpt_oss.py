"""gpt-oss, as transformers 5.24 computes it (models/gpt_oss): sinks, alternating windows, biases everywhere, clamped SwiGLU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runtime.arch import Activation, ArchSpec, LayerSpec, MoeSpec, RouterSpec
from runtime.config_reader import ConfigReader
from runtime.families.common import GQA, NORMS, checked_top_k, head_dim, layer_keys, read_gqa, read_rope, sizes, tokens

_MIXTURE = {
    "sinks": "self_attn.sinks",
    "router": "mlp.router.weight",
    "router_bias": "mlp.router.bias",
    "expert.gate": "mlp.experts.{expert}.gate_proj.weight",  # no known checkpoint: experts are fused
    "experts.gate_up": "mlp.experts.gate_up_proj",
    "experts.gate_up_bias": "mlp.experts.gate_up_proj_bias",
    "experts.down": "mlp.experts.down_proj",
    "experts.down_bias": "mlp.experts.down_proj_bias",
}
_WINDOWED, _FULL = "sliding_attention", "full_attention"


def read_gpt_oss(config: Mapping[str, Any]) -> ArchSpec:
    """Experts are stored fused, gate and up in alternating columns; published ones as MXFP4 blocks, their rows in the same order."""
    text = ConfigReader(config)
    count = text.integer("num_hidden_layers")
    kinds = text.raw.get("layer_types") or [_FULL if i % 2 else _WINDOWED for i in range(count)]
    if len(kinds) != count or set(kinds) - {_WINDOWED, _FULL}:
        raise text.refuse(f"layer_types {kinds}", f"{_WINDOWED} or {_FULL} for each of {count} layers")
    bias = text.flag("attention_bias", default=True)
    full = read_gqa(text, bias=bias, out_bias=bias, qk_norm=None, sinks=True)
    windowed = replace(full, window=text.integer("sliding_window", default=128))
    experts = text.integer("num_local_experts", "num_experts")
    top_k = checked_top_k(text, text.integer("num_experts_per_tok", "experts_per_token"), experts)
    moe = MoeSpec(
        experts,
        text.integer("intermediate_size"),
        RouterSpec(top_k, renormalise=True, bias=True),
        activation=Activation("clamped_swiglu", text.number("swiglu_alpha", default=1.702), text.number("swiglu_limit", default=7.0)),
        bias=True,
        interleaved=True,
    )
    return ArchSpec(
        family="gpt_oss",
        architecture="GptOssForCausalLM",
        layers=tuple(LayerSpec(windowed if kind == _WINDOWED else full, moe) for kind in kinds),
        rope=read_rope(text, head_dim(text), theta=150_000.0),
        keys=layer_keys("model.", NORMS, GQA, _MIXTURE),
        tokens=tokens(text, text),
        tied_embeddings=text.flag("tie_word_embeddings"),
        **sizes(text, eps=1e-5),
    )
