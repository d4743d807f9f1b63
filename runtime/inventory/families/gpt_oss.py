"""gpt-oss: grouped-query attention with sinks and biases, every other layer in a sliding window, fused experts in MXFP4 blocks.

Published layout (openai/gpt-oss-120b): gate_up_proj_blocks [E, 2I, H / 32, 16] and scales [E, 2I, H / 32], down likewise; a block is
16 bytes of two 4-bit values. Saved unpacked, transformers 5 keeps [E, H, 2I] and [E, I, H].
"""

from __future__ import annotations

from runtime.inventory.attention import Gqa
from runtime.inventory.builder import Builder
from runtime.inventory.families.common import add_ends, finish, tied
from runtime.inventory.model import Inventory, MixtureFacts
from runtime.inventory.stated import Stated
from runtime.inventory.storage import read_storage
from traces.errors import CheckpointError

KINDS = ("sliding_attention", "full_attention")


def gpt_oss(whole: Stated) -> Inventory:
    """Every layer is a mixture."""
    builder = Builder(read_storage(whole, whole))
    hidden, heads, layers = (whole.integer(key) for key in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    kv_heads, head_dim, inner = (whole.integer(key) for key in ("num_key_value_heads", "head_dim", "intermediate_size"))
    experts, top_k = whole.integer("num_local_experts"), whole.integer("num_experts_per_tok", "experts_per_token")
    add_ends(builder, "model.", "lm_head.weight", whole.integer("vocab_size"), hidden, tied(whole, whole))
    caches = []
    for i, window in enumerate(_windows(whole, layers)):
        at = f"model.layers.{i}."
        builder.norm(at + "input_layernorm", hidden, layer=i)
        builder.norm(at + "post_attention_layernorm", hidden, layer=i)
        bias = whole.flag("attention_bias")
        attention = Gqa(hidden, heads, kv_heads, head_dim, bias, bias, sinks=True, window=window)
        attention.add(builder, at + "self_attn.", i)
        builder.tensor(at + "mlp.router.weight", (experts, hidden), "router", layer=i)
        builder.tensor(at + "mlp.router.bias", (experts,), "router", layer=i, role="vector")
        _experts(builder, at + "mlp.experts.", experts, hidden, inner, i)
        caches.append(attention.cache())
    return finish(builder, whole, whole, "gpt_oss", heads, caches, MixtureFacts(experts, top_k, hidden, inner))


def _experts(builder: Builder, at: str, experts: int, hidden: int, inner: int, layer: int) -> None:
    for name, rows, columns in (("gate_up_proj", 2 * inner, hidden), ("down_proj", hidden, inner)):
        builder.tensor(f"{at}{name}_bias", (experts, rows), "routed", "expert", layer, role="vector", experts=experts)
        how = builder.storage.quantisation
        if how is None or how.scheme != "mxfp4-blocks":
            builder.tensor(at + name, (experts, columns, rows), "routed", "expert", layer, experts=experts)
            continue
        blocks = -(-columns // how.group)
        packed, count = (experts, rows, blocks, how.group // 2), experts * rows * columns
        builder.tensor(f"{at}{name}_blocks", packed, "routed", "expert", layer, "U8", experts=experts, values=count)
        builder.tensor(f"{at}{name}_scales", packed[:3], "routed", "expert", layer, "U8", "scale", experts, values=0)


def _windows(whole: Stated, layers: int) -> list[int | None]:
    kinds = whole.raw.get("layer_types")
    if not isinstance(kinds, list) or len(kinds) != layers or not set(kinds) <= set(KINDS):
        raise CheckpointError(f"config.json needs one of {', '.join(KINDS)} a layer at layer_types", f"{layers} layers")
    return [whole.integer("sliding_window") if kind == "sliding_attention" else None for kind in kinds]
