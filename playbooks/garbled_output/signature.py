"""From the first diverging tap and what was tried there to one cause: the table of reference/causes_oom_garbled_image.md, S2.2.

Nothing is concluded where the answers do not change (KL and top-1 agreement below their limits): a shifted position alarms a tap and
harms nobody. Where the files are damaged, that is the cause.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from playbooks.case import Case
from playbooks.document import Observed
from playbooks.garbled_output.damage import found
from playbooks.garbled_output.facts import CHUNKS, COMPARED, FINITE, NORMS, SCALES, TRIAL, fact, facts
from playbooks.garbled_output.length_boundary import of_chunks
from playbooks.garbled_output.quant_scale import LARGEST

FITS = 0.01  # relative error of a trial that explains a tap
CONSTANT = 0.01  # spread of a factor that is one number


@dataclass(frozen=True, slots=True)
class Signature:
    """`cause` is the id of the check that reports it; "" where the tap fits none."""

    cause: str
    summary: str
    observed: Observed = None
    threshold: Observed = None
    unit: str = ""
    score: float = 0.85
    layer: int = -1
    experts: tuple[int, ...] = ()


def signature(case: Case) -> Signature | None:
    """The first comparison that is seen by users; None without one."""
    if "garbled-signature" not in case.memo:
        case.memo["garbled-signature"] = _signature(case)
    one: Signature | None = case.memo["garbled-signature"]
    return one


def _signature(case: Case) -> Signature | None:
    chunks, finite = fact(case, CHUNKS) or {}, fact(case, FINITE) or {}
    if found(case) or of_chunks(chunks) or finite.get("first") or _scales(case):
        return None
    for whole in facts(case, COMPARED):
        if whole.get("first") is None or not whole["visible"]:
            continue
        if any(whole["first"] in one["unlike"] for one in facts(case, NORMS) if one["with"] == whole["with"]):
            return Signature("garbled.norm", told(whole))
        tried = [one for one in facts(case, TRIAL) if one["with"] == whole["with"]]
        return _judge(whole, tried)
    return None


def _scales(case: Case) -> bool:
    spread = (fact(case, SCALES) or {}).get("largest_spread")
    return spread is not None and spread > LARGEST


def told(whole: dict[str, Any]) -> str:
    """The evidence in words: tap, size, gain, positions, KL, agreement."""
    gain = "" if whole.get("gain") is None else f", gain {whole['gain']:.3g}"
    size = "not finite" if whole.get("relative") is None else f"{whole['relative']:.3g}"
    kl = "infinite" if whole.get("kl") is None else f"{whole['kl']:.3g}"
    return (
        f"{whole['first']} is the first of the taps that diverges from {whole['source']}: by {size}{gain}, at {whole['hit']:.0%} of the "
        f"positions from {whole['first_hit']} to {whole['last_hit']}; KL {kl}, top-1 agreement {whole['top1']:.3g}"
    )


def _judge(whole: dict[str, Any], tried: list[dict[str, Any]]) -> Signature:
    first, base = whole["first"], told(whole)
    match = re.fullmatch(r"layers\.(\d+)\.(.+)", first)
    layer, part = (int(match[1]), match[2]) if match else (-1, first)
    one = {trial["trial"]: trial for trial in tried}
    if part == "key" or (part == "latent" and one.get("latent", {}).get("still", 1.0) < whole["limit"]):
        return Signature(
            "garbled.rope", _turned(whole, one.get("latent"), base), whole["relative"], whole["limit"], "relative L2", 0.9, layer
        )
    if part.startswith("router."):
        return _router(part, one.get("router", {}), base, layer)
    if part == "routed":
        return _routed(one, tried, base, layer)
    if part == "output" and "sum" in one and one["sum"]["left"] < FITS and "shared" in one["sum"]:
        times = one["sum"]["shared"]
        said = f"{base}; its parts are right, and the shared expert is added {times:.3g} times"
        return Signature("garbled.shared-expert-reduce", said, round(times, 3), 1.0, "times", 0.95, layer)
    if part == "attention" and (whole["first_hit"] or 0) > 1:  # position 1 sees all there is: no window or mask shows so early
        return Signature("garbled.attention", f"{base}; keys and values are right", whole["first_hit"], 0, "position", 0.8, layer)
    return Signature("", base, whole.get("relative"), whole["limit"], "relative L2", 0.6, layer)


def _turned(whole: dict[str, Any], latent: dict[str, Any] | None, base: str) -> str:
    at_zero = whole["first_hit"] == 0
    kind = "already at position 0, where nothing is turned: the layout of the pairs" if at_zero else "not at position 0: base or scaling"
    return f"{base}; what is not turned agrees; {kind}"


def _router(part: str, trial: dict[str, Any], base: str, layer: int) -> Signature:
    if trial.get("dropped"):
        said = f"{base}; {trial['dropped']} choices have weight 0 and the others are as in the reference"
        kept = trial.get("kept_error")
        if kept is not None and kept < FITS:
            return Signature("garbled.capacity-drop", said, trial["dropped"], 0, "choices", 0.9, layer)
    ratio, spread = trial.get("sum_ratio"), trial.get("sum_spread")
    cause = "garbled.router"
    if part == "router.logits":
        return Signature("", base, None, None, "", 0.6, layer)
    if part == "router.experts":
        said = f"{base}; the scores before the choice agree: another score function, bias or grouping chooses"
    elif ratio is not None and spread is not None and spread < CONSTANT and abs(ratio - 1) > CONSTANT:
        said = f"{base}; experts agree, and the weights of every token sum to {ratio:.3g} times the reference's: the scaling factor"
    elif spread is not None and spread < CONSTANT:
        said = f"{base}; experts and sums agree, proportions do not: the selection bias is in the weights, or another score function is"
    else:
        said = f"{base}; experts agree, sums vary from token to token: weights are not renormalised, or were"
    return Signature(cause, said, ratio, 1.0, "sum of the weights over the reference's", 0.9, layer)


def _routed(one: dict[str, dict[str, Any]], tried: list[dict[str, Any]], base: str, layer: int) -> Signature:
    for name, tried_order in one.items():
        if name.startswith("halves") and tried_order["relative"] < FITS:
            error = tried_order["relative"]
            return Signature(
                "garbled.expert-layout", f"{base}; with {name} it is right to {error:.1e}", error, FITS, "relative L2", 0.97, layer
            )
    single = [trial for trial in tried if trial["trial"] == "expert"]
    experts, exact = tuple(trial["expert"] for trial in single), bool(one.get("experts", {}).get("exact"))
    if single and exact and all("instead" in trial for trial in single):
        pairs = ", ".join(f"{trial['instead']} answers for {trial['expert']}" for trial in single)
        return Signature("garbled.expert-map", f"{base}; expert {pairs}", len(single), 0, "experts", 0.95, layer, experts)
    if single and exact:
        gains = ", ".join(
            f"{trial['expert']}: {trial['gain']:.3g} (cosine {trial['cosine']:.4f})"
            for trial in single[:4]
            if trial["gain"] and trial["cosine"]
        )
        said = f"{base}; these are exactly the tokens sent to experts {list(experts)}; times the reference's answer {gains}"
        return Signature("garbled.weight-corrupt", said, single[0]["gain"], 1.0, "times", 0.9, layer, experts)
    return Signature("", base, None, None, "", 0.6, layer)
