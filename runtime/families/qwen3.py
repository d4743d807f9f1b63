"""Qwen3-MoE and Qwen3-VL-MoE, as transformers 5.24 computes them (models/qwen3_moe, models/qwen3_vl_moe)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runtime.arch import ArchSpec, LayerSpec, MoeSpec, RopeSpec, RouterSpec, VisionSpec
from runtime.config_reader import ConfigReader
from runtime.families.common import (
    GQA,
    MLP,
    MLP_EXPERTS,
    NORMS,
    checked_top_k,
    head_dim,
    layer_keys,
    read_gqa,
    read_rope,
    rope_section,
    silu_only,
    sizes,
    tokens,
)


def _keys(prefix: str) -> dict[str, str]:
    return layer_keys(prefix, NORMS, GQA, MLP, MLP_EXPERTS) | {"vision": "model.visual."}


def read_qwen3_moe(config: Mapping[str, Any]) -> ArchSpec:
    """Text only. `norm_topk_prob` decides whether the router's weights are renormalised (default: they are not)."""
    text = ConfigReader(config)
    return ArchSpec(
        family="qwen3_moe",
        architecture="Qwen3MoeForCausalLM",
        layers=_layers(text, renormalise=text.flag("norm_topk_prob")),
        rope=_rope(text, head_dim(text), sections=None),
        keys=_keys("model."),
        tokens=tokens(text, text),
        tied_embeddings=text.flag("tie_word_embeddings"),
        **sizes(text),
    )


def read_qwen3_vl_moe(config: Mapping[str, Any]) -> ArchSpec:
    """Text and vision. The router always renormalises: transformers' Qwen3VLMoeTextTopKRouter does not read norm_topk_prob."""
    whole = ConfigReader(config)
    text = whole.section("text_config")
    sections = rope_section(text).integers("mrope_section", default=(24, 20, 20))
    if len(sections) != 3:
        raise text.refuse(f"mrope_section {list(sections)}", "three sections: t, h, w")
    vision = _vision(whole.section("vision_config"))
    if vision.out_hidden != text.integer("hidden_size"):
        raise whole.refuse(f"vision_config.out_hidden_size {vision.out_hidden}", "the text model's hidden_size")
    return ArchSpec(
        family="qwen3_vl_moe",
        architecture="Qwen3VLMoeForConditionalGeneration",
        layers=_layers(text, renormalise=True),
        rope=_rope(text, head_dim(text), sections=(sections[0], sections[1], sections[2])),
        keys=_keys("model.language_model."),
        tokens=tokens(whole, text),
        vision=vision,
        tied_embeddings=whole.flag("tie_word_embeddings"),
        **sizes(text),
    )


def _layers(text: ConfigReader, renormalise: bool) -> tuple[LayerSpec, ...]:
    """A layer is a mixture unless `mlp_only_layers` or `decoder_sparse_step` makes it dense (modeling_qwen3_moe.py, decoder layer)."""
    silu_only(text)
    if text.flag("use_sliding_window"):
        raise text.refuse("use_sliding_window", "full attention")
    bias = text.flag("attention_bias")
    attention = read_gqa(text, bias=bias, out_bias=bias)
    experts = text.integer("num_experts", "num_local_experts")
    router = RouterSpec(checked_top_k(text, text.integer("num_experts_per_tok"), experts), renormalise)
    moe = MoeSpec(experts, text.integer("moe_intermediate_size"), router)
    dense = set(text.integers("mlp_only_layers", default=()))
    stride = text.integer("decoder_sparse_step", default=1)
    width = text.integer("intermediate_size", default=0)
    return tuple(
        LayerSpec(attention, moe) if i not in dense and (i + 1) % stride == 0 else LayerSpec(attention, None, width)
        for i in range(text.integer("num_hidden_layers"))
    )


def _rope(text: ConfigReader, width: int, sections: tuple[int, int, int] | None) -> RopeSpec:
    rope = rope_section(text)
    if sections is not None and rope.raw.get("mrope_interleaved", True) is not True:
        raise rope.refuse("mrope_interleaved false", "interleaved sections")
    if rope.number("partial_rotary_factor", default=1.0) != 1.0:
        raise rope.refuse("partial_rotary_factor", "rotation of the whole head")
    # "mrope" is how older configs spell the default with sections
    return replace(read_rope(text, width, ("default", "mrope")), sections=sections)


def _vision(vision: ConfigReader) -> VisionSpec:
    if (act := vision.text("hidden_act", default="gelu_pytorch_tanh")) != "gelu_pytorch_tanh":
        raise vision.refuse(f"hidden_act {act!r}", "gelu_pytorch_tanh")
    positions = vision.integer("num_position_embeddings")
    side = round(positions**0.5)
    if side * side != positions:
        raise vision.refuse(f"num_position_embeddings {positions}", "a square grid")
    rope = rope_section(vision)
    if (kind := rope.text("rope_type", default="axial")) != "axial":
        raise rope.refuse(f"rope_type {kind!r}", "axial")
    return VisionSpec(
        depth=vision.integer("depth"),
        hidden=vision.integer("hidden_size"),
        heads=vision.integer("num_heads"),
        width=vision.integer("intermediate_size"),
        channels=vision.integer("in_channels", default=3),
        patch=vision.integer("patch_size"),
        temporal_patch=vision.integer("temporal_patch_size", default=2),
        merge=vision.integer("spatial_merge_size", default=2),
        out_hidden=vision.integer("out_hidden_size"),
        grid_side=side,
        deepstack=vision.integers("deepstack_visual_indexes"),
        rope_theta=rope.number("rope_theta", default=10_000.0),
    )
