"""DeepSeek-V3, as transformers 5.24 computes them (models/deepseek_v3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runtime.arch import ArchSpec, LayerSpec, MlaSpec, MoeSpec, RouterSpec, YarnSpec
from runtime.config_reader import ConfigReader
from runtime.families.common import (
    MLP,
    MLP_EXPERTS,
    NORMS,
    checked_top_k,
    layer_keys,
    predictors,
    read_rope,
    rope_section,
    silu_only,
    sizes,
    tied,
    tokens,
)

MLA = {
    "q": "self_attn.q_proj.weight",
    "q_a": "self_attn.q_a_proj.weight",
    "q_a_bias": "self_attn.q_a_proj.bias",
    "q_a_norm": "self_attn.q_a_layernorm.weight",
    "q_b": "self_attn.q_b_proj.weight",
    "kv_a": "self_attn.kv_a_proj_with_mqa.weight",
    "kv_a_bias": "self_attn.kv_a_proj_with_mqa.bias",
    "kv_a_norm": "self_attn.kv_a_layernorm.weight",
    "kv_b": "self_attn.kv_b_proj.weight",
    "o": "self_attn.o_proj.weight",
    "o_bias": "self_attn.o_proj.bias",
}


def read_deepseek_v3(config: Mapping[str, Any]) -> ArchSpec:
    """Latent attention with yarn, and group-limited sigmoid routing."""
    text = ConfigReader(config)
    return read_deepseek_text(text, text, "deepseek_v3", "DeepseekV3ForCausalLM", "model.")


def read_deepseek_text(
    whole: ConfigReader,
    text: ConfigReader,
    family: str,
    architecture: str,
    prefix: str,
    head: str = "lm_head.weight",
) -> ArchSpec:
    """The decoder whose keys begin with `prefix`; `whole` is the reader of the config around it, or `text` itself."""
    silu_only(text)
    attention = _mla(text)
    moe = MoeSpec(
        experts=(experts := text.integer("n_routed_experts", "num_local_experts")),
        width=text.integer("moe_intermediate_size"),
        router=read_sigmoid_router(text, experts),
        shared_width=text.integer("moe_intermediate_size") * text.integer("n_shared_experts", default=0),
    )
    dense = LayerSpec(attention, None, text.integer("intermediate_size"))
    first, count = text.integer("first_k_dense_replace", default=0), text.integer("num_hidden_layers")
    if text.integer("moe_layer_freq", default=1) != 1:
        raise text.refuse(f"moe_layer_freq {text.integer('moe_layer_freq')}", "1")
    rope = read_rope(text, attention.rope_dim, theta=1e4)
    return ArchSpec(
        family=family,
        architecture=architecture,
        layers=tuple(dense if i < first else LayerSpec(attention, moe) for i in range(count)),
        rope=replace(rope, interleaved=text.flag("rope_interleave", default=True)),
        keys=layer_keys(prefix, NORMS, MLA, MLP, MLP_EXPERTS) | {"head": head},
        tokens=tokens(whole, text),
        tied_embeddings=tied(whole, text),
        skipped=predictors(text, prefix),
        **sizes(text, eps=1e-6),
    )


def read_sigmoid_router(text: ConfigReader, experts: int) -> RouterSpec:
    """Scores by sigmoid, chosen with a bias, within the best groups (DeepSeek-V3 technical report, section 2.1.2)."""
    score = text.text("scoring_func", default="sigmoid")
    method = text.text("topk_method", default="noaux_tc")
    if score != "sigmoid" or method != "noaux_tc":
        raise text.refuse(f"scoring_func {score!r} with topk_method {method!r}", "sigmoid with noaux_tc")
    groups = text.integer("n_group", default=1)
    top_groups = text.integer("topk_group", default=1)
    top_k = checked_top_k(text, text.integer("num_experts_per_tok"), experts)
    if experts % groups or not 0 < top_groups <= groups or top_k > experts // groups * top_groups:
        message = f"{top_k} of {experts} experts from topk_group {top_groups} of n_group {groups}"
        raise text.refuse(message, "groups that hold enough experts")
    return RouterSpec(
        top_k,
        renormalise=text.flag("norm_topk_prob", default=True),
        score="sigmoid",
        selection_bias=True,
        groups=groups,
        top_groups=top_groups,
        scale=text.number("routed_scaling_factor", default=1.0),
    )


def _mla(text: ConfigReader) -> MlaSpec:
    nope, turning = text.integer("qk_nope_head_dim"), text.integer("qk_rope_head_dim")
    return MlaSpec(
        heads=text.integer("num_attention_heads"),
        q_rank=text.integer("q_lora_rank", default=0) or None,
        kv_rank=text.integer("kv_lora_rank"),
        nope_dim=nope,
        rope_dim=turning,
        v_dim=text.integer("v_head_dim"),
        scale=(nope + turning) ** -0.5 * _sharpened(text),
        bias=text.flag("attention_bias"),
    )


def _sharpened(text: ConfigReader) -> float:
    """By how much yarn raises the logits (transformers 5.24, modeling_deepseek_v3.py, yarn_apply_mscale)."""
    rope = rope_section(text)
    kind = rope.text("rope_type", default=rope.text("type", default="default"))
    weight = rope.number("mscale_all_dim", default=0.0)
    if kind == "default" or not weight:
        return 1.0
    return YarnSpec.mscale(rope.number("factor"), weight) ** 2
