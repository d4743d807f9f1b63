"""Qwen3-MoE and Qwen3-VL-MoE."""

from __future__ import annotations

from runtime.arch import read_arch
from runtime.inventory.attention import Gqa
from runtime.inventory.builder import Builder
from runtime.inventory.families.common import add_ends, finish, tied
from runtime.inventory.feed_forward import Mixture, add_dense
from runtime.inventory.model import Inventory, LayerCache, MixtureFacts
from runtime.inventory.stated import Stated
from runtime.inventory.storage import read_storage
from runtime.inventory.vision import add_shapes
from runtime.vision_plan import vision_shapes


def qwen3_moe(whole: Stated) -> Inventory:
    """Text only; one tensor an expert and projection."""
    builder = Builder(read_storage(whole, whole))
    return _text(builder, whole, whole, "qwen3_moe", "model.", "separate")


def qwen3_vl_moe(whole: Stated) -> Inventory:
    """Text and vision. Experts as the published files fuse them, [E, H, 2I] and [E, I, H]; transformers 5 saves them transposed."""
    text = whole.section("text_config")
    builder = Builder(read_storage(whole, text))
    for key in ("patch_size", "in_channels", "temporal_patch_size", "spatial_merge_size"):
        whole.section("vision_config").integer(key)
    vision = read_arch(whole.raw).vision
    assert vision is not None
    add_shapes(builder, "model.visual.", vision_shapes(vision))
    return _text(builder, whole, text, "qwen3_vl_moe", "model.language_model.", "in_out")


def _text(builder: Builder, whole: Stated, text: Stated, family: str, at: str, layout: str) -> Inventory:
    hidden, layers = text.integer("hidden_size"), text.integer("num_hidden_layers")
    attention = _attention(text, hidden)
    mixture = Mixture(
        hidden=hidden,
        width=hidden,
        inner=text.integer("moe_intermediate_size"),
        experts=text.integer("num_experts", "num_local_experts"),
        top_k=text.integer("num_experts_per_tok"),
        layout="in_out" if layout == "in_out" else "separate",
    )
    dense = set(text.integers("mlp_only_layers")) if text.has("mlp_only_layers") else set()
    stride = text.integer("decoder_sparse_step", assume=1, why="every layer is a mixture")
    add_ends(builder, at, "lm_head.weight", text.integer("vocab_size"), hidden, tied(whole, text))
    for i in range(layers):
        here = f"{at}layers.{i}."
        builder.norm(here + "input_layernorm", hidden, layer=i)
        builder.norm(here + "post_attention_layernorm", hidden, layer=i)
        attention.add(builder, here + "self_attn.", i)
        if i in dense or (i + 1) % stride != 0:
            add_dense(builder, here + "mlp.", text.integer("intermediate_size"), hidden, i)
        else:
            mixture.add(builder, here + "mlp.", i)
    facts = MixtureFacts(mixture.experts, mixture.top_k, mixture.width, mixture.inner)
    caches: list[LayerCache] = [attention.cache()] * layers
    return finish(builder, whole, text, family, attention.heads, caches, facts)


def _attention(text: Stated, hidden: int) -> Gqa:
    heads = text.integer("num_attention_heads")
    bias = text.flag("attention_bias", assume=False, why="no biases")
    return Gqa(
        hidden=hidden,
        heads=heads,
        kv_heads=text.integer("num_key_value_heads"),
        head_dim=text.integer("head_dim", assume=hidden // heads, why="hidden_size / num_attention_heads"),
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=True,
    )
