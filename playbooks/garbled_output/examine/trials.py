"""What would make the first diverging tap right: for each suspicion, its effect is computed from the reference's own inputs and our
weights, and held against the reference's output. A trial that fits names the cause; one that does not rules it out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.layers.experts import run_experts
from runtime.layers.moe import Mixture
from runtime.model import MoeModel
from runtime.taps.capture import Capture
from runtime.weights import ExpertBank

Trial = dict[str, Any]
_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
# What a trial reads of the reference beside the tap itself.
USES = {"router": ("router.experts", "router.weights"), "routed": ("ffn_norm", "router.experts", "router.weights")}
# How an engine can have taken gate and up: [E, 2I, ...] as it was loaded -> as it was meant.
ORDERS: dict[str, Callable[[Tensor], Tensor]] = {
    "halves exchanged": lambda rows: torch.cat(rows.chunk(2, 1)[::-1], 1),
    "halves interleaved": lambda rows: torch.cat((rows[:, ::2], rows[:, 1::2]), 1),
    "halves taken apart": lambda rows: torch.stack(rows.chunk(2, 1), 2).flatten(1, 2),
}
MOST_EXPERTS = 64  # experts that are tried one by one


def trials(model: MoeModel, tap: str, reference: Capture, observed: Capture) -> Iterator[Trial]:
    """Rows for the first diverging tap; none where nothing is known to try."""
    found = _LAYER.fullmatch(tap)
    if found is None:
        return
    layer, part = int(found[1]), found[2]
    at = f"layers.{layer}."
    if not reference.taps.keys() >= {at + name for name in USES.get(part.partition(".")[0], ())}:
        return
    if part.startswith("router."):
        yield router(at, reference, observed)
    elif part == "routed" and layer in model.mixtures:
        yield from routed(model.mixtures[layer], at, reference, observed)
    elif part == "output":
        yield from added(at, reference, observed)
    elif part == "latent":
        yield latent(model, layer, at, reference, observed)


def router(at: str, reference: Capture, observed: Capture) -> Trial:
    """Sums of the weights a token gives its experts, where both sides chose the same: their ratio, constant or not, and dropped ones."""
    a, b = reference.taps[at + "router.weights"].double(), observed.taps[at + "router.weights"].double()
    same = (reference.taps[at + "router.experts"] == observed.taps[at + "router.experts"]).all(1)
    logits = (
        relative(reference.taps[at + "router.logits"], observed.taps[at + "router.logits"])
        if at + "router.logits" in reference.taps
        else None
    )
    row: Trial = {"trial": "router", "same": float(same.double().mean()), "logits": logits}
    if not bool(same.any()):
        return row
    a, b = a[same], b[same]
    ratio = b.sum(1) / a.sum(1).clamp_min(1e-30)
    zero = (b == 0) & (a != 0)
    kept = ~zero.any(1)
    row |= {
        "sum_ratio": finite(float(ratio.median())),
        "sum_spread": finite(float((ratio.max() - ratio.min()) / ratio.median().abs().clamp_min(1e-30))),
        "sum_reference": finite(float(a.sum(1).median())),
        "dropped": int(zero.sum()),
        "kept_error": relative(a[kept], b[kept]) if bool(kept.any()) else None,
        "proportions": finite(relative(a / a.sum(1, keepdim=True), b / b.sum(1, keepdim=True).clamp_min(1e-30))),
    }
    return row


def routed(mixture: Mixture, at: str, reference: Capture, observed: Capture) -> Iterator[Trial]:
    """Halves exchanged, and each expert by itself: scaled, or another one's."""
    hidden, want = reference.taps[at + "ffn_norm"].float(), reference.taps[at + "routed"].double()
    experts, shares = reference.taps[at + "router.experts"], reference.taps[at + "router.weights"].double()
    latent = mixture.weights.latent
    if latent is not None or mixture.weights.resident.gate_up.dtype != torch.float32:
        return
    bank = mixture.weights.resident
    own = _parts(mixture, bank, hidden, experts, shares)
    yield {"trial": "as it is", "relative": relative(want, own.sum(1))}
    for name, order in ORDERS.items():
        other = ExpertBank(order(bank.gate_up), bank.down, None if bank.gate_up_bias is None else order(bank.gate_up_bias), bank.down_bias)
        yield {"trial": name, "relative": relative(want, _parts(mixture, other, hidden, experts, shares).sum(1))}
    yield from _one_by_one(mixture, hidden, want, experts, shares, own)


def _one_by_one(mixture: Mixture, hidden: Tensor, want: Tensor, experts: Tensor, shares: Tensor, own: Tensor) -> Iterator[Trial]:
    """Experts whose tokens alone are wrong: by how much each is scaled, or whose answer stands in its place."""
    wrong = (own.sum(1) - want).norm(dim=1) > 1e-3 * want.norm(dim=1).clamp_min(1e-30)
    hit = {e: bool(wrong[(experts == e).any(1)].all()) for e in sorted(set(experts.flatten().tolist()))}
    clean = {e for e in hit if not bool(wrong[(experts == e).any(1)].all())}
    suspects = [e for e in hit if e not in clean]
    explained = torch.isin(experts, torch.tensor(suspects, dtype=experts.dtype)).any(1) if suspects else torch.zeros_like(wrong)
    yield {
        "trial": "experts", "suspects": suspects[:MOST_EXPERTS], "of": len(hit), "exact": bool((explained == wrong).all()),
        "hit": float(wrong.double().mean()),
    }  # fmt: skip
    if not suspects or len(suspects) > MOST_EXPERTS or len(suspects) == len(hit) > 2:
        return
    for expert in suspects:
        chosen = (experts == expert) & (
            torch.isin(experts, torch.tensor([s for s in suspects if s != expert], dtype=experts.dtype)).any(1, keepdim=True).logical_not()
        )
        rows = chosen.any(1)
        if not bool(rows.any()):
            continue
        mine = own[rows][chosen[rows]]
        target = mine - (own[rows].sum(1) - want[rows])
        row: Trial = {"trial": "expert", "expert": expert, "tokens": int(rows.sum()), **fit(mine, target)}
        for other in suspects:
            if other != expert:
                answer = _answer(mixture, hidden[rows], other).double() * shares[rows][chosen[rows]].unsqueeze(1)
                if relative(target, answer) < 0.01:
                    row["instead"] = other
        yield row


def fit(observed: Tensor, reference: Tensor) -> Trial:
    """By how much the observed is the reference times a number, and the cosine of the two."""
    length, other = float(reference.norm()), float(observed.norm())
    product = float((observed * reference).sum())
    if not length or not other:
        return {"gain": 0.0 if not other else None, "cosine": None}
    return {"gain": product / length**2, "cosine": product / (length * other)}


def added(at: str, reference: Capture, observed: Capture) -> Iterator[Trial]:
    """The mixture's parts are right and their sum is not: how often each was added, by least squares."""
    names = [name for name in ("shared", "routed") if at + name in reference.taps]
    if at + "output" not in reference.taps or not names:
        return
    extra = (observed.taps[at + "output"].double() - reference.taps[at + "output"].double()).flatten()
    parts = torch.stack([reference.taps[at + name].double().flatten() for name in names], 1)
    solved = torch.linalg.lstsq(parts, extra.unsqueeze(1)).solution.flatten()
    left = float((parts @ solved - extra).norm() / extra.norm().clamp_min(1e-30))
    yield {"trial": "sum", "left": left, **{name: 1.0 + float(value) for name, value in zip(names, solved, strict=True)}}


def latent(model: MoeModel, layer: int, at: str, reference: Capture, observed: Capture) -> Trial:
    """Latent attention caches what is turned behind what is not: which of the two parts, and whether at position 0."""
    width = getattr(model.arch.layers[layer].attention, "kv_rank", 0)
    a, b = reference.taps[at + "latent"].double(), observed.taps[at + "latent"].double()
    still, turned, at_zero = (relative(a[rows], b[rows]) for rows in _latent_parts(width))
    return {"trial": "latent", "still": still, "turned": turned, "at_zero": at_zero}


def _latent_parts(width: int) -> tuple[tuple[slice, slice], ...]:
    every, turned = slice(None), slice(width, None)
    return (every, slice(width)), (every, turned), (slice(1), turned)


def _parts(mixture: Mixture, bank: ExpertBank, hidden: Tensor, experts: Tensor, shares: Tensor) -> Tensor:
    """[T, k, H] float64: what each chosen expert adds to a token."""
    out = torch.zeros(*experts.shape, hidden.shape[1], dtype=torch.float64)
    for expert in sorted(set(experts.flatten().tolist())):
        rows, place = (experts == expert).nonzero(as_tuple=True)
        out[rows, place] = _answer(mixture, hidden[rows], expert, bank).double() * shares[rows, place].unsqueeze(1)
    return out


def _answer(mixture: Mixture, rows: Tensor, expert: int, bank: ExpertBank | None = None) -> Tensor:
    bank = bank or mixture.weights.resident
    slot = int(mixture.slots(torch.tensor([[expert]]))[0])
    counts = F.one_hot(torch.tensor(slot), bank.slots) * rows.shape[0]
    return run_experts(rows, counts, bank, mixture.spec.activation)


def relative(a: Tensor, b: Tensor) -> float:
    """L2 of the difference over that of a; a large number where either is not finite."""
    found = float((b.double() - a.double()).norm() / a.double().norm().clamp_min(1e-30))
    return found if math.isfinite(found) else 1e30


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
