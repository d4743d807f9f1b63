"""MiniMax-M2, as transformers 5.24 computes it (models/minimax_m2): norms over all heads of a token, partial rotation, sigmoid router."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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
    predictors,
    read_gqa,
    read_rope,
    silu_only,
    sizes,
    tokens,
)


def read_minimax_m2(config: Mapping[str, Any]) -> ArchSpec:
    """`rotary_dim` of a published config says how much of a head turns."""
    text = ConfigReader(config)
    silu_only(text)
    if text.text("scoring_func", default="sigmoid") != "sigmoid":
        raise text.refuse(f"scoring_func {text.text('scoring_func')!r}", "sigmoid")
    experts = text.integer("num_local_experts", "num_experts")
    top_k = checked_top_k(text, text.integer("num_experts_per_tok"), experts)
    moe = MoeSpec(experts, text.integer("intermediate_size"), RouterSpec(top_k, True, "sigmoid", selection_bias=True))
    layer = LayerSpec(read_gqa(text, qk_norm="whole"), moe)
    rope = read_rope(text, head_dim(text), theta=5e6)
    keys = layer_keys("model.", NORMS, GQA, BLOCK_SPARSE_EXPERTS)
    keys["router_select"] = "model.layers.{layer}.block_sparse_moe.e_score_correction_bias"
    return ArchSpec(
        family="minimax_m2",
        architecture="MiniMaxM2ForCausalLM",
        layers=(layer,) * text.integer("num_hidden_layers"),
        rope=replace(rope, dim=text.integer("rotary_dim", default=rope.dim)),
        keys=keys,
        tokens=tokens(text, text),
        tied_embeddings=text.flag("tie_word_embeddings"),
        skipped=predictors(text, "model.", "num_mtp_modules"),
        **sizes(text, eps=1e-6),
    )
