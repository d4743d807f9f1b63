"""What the attention of a layer reads, by its kind. Everything that belongs to a head is split over the lanes."""

from __future__ import annotations

from runtime.arch import AttentionSpec, KdaSpec, MlaSpec
from runtime.planner import Planner


def plan_attention_weights(planner: Planner, i: int) -> None:
    """The parts and targets of layer i's attention; its norm before is not part of it."""
    spec, share = planner.arch.layers[i].attention, planner.share
    if isinstance(spec, AttentionSpec):
        _plan_gqa(planner, spec, i)
    elif isinstance(spec, MlaSpec):
        _plan_mla(planner, spec, i)
    else:
        _plan_kda(planner, spec, i)
    hidden, heads = planner.arch.hidden, share.split(spec.heads)
    columns = _times(heads, spec.context_width // spec.heads)
    out = planner.matrix(f"layers.{i}.o", hidden, columns.stop - columns.start)
    planner.take(planner.arch.names("o", layer=i), (hidden, spec.context_width), out, columns=columns)


def _times(heads: slice, width: int) -> slice:
    """Rows or columns of some heads, each `width` wide."""
    return slice(heads.start * width, heads.stop * width)


def _plan_gqa(planner: Planner, spec: AttentionSpec, i: int) -> None:
    arch, share, ours = planner.arch, planner.share, f"layers.{i}."
    mine = share.attention(spec)
    assert isinstance(mine, AttentionSpec)
    qkv = planner.matrix(ours + "qkv", mine.qkv_rows, arch.hidden)
    bias = planner.target(ours + "qkv_bias", mine.qkv_rows) if spec.bias else ""
    queries, shared, at = share.split(spec.heads), share.kv_heads(spec.kv_heads), 0
    if spec.qk_norm is not None:
        for norm, heads, kept in (("q_norm", spec.heads, queries), ("k_norm", spec.kv_heads, shared)):
            whole = spec.qk_norm == "whole"
            rows = _times(kept, spec.head_dim) if whole else slice(0, spec.head_dim)
            stored = spec.head_dim * (heads if whole else 1)
            planner.take(arch.names(norm, layer=i), (stored,), planner.target(ours + norm, rows.stop - rows.start), rows=rows)
    for name, heads, kept in (("q", spec.heads, queries), ("k", spec.kv_heads, shared), ("v", spec.kv_heads, shared)):
        rows, stored = _times(kept, spec.head_dim), heads * spec.head_dim
        place = slice(at, at + rows.stop - rows.start)
        planner.take(arch.names(name, layer=i), (stored, arch.hidden), qkv, (place,), rows=rows)
        if bias:
            planner.take(arch.names(f"{name}_bias", layer=i), (stored,), bias, (place,), rows=rows)
        at = place.stop
    if spec.out_bias:
        planner.take(arch.names("o_bias", layer=i), (arch.hidden,), planner.target(ours + "o_bias", arch.hidden))
    if spec.sinks:
        planner.take(arch.names("sinks", layer=i), (spec.heads,), planner.target(ours + "sinks", mine.heads), rows=queries)


def _plan_mla(planner: Planner, spec: MlaSpec, i: int) -> None:
    """`mla.down`: the projections of the hidden state to the query's latent (or the queries) and to what is cached, stacked."""
    arch, ours, heads = planner.arch, f"layers.{i}.mla.", planner.share.split(spec.heads)
    queries, cached, mine = spec.heads * spec.key_dim, spec.cache_shape[1], _times(heads, spec.key_dim)
    first, name, kept = (queries, "q", mine) if spec.q_rank is None else (spec.q_rank, "q_a", slice(0, spec.q_rank))
    width = kept.stop - kept.start
    down = planner.matrix(ours + "down", width + cached, arch.hidden)
    planner.take(arch.names(name, layer=i), (first, arch.hidden), down, (slice(0, width),), rows=kept)
    planner.take(arch.names("kv_a", layer=i), (cached, arch.hidden), down, (slice(width, width + cached),))
    if spec.bias:
        bias = planner.target(ours + "down_bias", width + cached)
        planner.take(arch.names(name + "_bias", layer=i), (first,), bias, (slice(0, width),), rows=kept)
        planner.take(arch.names("kv_a_bias", layer=i), (cached,), bias, (slice(width, width + cached),))
        planner.take(arch.names("o_bias", layer=i), (arch.hidden,), planner.target(f"layers.{i}.o_bias", arch.hidden))
    if spec.q_rank is not None:
        planner.take(arch.names("q_a_norm", layer=i), (spec.q_rank,), planner.target(ours + "q_norm", spec.q_rank))
        up = planner.matrix(ours + "q_up", mine.stop - mine.start, spec.q_rank)
        planner.take(arch.names("q_b", layer=i), (queries, spec.q_rank), up, rows=mine)
    planner.take(arch.names("kv_a_norm", layer=i), (spec.kv_rank,), planner.target(ours + "kv_norm", spec.kv_rank))
    both = _times(heads, spec.nope_dim + spec.v_dim)
    stored = spec.heads * (spec.nope_dim + spec.v_dim)
    planner.take(
        arch.names("kv_b", layer=i), (stored, spec.kv_rank), planner.target(ours + "kv_up", both.stop - both.start, spec.kv_rank), rows=both
    )
    if spec.gated:
        values = _times(heads, spec.v_dim)
        gate = planner.matrix(ours + "gate", values.stop - values.start, arch.hidden)
        planner.take(arch.names("attention_gate", layer=i), (spec.context_width, arch.hidden), gate, rows=values)


def _plan_kda(planner: Planner, spec: KdaSpec, i: int) -> None:
    """`kda.qkv` and `kda.conv`: q, k and v stacked. What decides about decay is kept in float32: it is applied once a token."""
    arch, ours, width, hidden = planner.arch, f"layers.{i}.kda.", spec.width, planner.arch.hidden
    heads = planner.share.split(spec.heads)
    part = _times(heads, spec.head_dim)
    mine = part.stop - part.start
    qkv = planner.matrix(ours + "qkv", 3 * mine, hidden)
    conv = planner.target(ours + "conv", 3 * mine, 1, spec.conv, precise=True)
    for n, name in enumerate("qkv"):
        place = (slice(n * mine, (n + 1) * mine),)
        planner.take(arch.names(name, layer=i), (width, hidden), qkv, place, rows=part)
        planner.take(arch.names(f"{name}_conv", layer=i), (width, 1, spec.conv), conv, place, rows=part)
    for name in ("f_a",) if spec.full_gate else ("f_a", "g_a"):
        planner.take(arch.names(name, layer=i), (spec.head_dim, hidden), planner.matrix(ours + name, spec.head_dim, hidden))
    beta = planner.matrix(ours + "beta", heads.stop - heads.start, hidden)
    planner.take(arch.names("beta", layer=i), (spec.heads, hidden), beta, rows=heads)
    for name in ("f_b",) if spec.full_gate else ("f_b", "g_b"):
        planner.take(arch.names(name, layer=i), (width, spec.head_dim), planner.matrix(ours + name, mine, spec.head_dim), rows=part)
    if spec.full_gate:
        planner.take(arch.names("g", layer=i), (width, hidden), planner.matrix(ours + "g", mine, hidden), rows=part)
    planner.take(arch.names("dt_bias", layer=i), (width,), planner.target(ours + "dt_bias", mine, precise=True), rows=part)
    decay = planner.target(ours + "decay", heads.stop - heads.start, precise=True)
    planner.take_first(arch.key("decay", layer=i), decay, spec.heads, rows=heads)
    planner.take(arch.names("o_norm", layer=i), (spec.head_dim,), planner.target(ours + "o_norm", spec.head_dim, precise=True))
