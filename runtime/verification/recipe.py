"""What a rank must hold of the tensors that are no experts, by the published names alone: which stored tensors, and how they are cut.

Written against the names that checkpoints are published under and the rules of tensor parallelism (Megatron-LM, arXiv:1909.08053,
section 3): what belongs to heads, a dense layer's width and the vocabulary are cut, in the order of the lanes; the rest is whole on every
lane; a key and value head that there are too few of is held by several. Nothing here asks our plan, which is what it proves.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

# whole: on every lane. rows, columns: equal parts. groups: rows of key and value heads. normed: the heads' part of a norm over all of them,
# the whole of a norm over one; shared_normed: the same of key heads. flat: a value for each head of
# linear attention, in a tensor that may have more dimensions, and more values behind them.
Cut = Literal["whole", "rows", "columns", "groups", "normed", "shared_normed", "flat"]
Sources = tuple[tuple[str, Cut], ...]

_ATTENTION = "self_attn."
_MIXTURES = ("mlp.", "block_sparse_moe.")
_LAYER = re.compile(r"layers\.(\d+)\.(.+)")


def _attention(*parts: tuple[str, Cut]) -> Sources:
    return tuple((_ATTENTION + name, cut) for name, cut in parts)


def _either(*parts: tuple[str, Cut]) -> tuple[Sources, ...]:
    """The same parts under both names that a mixture has."""
    return tuple(tuple((mixture + name, cut) for name, cut in parts) for mixture in _MIXTURES)


# Our target within a layer -> the ways in which it is stored: (name within the layer, cut) of what is stacked.
_IN_LAYER: dict[str, tuple[Sources, ...]] = {
    "attention_norm": ((("input_layernorm.weight", "whole"),),),
    "ffn_norm": ((("post_attention_layernorm.weight", "whole"),),),
    "qkv": (_attention(("q_proj.weight", "rows"), ("k_proj.weight", "groups"), ("v_proj.weight", "groups")),),
    "qkv_bias": (_attention(("q_proj.bias", "rows"), ("k_proj.bias", "groups"), ("v_proj.bias", "groups")),),
    "q_norm": (_attention(("q_norm.weight", "normed")),),
    "k_norm": (_attention(("k_norm.weight", "shared_normed")),),
    "o": (_attention(("o_proj.weight", "columns")),),
    "o_bias": (_attention(("o_proj.bias", "whole")),),
    "sinks": (_attention(("sinks", "rows")),),
    "mla.down": (
        _attention(("q_a_proj.weight", "whole"), ("kv_a_proj_with_mqa.weight", "whole")),
        _attention(("q_proj.weight", "rows"), ("kv_a_proj_with_mqa.weight", "whole")),
    ),
    "mla.down_bias": (
        _attention(("q_a_proj.bias", "whole"), ("kv_a_proj_with_mqa.bias", "whole")),
        _attention(("q_proj.bias", "rows"), ("kv_a_proj_with_mqa.bias", "whole")),
    ),
    "mla.q_norm": (_attention(("q_a_layernorm.weight", "whole")),),
    "mla.q_up": (_attention(("q_b_proj.weight", "rows")),),
    "mla.kv_norm": (_attention(("kv_a_layernorm.weight", "whole")),),
    "mla.kv_up": (_attention(("kv_b_proj.weight", "rows")),),
    "mla.gate": (_attention(("g_proj.weight", "rows")),),
    "kda.qkv": (_attention(("q_proj.weight", "rows"), ("k_proj.weight", "rows"), ("v_proj.weight", "rows")),),
    "kda.conv": (_attention(("q_conv1d.weight", "rows"), ("k_conv1d.weight", "rows"), ("v_conv1d.weight", "rows")),),
    **{f"kda.{name}": (_attention((f"{name}_proj.weight", "whole")),) for name in ("f_a", "g_a")},
    **{f"kda.{name}": (_attention((f"{name}_proj.weight", "rows")),) for name in ("f_b", "g_b", "g")},
    "kda.beta": (_attention(("b_proj.weight", "rows")),),
    "kda.dt_bias": (_attention(("dt_bias", "rows")),),
    "kda.decay": (_attention(("A_log", "flat")),),
    "kda.o_norm": (_attention(("o_norm.weight", "whole")),),
    "dense.gate_up": _either(("gate_proj.weight", "rows"), ("up_proj.weight", "rows")),
    "dense.down": _either(("down_proj.weight", "columns")),
    "router": (*_either(("gate.weight", "whole")), (("mlp.router.weight", "whole"),)),
    "router_bias": ((("mlp.router.bias", "whole"),),),
    "router_select": (*_either(("gate.e_score_correction_bias", "whole")), (("block_sparse_moe.e_score_correction_bias", "whole"),)),
    "shared.gate_up": _either(("shared_experts.gate_proj.weight", "whole"), ("shared_experts.up_proj.weight", "whole")),
    "shared.down": _either(("shared_experts.down_proj.weight", "whole")),
    **{
        f"latent.{ours}": _either((f"routed_expert_{theirs}.weight", "whole"))
        for ours, theirs in (("down", "down_proj"), ("norm", "norm"), ("up", "up_proj"))
    },
    **{
        f"{ours}_residual.{part}": (((f"{theirs}_res_{part}.weight", "whole"),),)
        for ours, theirs in (("attention", "self_attention"), ("ffn", "mlp"))
        for part in ("norm", "proj")
    },
}
_ENDS: dict[str, tuple[Sources, ...]] = {
    "norm": ((("norm.weight", "whole"),),),
    "output_residual.norm": ((("output_attn_res_norm.weight", "whole"),),),
    "output_residual.proj": ((("output_attn_res_proj.weight", "whole"),),),
    "embed": ((("embed_tokens.weight", "rows"),),),
}


@dataclass(frozen=True, slots=True)
class Heads:
    """Of a config: key and value heads, values of one head, and heads of linear attention (0: it does not say)."""

    kv: int
    dim: int
    linear: int = 0


def decoder_of(stored: Container[str]) -> str | None:
    """What the names of the decoder begin with; None where no known one fits."""
    known = ("model.language_model.", "language_model.model.", "model.")
    return next((prefix for prefix in known if f"{prefix}embed_tokens.weight" in stored), None)


def sources(target: str, stored: Container[str], decoder: str, tied: bool) -> Sources:
    """The stored tensors that make up one of our targets, by full name; () for a target that is not known here."""
    if target.startswith("vision."):
        name = target.removeprefix("vision.")
        return _first(((("model.visual." + name, "whole"),), ((name, "whole"),)), "", stored)
    if target == "head":
        names = ("lm_head.weight", f"{decoder.removesuffix('model.')}lm_head.weight")
        head: tuple[Sources, ...] = tuple(((name, "rows"),) for name in names)
        return _first(_ENDS["embed"], decoder, stored) if tied else _first(head, "", stored)
    if (found := _LAYER.fullmatch(target)) is not None:
        return _first(_IN_LAYER.get(found[2], ()), f"{decoder}layers.{found[1]}.", stored)
    return _first(_ENDS.get(target, ()), decoder, stored)


def _first(ways: tuple[Sources, ...], prefix: str, stored: Container[str]) -> Sources:
    for way in ways:
        named: Sources = tuple((prefix + name, cut) for name, cut in way)
        if all(name in stored for name, _ in named):
            return named
    return ()


def cut_for(tensor: Tensor, cut: Cut, lane: int, lanes: int, heads: Heads) -> Tensor:
    """A lane's part of a stored tensor; parts are those of torch.chunk, the last ones may be smaller or empty."""
    if cut == "flat":
        tensor, cut = tensor.flatten()[: heads.linear or None], "rows"
    if cut in ("normed", "shared_normed"):
        over_all = tensor.shape[0] != heads.dim
        cut = "whole" if not over_all else "rows" if cut == "normed" else "groups"
    if cut == "whole" or lanes == 1:
        return tensor
    if cut == "groups" and heads.kv < lanes:
        return tensor.chunk(heads.kv)[lane * heads.kv // lanes]
    dimension = 1 if cut == "columns" else 0
    parts = tensor.chunk(lanes, dimension)
    return parts[lane] if lane < len(parts) else tensor.narrow(dimension, 0, 0)
