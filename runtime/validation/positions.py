"""The far end of the positions: rope against float64, and a step over a cache filled with made-up values, so that nobody has to compute
so long a prompt."""

from __future__ import annotations

import torch
from torch import Tensor

from runtime.arch import AttentionSpec, MlaSpec, RopeSpec
from runtime.layers.rope import stretched
from runtime.local import BLOCK, LocalSequence
from runtime.recurrent import RecurrentState
from runtime.validation.document import Check
from runtime.validation.subject import Subject, apart, probe_ids

BYTES = 256 << 20  # of a made-up cache, and of the keys and values that a step makes of it
STEP = 8  # tokens of the step at the far end


def examine_positions(subject: Subject) -> list[Check]:
    """Both checks; the first is skipped for a model without positions."""
    rope = subject.model.arch.rope
    if rope is None:
        return [Check("rope", "skipped", "the model encodes no positions"), _far_step(subject)]
    return [_rope_error(subject, rope), _far_step(subject)]


def _rope_error(subject: Subject, spec: RopeSpec) -> Check:
    """Tables at the last positions against the same formula in float64. Float32 keeps an angle of p radians to p * 2^-24, and the
    frequency it came from to as much again."""
    model, last = subject.model, subject.model.arch.max_positions - 1
    assert model.rope is not None
    positions = torch.tensor(sorted({0, 1, last // 2, *range(max(0, last - STEP), last + 1)}))
    cos, sin = model.rope.tables(positions.expand(3, -1).to(model.device), model.dtype)
    half = spec.dim // 2
    angle = positions.double().unsqueeze(1) * frequencies(spec)
    strength = spec.yarn.attention_factor if spec.yarn is not None else 1.0
    error = max(
        float((cos[:, 0, :half].cpu().double() - angle.cos() * strength).abs().max()),
        float((sin[:, 0, half:].cpu().double() - angle.sin() * strength).abs().max()),
    )
    limit = 3 * last * 2**-24 * strength + (1e-6 if model.dtype == torch.float32 else 2**-7)
    told = f"largest error of cos and sin up to position {last}: {error:.1e}; float32 explains {limit:.1e}"
    return Check("rope", "pass" if error <= limit else "fail", told, error, limit)


def frequencies(spec: RopeSpec) -> Tensor:
    """[dim / 2] float64. Formula: theta^(-2i / dim) (Su et al. 2021), stretched as yarn says."""
    exponent = torch.arange(0, spec.dim, 2, dtype=torch.float64) / spec.dim
    inverse = spec.theta**-exponent
    return inverse if spec.yarn is None else stretched(inverse, spec, spec.yarn)


def _far_step(subject: Subject) -> Check:
    """The last tokens that the model has positions for, at once and one by one, behind a cache of made-up rows."""
    model, last = subject.model, subject.model.arch.max_positions
    held = min(last, max(4 * BLOCK, BYTES // max(1, _token_bytes(subject)))) - STEP
    if held < 1:
        return Check("far step", "skipped", f"the model has {last} positions only")
    ids = probe_ids(model.arch.vocab, last, STEP)
    sequence = LocalSequence(model, held + STEP, subject.float8, scattered=True)
    width = sequence.table.shape[0]
    if width != sequence.kv.blocks_for(held + STEP):
        return Check("far step", "fail", f"the block table has {width} blocks for {held + STEP} tokens")
    _fill(sequence, held)
    before = {i: [part.clone() for part in _parts(state)] for i, state in sequence.kv.states.items()}
    sequence.cached = held
    at_once = sequence.feed(ids, start=last - STEP)
    for i, state in sequence.kv.states.items():
        for part, kept in zip(_parts(state), before[i], strict=True):
            part.copy_(kept)
    sequence.cached = held
    one_by_one = torch.cat([sequence.feed([token], start=last - STEP + n) for n, token in enumerate(ids)])
    rows = apart(at_once, one_by_one)
    # A near-tie of a router may send a token elsewhere; a wrong table or position shows at all of them.
    typical, worst = float(rows.median()), float(rows.max())
    told = f"positions up to {last - 1} behind {held} made-up tokens, {width} blocks: relative error {typical:.1e} (largest {worst:.1e})"
    good = typical <= subject.limit and bool(at_once.isfinite().all()) and bool(one_by_one.isfinite().all())
    return Check("far step", "pass" if good else "fail", told, typical, subject.limit)


def _token_bytes(subject: Subject) -> int:
    """What a cached token takes: in the cache, and expanded to the keys and values of the widest layer."""
    item, cached, expanded = subject.model.dtype.itemsize, 0, 0
    for layer in subject.model.arch.layers:
        spec = layer.attention
        if isinstance(spec, AttentionSpec | MlaSpec):
            rows, width = spec.cache_shape
            cached += rows * width * item
            keys = 2 * spec.kv_heads * spec.head_dim if isinstance(spec, AttentionSpec) else 3 * spec.heads * spec.key_dim
            expanded = max(expanded, keys * item)
    return max(cached, expanded)


def _fill(sequence: LocalSequence, held: int) -> None:
    """Normal values in every cached row and state; seeded."""
    generator = torch.Generator().manual_seed(held)
    positions = torch.arange(held, device=sequence.table.device)
    slots = sequence.table[positions // BLOCK] * BLOCK + positions % BLOCK
    for pool in sequence.kv.pools:
        rows, width = pool.values.shape[0], pool.values.shape[3]
        if rows:
            pool.write(slots, torch.randn(rows, held, width, generator=generator).to(slots.device, pool.dtype))
    for state in sequence.kv.states.values():
        for part in _parts(state):
            part.copy_((torch.randn(part.shape, generator=generator) * 0.1).to(part))


def _parts(state: RecurrentState) -> tuple[Tensor, Tensor]:
    return state.window, state.memory
