"""The attention kinds of a layer, and the rotary positions they share. Torch-free."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class YarnSpec:
    """Frequencies stretched for longer contexts (Peng et al. 2023): slow ones by `factor`, fast ones not, a ramp between.

    `beta_fast` and `beta_slow` are turns within `original` positions; cos and sin are multiplied by `attention_factor`.
    """

    factor: float
    original: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True  # the ends of the ramp are rounded outwards to whole frequencies
    attention_factor: float = 1.0

    @staticmethod
    def mscale(factor: float, weight: float = 1.0) -> float:
        """0.1 weight ln(factor) + 1: by how much attention is sharpened (transformers 5.24, modeling_rope_utils.py, get_mscale)."""
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary positions of the first `dim` values of what turns in a head.

    With `sections` (t, h, w) the frequencies interleave t h w t h w ..., the rest are t (interleaved mrope). `interleaved`: the pairs that
    turn together lie side by side in the weights (0, 1), (2, 3) ..., not half a head apart.
    """

    theta: float
    dim: int
    sections: tuple[int, int, int] | None = None
    yarn: YarnSpec | None = None
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Grouped-query attention. `window`: a token sees only that many, itself included. `sinks`: a learned logit per head takes part in
    the softmax and gives nothing. `qk_norm`: RMS norm of each q and k head, or of all q and all k values of a token ("whole")."""

    heads: int
    kv_heads: int
    head_dim: int
    bias: bool = False  # of q, k and v
    out_bias: bool = False
    qk_norm: Literal["head", "whole"] | None = "head"
    window: int | None = None
    sinks: bool = False
    kind: Literal["gqa"] = "gqa"

    @property
    def qkv_rows(self) -> int:
        """Rows of the stacked q, k, v projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def context_width(self) -> int:
        """Values of a token before the output projection."""
        return self.heads * self.head_dim

    @property
    def cache_shape(self) -> tuple[int, int]:
        """Rows and their width that a token takes in the paged cache."""
        return 2 * self.kv_heads, self.head_dim


@dataclass(frozen=True, slots=True)
class MlaSpec:
    """Latent attention: keys and values of all heads are projections of one cached latent of `kv_rank` values; `rope_dim` more values of
    the key are shared by all heads and turn with the position (unless the model has no rotary positions at all).

    `q_rank` None: queries are projected directly. `gated`: sigmoid(g x) multiplies the context. `norm_eps` is that of the two latent
    norms, which is not the model's (transformers 5.24, DeepseekV3Attention).
    """

    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    scale: float  # of the logits
    rotated: bool = True
    gated: bool = False
    bias: bool = False  # of q_a, kv_a and o
    norm_eps: float = 1e-6
    kind: Literal["mla"] = "mla"

    @property
    def key_dim(self) -> int:
        return self.nope_dim + self.rope_dim

    @property
    def context_width(self) -> int:
        return self.heads * self.v_dim

    @property
    def cache_shape(self) -> tuple[int, int]:
        return 1, self.kv_rank + self.rope_dim


@dataclass(frozen=True, slots=True)
class KdaSpec:
    """Kimi delta attention: a recurrent state [heads, head_dim, head_dim] a sequence, no cache of tokens.

    `lower_bound` None: the log decay is -exp(A) softplus(f), else lower_bound * sigmoid(exp(A) f). `full_gate`: the output gate is one
    projection, else the product of two through head_dim values. `stored_heads`: A_log may be stored longer than the heads.
    """

    heads: int
    head_dim: int
    conv: int  # taps of the short convolutions over q, k and v
    lower_bound: float | None = None
    full_gate: bool = False
    kind: Literal["kda"] = "kda"

    @property
    def width(self) -> int:
        """Values of q, of k and of v."""
        return self.heads * self.head_dim

    @property
    def context_width(self) -> int:
        return self.width

    @property
    def cache_shape(self) -> tuple[int, int]:
        return 0, 0


AnyAttention = AttentionSpec | MlaSpec | KdaSpec
