"""Two captures of the same token ids: where they part first, by how much, and what it does to the answers.

Thresholds: reference/causes_oom_garbled_image.md, S2.2: below 0.01 the noise of two bfloat16 runs, up to 0.05 as a quantisation makes,
KL above 0.05 or top-1 agreement below 0.95 is seen by users. Between two float32 runs 1e-3: ten times the parity the runtime is held to.

Near-ties: rounding alone can send a token to another expert. Tokens whose experts differ, few of them, are left out of what follows
within the same run of taps; what attention spreads of them to others is judged by the coarser limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from runtime.taps.capture import Capture, in_order
from runtime.taps.faint import is_faint
from traces.errors import UsageError

FLOAT32_LIMIT, HALF_LIMIT = 1e-3, 0.05
FLIPS = 0.01  # share of a layer's tokens whose experts may differ between float32 runs
HALF_FLIPS = 0.1  # the same in half precision, where scores are rounded a thousand times more coarsely than in float32
KL_LIMIT, TOP1_LIMIT = 0.05, 0.95


@dataclass(frozen=True, slots=True)
class TapDifference:
    """Of one tap. For `router.experts`: `relative` is the share of tokens with another set of experts, gain and cosine are nan."""

    name: str
    relative: float  # L2 of the difference over L2 of the reference; inf where either is not finite
    gain: float  # least-squares scale from the reference to the observed; nan where the reference is zero
    cosine: float
    hit: float  # share of positions above the limit
    first_hit: int | None  # position
    last_hit: int | None
    non_finite: int  # values of the observed that are NaN or infinite
    diverges: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """`taps` in the order of execution, `faint` likewise. KL(reference | observed) in nats a token; None where one side has no logits."""

    taps: list[TapDifference]
    missing: list[str]  # taps that one side lacks
    limit: float
    kl: float | None
    kl_late_over_early: float | None  # means of the second and the first half
    top1: float | None
    changed: list[int]  # positions whose most likely next token differs
    flipped: list[int]  # positions left out behind a near-tie of the router
    faint: list[TapDifference] = field(default_factory=list)  # of norms given a faint row; part of no answer to this prompt

    @property
    def first(self) -> TapDifference | None:
        """The first diverging tap."""
        return next((tap for tap in self.taps if tap.diverges), None)

    @property
    def visible(self) -> bool:
        """Whether users see it: the answers differ, not only the activations."""
        if self.kl is None or self.top1 is None:
            return self.first is not None
        return not self.kl <= KL_LIMIT or self.top1 < TOP1_LIMIT


def compare(reference: Capture, observed: Capture, limit: float | None = None) -> Comparison:
    """UsageError when the token ids differ, or nothing is in both. A shape that differs is a divergence of its tap."""
    if reference.ids != observed.ids:
        at = next((i for i, (a, b) in enumerate(zip(reference.ids, observed.ids, strict=False)) if a != b), "the end")
        raise UsageError(f"the two sides saw different token ids, from {at} on", "record both with the same ids")
    limit = limit if limit is not None else limit_for(reference, observed)
    shared = in_order(reference.taps.keys() & observed.taps.keys())
    if not shared:
        raise UsageError("the two sides have no tap in common", "record both again")
    apart = [name for name in shared if is_faint(name)]
    shared = [name for name in shared if not is_faint(name)]
    judge = _Judge(limit, torch.zeros(len(reference.ids), dtype=torch.bool))
    differences = [judge.difference(name, reference.taps[name], observed.taps[name]) for name in shared]
    kl = late = top1 = None
    changed: list[int] = []
    if "logits" in shared and reference.taps["logits"].shape == observed.taps["logits"].shape:
        kl, late, top1, changed = answers(reference.taps["logits"], observed.taps["logits"])
    missing = [name for name in in_order(reference.taps.keys() ^ observed.taps.keys()) if not is_faint(name)]
    whole = _Judge(limit, torch.zeros(len(reference.ids), dtype=torch.bool))  # a near-tie is no matter of theirs
    faint = [whole.difference(name, reference.taps[name], observed.taps[name]) for name in apart]
    return Comparison(differences, missing, limit, kl, late, top1, changed, judge.flipped.nonzero().flatten().tolist(), faint)


def limit_for(*captures: Capture) -> float:
    """The relative error above which a tap diverges, from the coarsest dtype of compute or cache."""
    halves = {"bfloat16", "float16", "fp8"}
    coarse = any(capture.facts.get(key) in halves for capture in captures for key in ("dtype", "kv"))
    return HALF_LIMIT if coarse else FLOAT32_LIMIT


def answers(reference: Tensor, observed: Tensor) -> tuple[float, float | None, float, list[int]]:
    """Logits [T, V] each -> KL in nats a token, its late over its early mean, top-1 agreement, positions with another first choice.

    Not finite counts as infinitely far, and as another choice."""
    a, b = reference.double(), observed.double()
    sound = a.isfinite().all(-1) & b.isfinite().all(-1)
    p, q = a.log_softmax(-1), b.log_softmax(-1)
    kl = torch.where(sound, (p.exp() * (p - q)).sum(-1).clamp_min(0), torch.inf)
    same = (a.argmax(-1) == b.argmax(-1)) & sound
    half = kl.shape[0] // 2
    early, late = (float(kl[:half].mean()), float(kl[half:].mean())) if half else (0.0, 0.0)
    ratio = late / early if early > 0 and math.isfinite(early) else None
    return float(kl.mean()), ratio, float(same.double().mean()), (~same).nonzero().flatten().tolist()


@dataclass(slots=True)
class _Judge:
    """Taps must come in the order of execution."""

    limit: float
    flipped: Tensor  # [T] bool, positions that a near-tie has sent elsewhere so far

    def difference(self, name: str, reference: Tensor, observed: Tensor) -> TapDifference:
        if reference.shape != observed.shape:
            return TapDifference(name, math.inf, math.nan, math.nan, 1.0, 0, reference.shape[0] - 1, 0, True)
        if name.endswith("router.experts"):
            return self._choices(name, reference, observed)
        limit = max(self.limit, HALF_LIMIT) if bool(self.flipped.any()) else self.limit
        kept = ~self.flipped
        a, b = reference.double().flatten(1), observed.double().flatten(1)
        bad = int((~b.isfinite()).sum())
        rows = (b - a).norm(dim=1) / a.norm(dim=1).clamp_min(torch.finfo(torch.float64).tiny)
        rows = torch.where(a.isfinite().all(1) & b.isfinite().all(1), rows, torch.inf)
        hit = ((rows > limit) & kept).nonzero().flatten()
        finite = bool(rows[kept].isfinite().all())
        relative, gain, cosine = _measures(a[kept], b[kept]) if finite else (math.inf, math.nan, math.nan)
        return _told(name, relative, gain, cosine, hit, a.shape[0], bad, not relative <= limit)

    def _choices(self, name: str, reference: Tensor, observed: Tensor) -> TapDifference:
        """A single token, or a few in a hundred, may flip, over all layers so far; more are another router, and so are all tokens."""
        other = (reference != observed).any(1) & ~self.flipped
        hit, count = other.nonzero().flatten(), reference.shape[0]
        allowed = FLIPS if self.limit < HALF_LIMIT else HALF_FLIPS
        left_out = int((self.flipped | other).sum())
        diverges = bool(len(hit)) and (left_out > max(1.0, allowed * count) or left_out == count)
        if not diverges:
            self.flipped |= other
        return _told(name, len(hit) / count, math.nan, math.nan, hit, count, 0, diverges)


def _measures(a: Tensor, b: Tensor) -> tuple[float, float, float]:
    """Reference a and observed b, finite [n, ...] -> relative L2, gain, cosine."""
    length, other, product = float(a.norm()), float(b.norm()), float((a * b).sum())
    if not length:
        return (math.inf if other else 0.0), math.nan, math.nan
    return float((b - a).norm()) / length, product / length**2, product / (length * other) if other else math.nan


def _told(name: str, relative: float, gain: float, cosine: float, hit: Tensor, count: int, bad: int, diverges: bool) -> TapDifference:
    first, last = (int(hit[0]), int(hit[-1])) if len(hit) else (None, None)
    return TapDifference(name, relative, gain, cosine, len(hit) / count, first, last, bad, diverges)
