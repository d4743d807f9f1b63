"""A cause's check: whether it is what explains the drift best, and the finding that says what was done instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from playbooks.case import Case
from playbooks.check import Check, Result, passed, skipped
from playbooks.document import Basis, Evidence, Finding, Impact, Remedy
from playbooks.finding import finding, subject
from playbooks.image_drift.cause import Cause
from playbooks.image_drift.explain import BENIGN, EXACT, MOST, Candidate, Reading, explain
from playbooks.image_drift.probe import probes
from playbooks.image_drift.sight import answers

MISSING = (
    "a picture and the tensor an engine made of it: --run of a live server of ours, or --image FILE --model FOLDER --observed FILE "
    "(.npy, .npz, .safetensors, .pt)"
)


def missing(case: Case) -> Result:
    """Nothing was compared, and why, where a run was asked that does not show its tensors."""
    unread = (answers(case) or {}).get("unread")
    return skipped(f"{MISSING}; {unread}" if unread else MISSING)


def readings(case: Case, causes: Sequence[Cause]) -> list[Reading]:
    """Of every picture, computed when first asked for."""
    if "image-readings" not in case.memo:
        found = probes(case)
        case.memo["image-readings"] = [explain(probe, found, causes) for probe in found]
    made: list[Reading] = case.memo["image-readings"]
    return made


def check_of(cause: Cause, causes: Sequence[Cause], cost: int) -> Check:
    return Check(cause.id, cause.title, mandatory=True, cost=cost, test=_test(cause, causes), needs=(), page=cause.page)


def _test(cause: Cause, causes: Sequence[Cause]) -> Callable[[Case], Result]:
    def test(case: Case) -> Result:
        found = readings(case, causes)
        if not found:
            return missing(case)
        blamed = [(one, best) for one in found if (best := one.best) is not None and best.cause == cause.id and not one.benign]
        if not blamed and cause.id == "image.dtype-path":
            lost = [one for one in found if one.nonfinite]
            if lost:
                return _lost(case, cause, max(lost, key=lambda one: one.nonfinite))
        if blamed:
            return _blamed(case, cause, blamed)
        return _cleared(cause, found)

    return test


def _blamed(case: Case, cause: Cause, blamed: list[tuple[Reading, Candidate]]) -> Result:
    reading, best = max(blamed, key=lambda pair: pair[1].explained)
    basis, score = _belief(reading, best)
    summary = f"The picture was {best.words}. " + _drift_words(reading) + f" That way leaves {best.left:.2f} levels on average."
    if reading.rivals:
        others = "; ".join(f"{one.cause}: {one.words}" for one in _one_each(reading.rivals))
        summary += f" This picture cannot tell it from: {others}."
    made = finding(
        case,
        cause.id,
        "error" if basis != "hypothesis" else "warning",
        subject("image", reading.probe.name, stage=cause.stage, instead=best.words),
        f"{cause.title}: {best.words}",
        summary,
        score,
        basis,
        impact=Impact(
            metric="difference from the reference",
            value=round(reading.mean or 0.0, 3),
            unit="levels",
            share=max(0.0, min(1.0, best.explained)),
        ),
        evidence=_evidence(case, reading, best),
        remedy=(
            Remedy(
                text=cause.remedy,
                risk="low: the picture is prepared as the model was trained",
                verify="workbench diagnose image-drift, with a new dump",
            ),
        ),
    )
    return Result("fail", summary, round(best.left, 3), EXACT, "levels left", (made,))


def _lost(case: Case, cause: Cause, reading: Reading) -> Result:
    """Inf and NaN: counted; which way made them is not known."""
    name, count = reading.probe.name, reading.nonfinite
    summary = f"{count} of {reading.probe.observed.size} values of {name!r} are Inf or NaN, which no picture gives."
    made = finding(
        case, cause.id, "error", subject("image", name, stage=cause.stage), f"{cause.title}: Inf or NaN", summary, 0.85, "supported",
        impact=Impact(metric="values that are Inf or NaN", value=count, unit="values", share=count / reading.probe.observed.size),
        evidence=(case.derived(f"values that are Inf or NaN, {name!r}", count, 0, "values", kind="tensor"),),
        remedy=(Remedy(text=cause.remedy, risk="low", verify="workbench diagnose image-drift, with a new dump"),),
    )  # fmt: skip
    return Result("fail", summary, count, 0, "values", (made,))


def _belief(reading: Reading, best: Candidate) -> tuple[Basis, float]:
    """Established only where nothing is left and nothing else explains it as well."""
    if reading.rivals:
        return "hypothesis", round(0.9 / (1 + len(_one_each(reading.rivals))), 2)
    if best.left <= EXACT:
        return "established", 0.97
    return ("supported", 0.8) if best.explained >= MOST else ("hypothesis", 0.5)


def _one_each(rivals: Sequence[Candidate]) -> list[Candidate]:
    return list({one.cause: one for one in reversed(rivals)}.values())


def _cleared(cause: Cause, found: list[Reading]) -> Result:
    if all(one.benign for one in found):
        worst = max(one.nearest or 0.0 for one in found)
        return passed(f"the tensors differ by {worst:.2f} levels at most: benign, not this stage", round(worst, 3), BENIGN, "levels")
    nearest = [one for reading in found if not reading.benign and (one := reading.of(cause.id)) is not None]
    if not nearest:
        return passed("no other way of this stage gives a tensor of the observed size")
    best = min(nearest, key=lambda one: one.left)
    return passed(
        f"nearest: {best.words}; it leaves {best.left:.2f} levels and explains {max(best.explained, 0.0):.0%}",
        round(best.left, 3),
        EXACT,
        "levels left",
    )


def _drift_words(reading: Reading) -> str:
    if not reading.same_grid:
        _, height, width = reading.probe.reference[1]
        return f"The reference has a grid of {height} x {width} patches, the tensor another."
    shape = f"R2 {reading.r2:.4f}, Laplacian x {reading.lap:.2f}"
    return f"It differs by {reading.mean:.2f} levels on average, {reading.largest:.1f} at most ({shape})."


def _evidence(case: Case, reading: Reading, best: Candidate) -> tuple[Evidence, ...]:
    name = reading.probe.name
    numbers: list[tuple[str, Any, Any, str]] = [
        ("mean difference after it", round(best.left, 4), 0.0, "levels"),
        ("share of the drift it explains", round(best.explained, 4), 1.0, "share"),
    ]
    if reading.same_grid:
        numbers += [
            ("mean difference", round(reading.mean or 0.0, 4), 0.0, "levels"),
            ("largest difference", round(reading.largest or 0.0, 3), BENIGN, "levels"),
            ("slope of the affine fit", round(sum(reading.slope) / 3, 5), 1.0, ""),
            ("R2 of the affine fit", round(reading.r2 or 0.0, 6), 1.0, ""),
            ("energy of the Laplacian over the reference's", round(reading.lap or 0.0, 4), 1.0, ""),
            ("the same multiset of patches", reading.same_patches, True, ""),
        ]
    return tuple(case.derived(f"{what}, {name!r}", seen, wanted, unit, kind="tensor") for what, seen, wanted, unit in numbers)


def unexplained(causes: Sequence[Cause]) -> Check:
    """The drift that no known way explains: said, so that nothing is found healthy because nothing fits."""

    def test(case: Case) -> Result:
        found = readings(case, causes)
        if not found:
            return missing(case)
        strange = [one for one in found if not one.benign and one.best is None and not one.nonfinite]
        if not strange:
            worst = max((one.nearest for one in found if one.benign and one.nearest is not None), default=0.0)
            said = f"at most {worst:.2f} levels: benign" if all(one.benign for one in found) else "what drifted is explained"
            return passed(said, round(worst, 3), BENIGN, "levels")
        first = strange[0]
        summary = _drift_words(first) + " No known way of preparing it gives this tensor: the stage is undetermined."
        made: Finding = finding(
            case,
            ID,
            "warning",
            subject("image", first.probe.name),
            "The tensor differs, and no known cause explains it",
            summary,
            0.4,
            "hypothesis",
            remedy=(
                Remedy(
                    text="Dump the picture after decoding and after resizing too; compare two pictures, to rule out a mix-up.", risk="none"
                ),
            ),
        )
        return Result("fail", summary, first.mean, BENIGN, "levels", (made,))

    return Check(ID, "A drift that no cause explains", mandatory=True, cost=90, test=test, page=unexplained.__doc__ or "")


ID = "image.unexplained"
