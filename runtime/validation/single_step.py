"""Tier 2: one step over the probe tokens, looked at from inside, and against a reference where there is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from runtime.local import LocalSequence
from runtime.taps.capture import Capture
from runtime.taps.compare import KL_LIMIT, Comparison, compare
from runtime.taps.faint import OF_NORM, gain_of, is_faint
from runtime.validation.coverage import examine_coverage
from runtime.validation.document import Check
from runtime.validation.subject import Subject

HALF_MAX = 65504.0  # largest float16
BYPASSED = (  # of training, or of engines with a capacity; this runtime has neither
    "router_jitter_noise", "router_aux_loss_coef", "router_z_loss_coef", "aux_loss_alpha", "seq_aux", "output_router_logits",
    "expert_capacity", "moe_capacity_factor", "capacity_factor", "moe_token_drop_policy", "moe_expert_capacity_factor",
)  # fmt: skip


def examine_single_step(subject: Subject) -> list[Check]:
    """Routing, finite values, norms, router weights, coverage, settings that are bypassed, taps against the reference."""
    checks = [_routed(subject), _bypassed(subject.model.checkpoint.config)]
    checks += [_finite(subject), _norms(subject), *_router_weights(subject)]
    if any(check.outcome == "fail" for check in checks):
        return [*checks, Check("expert coverage", "skipped", "a step does not compute what it should")]
    checks += examine_coverage(subject)
    if subject.reference is None:
        why = "no reference was given: --reference transformers, --reference FOLDER, or --against taps.safetensors"
        return [*checks, Check("reference", "skipped", why)]
    return [*checks, against(subject.reference, subject.capture())]


def _routed(subject: Subject) -> Check:
    """Rows that experts computed = tokens x top-k, in every layer; the runtime has no capacity, so none may be missing."""
    model, count = subject.model, len(subject.ids)
    sequence = LocalSequence(model, count, subject.float8)
    sequence.feed(subject.ids)
    wrong = []
    for layer, rows in zip(model.moe_layers, sequence.rows[0], strict=True):
        expected = count * model.mixtures[layer].spec.router.top_k
        if rows != expected:
            wrong.append(f"layer {layer} computed {rows} rows of {expected}")
    if wrong:
        return Check("routed rows", "fail", "; ".join(wrong[:8]), float(len(wrong)), 0.0)
    return Check(
        "routed rows", "pass", f"{count} tokens x top-k in all {len(model.moe_layers)} layers, 0 dropped; no capacity limits them", 0.0, 0.0
    )


def _bypassed(config: Mapping[str, Any]) -> Check:
    inner = config.get("text_config")
    found = {**(inner if isinstance(inner, dict) else {}), **config}
    said = [f"{name} {found[name]!r}" for name in BYPASSED if found.get(name) is not None]
    return Check(
        "training settings", "note", f"bypassed: {', '.join(said)}" if said else "no jitter, capacity or auxiliary loss in the config"
    )


def _finite(subject: Subject) -> Check:
    capture = subject.capture()
    largest, where = 0.0, ""
    for name in capture.names():
        tap = capture.taps[name]
        if not tap.is_floating_point():
            continue
        if not bool(tap.isfinite().all()):
            rows = (~tap.isfinite().all(1)).nonzero().flatten()
            return Check("finite", "fail", f"{name} has NaN or infinity at {len(rows)} of {tap.shape[0]} positions, from {int(rows[0])} on")
        if float(tap.abs().max()) > largest:
            largest, where = float(tap.abs().max()), name
    told = f"the largest value is {largest:.4g}, in {where}"
    if largest > HALF_MAX:
        told += "; float16 could not hold it"
    elif largest > HALF_MAX / 2:
        told += "; close to what float16 can hold"
    return Check("finite", "pass", told, largest, HALF_MAX if subject.model.dtype == torch.float16 else None)


def _norms(subject: Subject) -> Check:
    """What norms leave of a faint row, where their epsilon decides, against the same formula in float64."""
    taps, want = subject.capture().taps, gain_of(subject.model.arch.norm_eps)
    errors = {name: abs(float(tap[0, 0]) / want - 1) for name, tap in taps.items() if is_faint(name)}
    where = max(errors, key=lambda name: errors[name])
    worst, limit = errors[where], 1e-5 if subject.model.dtype == torch.float32 else 0.02
    told = f"{len(errors)} norms leave of a faint row what the epsilon {subject.model.arch.norm_eps:g} does, within {worst:.1e}"
    if worst > limit:
        told = f"{where.removesuffix(OF_NORM)} leaves something else of a faint row than the config's epsilon does, by {worst:.2g}"
    return Check("norms", "fail" if worst > limit else "pass", told, worst, limit)


def _router_weights(subject: Subject) -> list[Check]:
    """Renormalised weights of a token sum to the scale, whichever experts were chosen."""
    taps, worst, where = subject.capture().taps, 0.0, -1
    layers = [layer for layer in subject.model.moe_layers if subject.model.mixtures[layer].spec.router.renormalise]
    for layer in layers:
        scale = subject.model.mixtures[layer].spec.router.scale
        error = float((taps[f"layers.{layer}.router.weights"].double().sum(1) / scale - 1).abs().max())
        if error > worst:
            worst, where = error, layer
    if not layers:
        return [Check("router weights", "note", "not renormalised: their sum says nothing")]
    limit = 1e-5 if subject.model.dtype == torch.float32 else 0.02
    if worst > limit:
        return [Check("router weights", "fail", f"layer {where}: the weights of a token sum to {worst:.2g} off the scale", worst, limit)]
    return [Check("router weights", "pass", f"those of a token sum to the scale within {worst:.1e}", worst, limit)]


def against(reference: Capture, observed: Capture, name: str = "reference") -> Check:
    """The first tap that diverges, if answers differ with it. UsageError when the two saw different ids."""
    found = compare(reference, observed)
    source = f"{reference.facts.get('source', 'taps')} ({reference.facts.get('dtype', 'dtype unknown')})"
    if found.first is None and found.visible:
        told = f"no tap diverges where routers agree, and answers differ from {source}{_answers(found)}"
        return Check(name, "fail", told, found.kl, KL_LIMIT)
    if found.first is None:
        worst = max((tap.relative for tap in found.taps), default=0.0)
        told = f"{len(found.taps)} taps agree with {source}, largest relative error {worst:.1e}{_answers(found)}"
        if found.flipped:
            told += f"; {len(found.flipped)} tokens left out: near-ties of a router"
        unlike = [tap.name.removesuffix(OF_NORM) for tap in found.faint if tap.diverges]
        if unlike:  # no row of this prompt is small enough to show it
            told += f"; {len(unlike)} norms, {unlike[0]} first, leave something else of a faint row: another epsilon"
        return Check(name, "note" if unlike else "pass", told, worst, found.limit)
    first = found.first
    told = f"{first.name} diverges from {source} by {first.relative:.3g}, gain {first.gain:.3g}, {first.hit:.0%} of the positions"
    told += f" from {first.first_hit} on{_answers(found)}"
    if not found.visible:  # a shifted position alarms a tap and changes no answer
        return Check(name, "note", f"{told}: the answers do not change", first.relative, found.limit)
    return Check(name, "fail", told, first.relative, found.limit)


def _answers(found: Comparison) -> str:
    return "" if found.kl is None or found.top1 is None else f", KL {found.kl:.2g}, top-1 agreement {found.top1:.3g}"
