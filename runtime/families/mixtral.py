"""Mixtral, as transformers 5.24 computes it (models/mixtral): every layer a mixture, renormalised softmax, no q and k norms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.arch import ArchSpec, LayerSpec, MoeSpec, RouterSpec
from runtime.config_reader import ConfigReader
from runtime.families.common import (
    BLOCK_SPARSE_EXPERTS,
    GQA,
    NORMS,
    checked_top_k,
    head_dim,
    layer_keys,
    read_gqa,
    read_rope,
    silu_only,
    sizes,
    tokens,
)


def read_mixtral(config: Mapping[str, Any]) -> ArchSpec:
    """`sliding_window`, where set, holds for all layers."""
    text = ConfigReader(config)
    silu_only(text)
    window = text.integer("sliding_window", default=0) or None
    experts = text.integer("num_local_experts", "num_experts")
    router = RouterSpec(checked_top_k(text, text.integer("num_experts_per_tok", default=2), experts), renormalise=True)
    moe = MoeSpec(experts, text.integer("intermediate_size"), router)
    layer = LayerSpec(read_gqa(text, qk_norm=None, window=window), moe)
    return ArchSpec(
        family="mixtral",
        architecture="MixtralForCausalLM",
        layers=(layer,) * text.integer("num_hidden_layers"),
        rope=read_rope(text, head_dim(text), theta=1e6),
        keys=layer_keys("model.", NORMS, GQA, BLOCK_SPARSE_EXPERTS),
        tokens=tokens(text, text),
        tied_embeddings=text.flag("tie_word_embeddings"),
        **sizes(text, eps=1e-5),
    )
