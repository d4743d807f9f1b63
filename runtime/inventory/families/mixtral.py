"""Mixtral: grouped-query attention without biases, experts w1, w3, w2."""

from __future__ import annotations

from runtime.inventory.attention import Gqa
from runtime.inventory.builder import Builder
from runtime.inventory.families.common import add_ends, finish, tied
from runtime.inventory.feed_forward import NUMBERED, Mixture
from runtime.inventory.model import Inventory, LayerCache, MixtureFacts
from runtime.inventory.stated import Stated
from runtime.inventory.storage import read_storage


def mixtral(whole: Stated) -> Inventory:
    """Every layer is a mixture."""
    builder = Builder(read_storage(whole, whole))
    hidden, heads, layers = (whole.integer(key) for key in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    head_dim = whole.integer("head_dim", assume=hidden // heads, why="hidden_size / num_attention_heads")
    window = whole.integer("sliding_window") if whole.has("sliding_window") else None
    attention = Gqa(hidden, heads, whole.integer("num_key_value_heads"), head_dim, window=window)
    experts, top_k = whole.integer("num_local_experts"), whole.integer("num_experts_per_tok")
    mixture = Mixture(hidden, hidden, whole.integer("intermediate_size"), experts, top_k, names=NUMBERED)
    add_ends(builder, "model.", "lm_head.weight", whole.integer("vocab_size"), hidden, tied(whole, whole))
    for i in range(layers):
        at = f"model.layers.{i}."
        builder.norm(at + "input_layernorm", hidden, layer=i)
        builder.norm(at + "post_attention_layernorm", hidden, layer=i)
        attention.add(builder, at + "self_attn.", i)
        mixture.add(builder, at + "block_sparse_moe.", i)
    caches: list[LayerCache] = [attention.cache()] * layers
    return finish(builder, whole, whole, "mixtral", heads, caches, MixtureFacts(experts, top_k, hidden, mixture.inner))
