"""Kimi-Linear and Kimi K3: delta attention, latent attention in between; K3 adds latent experts, attention residuals, vision."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.inventory.attention import Kda, Mla
from runtime.inventory.builder import Builder
from runtime.inventory.families.common import add_ends, finish, tied
from runtime.inventory.families.deepseek import read_mla
from runtime.inventory.feed_forward import NUMBERED, Mixture, add_dense
from runtime.inventory.model import Inventory, LayerCache, MixtureFacts
from runtime.inventory.stated import Stated
from runtime.inventory.storage import read_storage
from runtime.inventory.vision import MoonVit
from traces.errors import CheckpointError

LOG_PADDING = 128  # the published K3 keeps A_log of 96 heads as 128 values


@dataclass(frozen=True, slots=True)
class _Layers:
    """Which layer is what, from 0."""

    full: tuple[bool, ...]
    dense: tuple[bool, ...]


def kimi_linear(whole: Stated) -> Inventory:
    """The text model alone, as Kimi-Linear publishes it."""
    builder = Builder(read_storage(whole, whole))
    whole.assume("every tensor but the selection biases is taken as stored in the config's dtype")
    return _text(builder, whole, whole, "kimi_linear", "model.", "lm_head.weight", small=None)


def kimi_k3(whole: Stated) -> Inventory:
    """Text, vision tower and projector."""
    text = whole.section("text_config")
    builder = Builder(read_storage(whole, text))
    _vision(whole, text).add(builder, "vision_tower.", "mm_projector.")
    return _text(builder, whole, text, "kimi_k3", "language_model.model.", "language_model.lm_head.weight", small="F32")


def _text(builder: Builder, whole: Stated, text: Stated, family: str, at: str, head: str, small: str | None) -> Inventory:
    hidden = text.integer("hidden_size")
    layers = _layers(text)
    mla = read_mla(text, gate=text.flag("mla_use_output_gate") if text.has("mla_use_output_gate") else False)
    kda = _kda(text, hidden, small)
    mixture = _mixture(text, hidden)
    block = text.integer("attn_res_block_size") if text.has("attn_res_block_size") else 0
    width = text.integer("intermediate_size")
    add_ends(builder, at, head, text.integer("vocab_size"), hidden, tied(whole, text))
    if block:
        _residual(builder, at + "output_attn_res_", hidden, None)
    caches: list[LayerCache] = []
    for i, full in enumerate(layers.full):
        attention: Mla | Kda = mla if full else kda
        _layer(builder, f"{at}layers.{i}.", i, attention, mixture, width if layers.dense[i] else 0, bool(block))
        caches.append(attention.cache())
    facts = MixtureFacts(mixture.experts, mixture.top_k, mixture.width, mixture.inner)
    blocks = -(-len(caches) // block) if block else 0
    return finish(builder, whole, text, family, mla.heads, caches, facts, blocks)


def _layer(builder: Builder, at: str, i: int, attention: Mla | Kda, mixture: Mixture, dense: int, residual: bool) -> None:
    hidden = attention.hidden
    builder.norm(at + "input_layernorm", hidden, layer=i)
    builder.norm(at + "post_attention_layernorm", hidden, layer=i)
    if residual:
        _residual(builder, at + "self_attention_res_", hidden, i)
        _residual(builder, at + "mlp_res_", hidden, i)
    attention.add(builder, at + "self_attn.", i)
    if dense:
        add_dense(builder, at + "mlp.", dense, hidden, i)
    else:
        mixture.add(builder, at + "block_sparse_moe.", i)


def _residual(builder: Builder, at: str, hidden: int, layer: int | None) -> None:
    builder.norm(at + "norm", hidden, "residual", layer)
    builder.tensor(at + "proj.weight", (1, hidden), "residual", layer=layer, role="vector")


def _layers(text: Stated) -> _Layers:
    """Published configs count layers from 1 in `linear_attn_config`; transformers writes `layer_types` and `mlp_layer_types`."""
    count = text.integer("num_hidden_layers")
    if text.has("linear_attn_config"):
        linear = text.section("linear_attn_config")
        full, delta = set(linear.integers("full_attn_layers")), set(linear.integers("kda_layers"))
        if full & delta or full | delta != set(range(1, count + 1)):
            raise CheckpointError(
                f"full_attn_layers and kda_layers do not share out the {count} layers", "use the config.json that belongs to the weights"
            )
        kinds = tuple(i + 1 in full for i in range(count))
    else:
        kinds = tuple(kind == "full_attention" for kind in _words(text, "layer_types", count))
    if text.has("mlp_layer_types"):
        dense = tuple(kind == "dense" for kind in _words(text, "mlp_layer_types", count))
    else:
        first = text.integer("first_k_dense_replace")
        stride = text.integer("moe_layer_freq", assume=1, why="every layer after the dense ones is a mixture")
        dense = tuple(i < first or i % stride != 0 for i in range(count))
    return _Layers(kinds, dense)


def _words(text: Stated, key: str, count: int) -> list[str]:
    value = text.raw.get(key)
    if not isinstance(value, list) or len(value) != count:
        raise CheckpointError(f"config.json needs one word a layer at {text.where}{key}", f"{count} layers")
    return [str(word) for word in value]


def _kda(text: Stated, hidden: int, small: str | None) -> Kda:
    if text.has("linear_attn_config"):
        linear = text.section("linear_attn_config")
        heads, dim, kernel = linear.integer("num_heads"), linear.integer("head_dim"), linear.integer("short_conv_kernel_size")
        full_gate = linear.flag("use_full_rank_gate") if linear.has("use_full_rank_gate") else False
    else:
        heads, dim = text.integer("linear_num_heads"), text.integer("linear_head_dim")
        kernel, full_gate = text.integer("linear_conv_kernel_dim"), False
    padded = -(-heads // LOG_PADDING) * LOG_PADDING
    if small is not None:
        text.assume(f"A_log is taken as padded to {padded} values, convolutions and delta scalars as float32, as published")
    return Kda(hidden, heads, dim, kernel, full_gate, (padded,) if small else (1, 1, heads, 1), small)


def _mixture(text: Stated, hidden: int) -> Mixture:
    latent = text.integer("routed_expert_hidden_size") if text.has("routed_expert_hidden_size") else None
    inner = text.integer("moe_intermediate_size")
    return Mixture(
        hidden=hidden,
        width=latent or hidden,
        inner=inner,
        experts=text.integer("num_experts", "num_local_experts"),
        top_k=text.integer("num_experts_per_token", "num_experts_per_tok"),
        shared=inner * text.integer("num_shared_experts", "n_shared_experts"),
        selection_bias=True,
        names=NUMBERED,
        latent=latent is not None,
        latent_norm=latent is not None and text.flag("latent_moe_use_norm"),
    )


def _vision(whole: Stated, text: Stated) -> MoonVit:
    vision = whole.section("vision_config")
    merge = vision.integers("merge_kernel_size")
    return MoonVit(
        patch=vision.integer("patch_size"),
        hidden=vision.integer("vt_hidden_size"),
        layers=vision.integer("vt_num_hidden_layers"),
        attention=vision.integer("qkv_hidden_size"),
        width=vision.integer("vt_intermediate_size"),
        grid=(vision.integer("init_pos_emb_height"), vision.integer("init_pos_emb_width")),
        merge=merge[0] * merge[1],
        text_hidden=text.integer("hidden_size"),
        bias=False,
        pre_norm=False,
    )
