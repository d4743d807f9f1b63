"""Whether every expert of every layer has answered. An expert that no probe token reaches can be damaged and show nothing at all
(reference/causes_oom_garbled_image.md, S2.2), so those that the router does not choose are computed by force."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.layers.experts import run_experts
from runtime.layers.moe import Mixture
from runtime.load_window import ExpertCounter
from runtime.local import LocalSequence
from runtime.model import MoeModel
from runtime.taps.capture import Capture
from runtime.validation.document import Check
from runtime.validation.subject import Subject, probe_ids

BATCH, BATCHES = 256, 16  # random tokens of a pass, and most passes
STEP, MOST_IDS = 64, 2048  # random tokens by which a prompt is lengthened, and how long it may get
ATTEMPTS = 8  # other random tokens, where those did not do
SIBLINGS = 50.0  # an expert that answers so many times more, or less, than its siblings (garbled.weight-corrupt, S2.3)
NAMED = 8


def examine_coverage(subject: Subject) -> list[Check]:
    """Random tokens until the router has chosen every expert; then the rest by force."""
    hits = _hits(subject)
    total = sum(len(layer) for layer in hits.values())
    missed = {layer: [e for e, count in enumerate(counts) if not count] for layer, counts in hits.items()}
    missed = {layer: experts for layer, experts in missed.items() if experts}
    count = sum(map(len, missed.values()))
    if not count:
        return [Check("expert coverage", "pass", f"all {total} experts of {len(hits)} layers were chosen", float(total), float(total))]
    names = [
        f"layer {layer}: {', '.join(map(str, experts[:NAMED]))}{' ...' if len(experts) > NAMED else ''}"
        for layer, experts in missed.items()
    ]
    told = f"{total - count} of {total} experts were chosen; never chosen: {'; '.join(names[:NAMED])}"
    bad = [problem for layer, experts in missed.items() for problem in _by_force(subject, layer, experts)]
    if bad:
        return [
            Check("expert coverage", "fail", f"{told}. Computed by force: {'; '.join(bad[:NAMED])}", float(total - count), float(total))
        ]
    return [
        Check("expert coverage", "note", told, float(total - count), float(total)),
        Check("experts by force", "pass", f"the {count} others answer finite values, as large as their siblings'"),
    ]


def covering_ids(model: MoeModel, ids: list[int], vocab: int | None = None) -> list[int]:
    """The ids, and random ones below `vocab` behind them until the router has chosen every expert of every layer. Of several attempts
    that is the first to succeed, or the one that leaves the fewest out."""
    best, fewest = ids, len(model.moe_layers) * model.arch.moe.experts if model.moe_layers else 0
    for attempt in range(ATTEMPTS if fewest else 0):
        found, left = _lengthened(model, ids, vocab or model.arch.vocab, 2000 + 100 * attempt)
        if left < fewest:
            best, fewest = found, left
        if not left:
            break
    return best


def unreached(model: MoeModel, capture: Capture) -> dict[int, list[int]]:
    """MoE layer -> its experts that no token of the capture chose; layers without one are left out."""
    every, found = set(range(model.arch.moe.experts)) if model.moe_layers else set(), {}
    for layer in model.moe_layers:
        left = every.difference(capture.taps[f"layers.{layer}.router.experts"].flatten().tolist())
        if left:
            found[layer] = sorted(left)
    return found


def _lengthened(model: MoeModel, ids: list[int], vocab: int, seed: int) -> tuple[list[int], int]:
    """One attempt -> the ids, and how many experts none of them reached."""
    counter = ExpertCounter(model.placement, model.moe_layers, model.arch.moe.experts, 0)
    room = max(len(ids), min(MOST_IDS, model.arch.max_positions))
    sequence = LocalSequence(model, room, counter=counter)
    left = {(layer, expert) for layer in model.moe_layers for expert in range(model.arch.moe.experts)}
    found: list[int] = []
    more = ids
    while left and more:
        sequence.feed(more)
        found += more
        left -= {(window.layer, e) for window in counter.flush() for e, count in enumerate(window.tokens) if count}
        seed += 1
        more = probe_ids(vocab, seed, min(STEP, room - len(found)))
    return found, len(left)


def _hits(subject: Subject) -> dict[int, list[int]]:
    """Layer -> tokens that chose each expert, over the probe ids and as many random tokens as it takes."""
    model = subject.model
    counter = ExpertCounter(model.placement, model.moe_layers, model.arch.moe.experts, 0)
    hits = {layer: [0] * model.arch.moe.experts for layer in model.moe_layers}
    size = min(BATCH, subject.room)
    for turn in range(BATCHES + 1):
        ids = subject.ids if not turn else probe_ids(model.arch.vocab, 1000 + turn, size)
        LocalSequence(model, len(ids), subject.float8, counter=counter).feed(ids)
        for window in counter.flush():
            hits[window.layer] = [a + b for a, b in zip(hits[window.layer], window.tokens, strict=True)]
        if all(min(counts) for counts in hits.values()):
            break
    return hits


def _by_force(subject: Subject, layer: int, experts: list[int]) -> list[str]:
    """What is wrong with experts that were never chosen, on rows that others were given."""
    mixture = subject.model.mixtures[layer]
    hidden = subject.capture().taps[f"layers.{layer}.ffn_norm"].to(subject.model.device)
    sizes = {e: float(_answer(mixture, hidden, e).norm()) for e in range(mixture.spec.experts) if e in experts or e < 4 * NAMED}
    usual = float(torch.tensor([size for e, size in sizes.items() if e not in experts] or list(sizes.values())).nanmedian())
    bad = []
    for e in experts:
        if not sizes[e] < float("inf"):
            bad.append(f"layer {layer} expert {e} answers NaN or infinity")
        elif not usual / SIBLINGS <= sizes[e] <= usual * SIBLINGS:
            bad.append(f"layer {layer} expert {e} answers {sizes[e] / usual if usual else 0:.2g} times what its siblings do")
    return bad


def _answer(mixture: Mixture, hidden: Tensor, expert: int) -> Tensor:
    """hidden [T, H] -> what one expert makes of all rows."""
    slot = int(mixture.slots(torch.tensor([[expert]], device=hidden.device))[0])
    latent = mixture.weights.latent
    rows = hidden if latent is None else F.linear(hidden, latent.down)
    per_slot = torch.zeros(mixture.weights.resident.slots, dtype=torch.int64, device=hidden.device)
    per_slot[slot] = rows.shape[0]
    return run_experts(rows, per_slot, mixture.weights.resident, mixture.spec.activation)
