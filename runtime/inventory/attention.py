"""The tensors of an attention layer, and what it keeps of a sequence."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.inventory.builder import Builder
from runtime.inventory.model import LayerCache


@dataclass(frozen=True, slots=True)
class Gqa:
    """Grouped-query attention: transformers names q_proj, k_proj, v_proj, o_proj."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    sinks: bool = False
    window: int | None = None

    def add(self, builder: Builder, at: str, layer: int) -> None:
        wide, narrow = self.heads * self.head_dim, self.kv_heads * self.head_dim
        builder.linear(at + "q_proj", wide, self.hidden, "attention", "tp", layer, self.qkv_bias)
        builder.linear(at + "k_proj", narrow, self.hidden, "attention", "kv", layer, self.qkv_bias)
        builder.linear(at + "v_proj", narrow, self.hidden, "attention", "kv", layer, self.qkv_bias)
        builder.linear(at + "o_proj", self.hidden, wide, "attention", "tp", layer)
        if self.out_bias:  # added once, after the sum over ranks: every rank keeps it
            builder.tensor(at + "o_proj.bias", (self.hidden,), "attention", layer=layer, role="vector")
        if self.qk_norm:
            builder.norm(at + "q_norm", self.head_dim, "attention", layer)
            builder.norm(at + "k_norm", self.head_dim, "attention", layer)
        if self.sinks:
            builder.tensor(at + "sinks", (self.heads,), "attention", "tp", layer, role="vector")

    def cache(self) -> LayerCache:
        return LayerCache("gqa", values=2 * self.kv_heads * self.head_dim, heads=self.kv_heads, window=self.window)


@dataclass(frozen=True, slots=True)
class Mla:
    """Latent attention: one latent row of kv_rank + rope values a token, shared by all heads. `gate`: sigmoid gate before o_proj."""

    hidden: int
    heads: int
    q_rank: int | None
    kv_rank: int
    nope: int
    rope: int
    value: int
    gate: bool = False
    bias: bool = False

    def add(self, builder: Builder, at: str, layer: int) -> None:
        rows = self.heads * (self.nope + self.rope)
        if self.q_rank is None:
            builder.linear(at + "q_proj", rows, self.hidden, "attention", "tp", layer)
        else:
            builder.linear(at + "q_a_proj", self.q_rank, self.hidden, "attention", layer=layer, bias=self.bias)
            builder.norm(at + "q_a_layernorm", self.q_rank, "attention", layer)
            builder.linear(at + "q_b_proj", rows, self.q_rank, "attention", "tp", layer)
        builder.linear(at + "kv_a_proj_with_mqa", self.kv_rank + self.rope, self.hidden, "attention", layer=layer, bias=self.bias)
        builder.norm(at + "kv_a_layernorm", self.kv_rank, "attention", layer)
        builder.linear(at + "kv_b_proj", self.heads * (self.nope + self.value), self.kv_rank, "attention", "tp", layer)
        if self.gate:
            builder.linear(at + "g_proj", self.heads * self.value, self.hidden, "attention", "tp", layer)
        builder.linear(at + "o_proj", self.hidden, self.heads * self.value, "attention", "tp", layer)
        if self.bias:
            builder.tensor(at + "o_proj.bias", (self.hidden,), "attention", layer=layer, role="vector")

    def cache(self) -> LayerCache:
        return LayerCache("mla", values=self.kv_rank + self.rope)


@dataclass(frozen=True, slots=True)
class Kda:
    """Kimi delta attention: a state [heads, head_dim, head_dim] instead of a cache, and the tails of three short convolutions."""

    hidden: int
    heads: int
    head_dim: int
    kernel: int
    full_rank_gate: bool
    log_shape: tuple[int, ...]  # of A_log: K3 pads it, transformers keeps three dimensions of one
    small: str | None = None  # dtype of convolutions, A_log, dt_bias and the output norm; None: as everything

    def add(self, builder: Builder, at: str, layer: int) -> None:
        wide = self.heads * self.head_dim
        for name in ("q", "k", "v"):
            builder.linear(f"{at}{name}_proj", wide, self.hidden, "attention", "tp", layer)
            shape = (wide, 1, self.kernel)
            builder.tensor(f"{at}{name}_conv1d.weight", shape, "attention", "tp", layer, self.small, role="vector")
        builder.linear(at + "f_a_proj", self.head_dim, self.hidden, "attention", layer=layer)
        builder.linear(at + "f_b_proj", wide, self.head_dim, "attention", "tp", layer)
        builder.linear(at + "b_proj", self.heads, self.hidden, "attention", "tp", layer)
        builder.tensor(at + "dt_bias", (wide,), "attention", "tp", layer, self.small, role="vector")
        builder.tensor(at + "A_log", self.log_shape, "attention", "tp", layer, self.small, role="vector")
        if self.full_rank_gate:
            builder.linear(at + "g_proj", wide, self.hidden, "attention", "tp", layer)
        else:
            builder.linear(at + "g_a_proj", self.head_dim, self.hidden, "attention", layer=layer)
            builder.linear(at + "g_b_proj", wide, self.head_dim, "attention", "tp", layer)
        builder.tensor(at + "o_norm.weight", (self.head_dim,), "attention", layer=layer, dtype=self.small, role="vector")
        builder.linear(at + "o_proj", self.hidden, wide, "attention", "tp", layer)

    def cache(self) -> LayerCache:
        wide = self.heads * self.head_dim
        return LayerCache("recurrent", heads=self.heads, state=wide * self.head_dim, conv=3 * wide * (self.kernel - 1))


Attention = Gqa | Mla | Kda
