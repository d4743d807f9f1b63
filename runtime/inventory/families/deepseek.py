"""DeepSeek-V3 and Kimi-K2: latent attention in every layer, shared experts, and a draft (multi-token prediction) layer in the files.

Layout of the published files: deepseek-ai/DeepSeek-V3, README_WEIGHTS.md (the draft layer is layer `num_hidden_layers`, with an
embedding table and a head of its own that repeat the model's).
"""

from __future__ import annotations

from runtime.inventory.attention import Mla
from runtime.inventory.builder import Builder
from runtime.inventory.families.common import add_ends, finish, tied
from runtime.inventory.feed_forward import Mixture, add_dense
from runtime.inventory.model import Inventory, LayerCache, MixtureFacts
from runtime.inventory.stated import Stated
from runtime.inventory.storage import read_storage


def deepseek_v3(whole: Stated) -> Inventory:
    """The text model with its draft layers."""
    builder = Builder(read_storage(whole, whole))
    caches, mixture = add_text(builder, whole, "model.", "lm_head.weight", tied(whole, whole))
    return finish(builder, whole, whole, "deepseek_v3", whole.integer("num_attention_heads"), caches, mixture)


def add_text(builder: Builder, text: Stated, at: str, head: str, tied: bool) -> tuple[list[LayerCache], MixtureFacts]:
    """Adds the text model under the prefix `at`; returns what its layers keep, and its mixture."""
    hidden, vocab, layers = text.integer("hidden_size"), text.integer("vocab_size"), text.integer("num_hidden_layers")
    attention = read_mla(text)
    mixture = _mixture(text, hidden)
    width = text.integer("intermediate_size")
    first = text.integer("first_k_dense_replace")
    stride = text.integer("moe_layer_freq", assume=1, why="every layer after the dense ones is a mixture")
    add_ends(builder, at, head, vocab, hidden, tied)
    for i in range(layers):
        dense = i < first or i % stride != 0
        _layer(builder, f"{at}layers.{i}.", i, attention, mixture, width if dense else 0)
    drafts = text.integer("num_nextn_predict_layers", assume=0, why="no draft layer")
    for i in range(layers, layers + drafts):
        builder.kind = "mtp"
        _draft(builder, f"{at}layers.{i}.", i, hidden, vocab)
        _layer(builder, f"{at}layers.{i}.", i, attention, mixture, 0)
        builder.kind = None
    facts = MixtureFacts(mixture.experts, mixture.top_k, mixture.width, mixture.inner)
    return [attention.cache()] * layers, facts


def read_mla(text: Stated, gate: bool = False) -> Mla:
    """Latent attention as DeepSeek's configs spell it; `q_lora_rank` null means that queries are not compressed."""
    if "q_lora_rank" not in text.raw:
        text.integer("q_lora_rank")  # says that it is missing
    return Mla(
        hidden=text.integer("hidden_size"),
        heads=text.integer("num_attention_heads"),
        q_rank=text.integer("q_lora_rank") if text.has("q_lora_rank") else None,
        kv_rank=text.integer("kv_lora_rank"),
        nope=text.integer("qk_nope_head_dim"),
        rope=text.integer("qk_rope_head_dim"),
        value=text.integer("v_head_dim"),
        gate=gate,
        bias=text.flag("attention_bias", assume=False, why="as published") if text.has("attention_bias") else False,
    )


def _mixture(text: Stated, hidden: int) -> Mixture:
    inner = text.integer("moe_intermediate_size")
    return Mixture(
        hidden=hidden,
        width=hidden,
        inner=inner,
        experts=text.integer("n_routed_experts", "num_local_experts"),
        top_k=text.integer("num_experts_per_tok"),
        shared=inner * text.integer("n_shared_experts"),
        selection_bias=True,
    )


def _layer(builder: Builder, at: str, i: int, attention: Mla, mixture: Mixture, dense: int) -> None:
    builder.norm(at + "input_layernorm", attention.hidden, layer=i)
    builder.norm(at + "post_attention_layernorm", attention.hidden, layer=i)
    attention.add(builder, at + "self_attn.", i)
    if dense:
        add_dense(builder, at + "mlp.", dense, attention.hidden, i)
    else:
        mixture.add(builder, at + "mlp.", i)


def _draft(builder: Builder, at: str, i: int, hidden: int, vocab: int) -> None:
    builder.tensor(at + "embed_tokens.weight", (vocab, hidden), "mtp", "tp", i)
    builder.norm(at + "enorm", hidden, layer=i)
    builder.norm(at + "hnorm", hidden, layer=i)
    builder.tensor(at + "eh_proj.weight", (hidden, 2 * hidden), "mtp", layer=i)
    builder.norm(at + "shared_head.norm", hidden, layer=i)
    builder.tensor(at + "shared_head.head.weight", (vocab, hidden), "mtp", "tp", i)
