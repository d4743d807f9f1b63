"""The budget of a rank as a table for people: what was planned, what was measured, what is allowed, and the smallest change that fits."""

from __future__ import annotations

from typing import Any

from playbooks.case import Case
from playbooks.check import Result
from playbooks.document import Basis, Evidence, Impact, Remedy
from playbooks.finding import finding, subject
from playbooks.oom_on_load.story import RankStory, story
from playbooks.oom_on_load.thresholds import CERTAIN, FITS

MIB = 1 << 20


def mib(nbytes: float | None) -> str:
    return "unknown" if nbytes is None else f"{nbytes / MIB:,.0f} MiB"


def table(one: RankStory) -> dict[str, int | None]:
    """Bytes by line. Facts first, then what was measured."""
    settled = one.settled
    return {
        "checkpoint": one.fact("checkpoint_bytes"),
        "planned to read": one.fact("planned_read"),
        "planned to keep": one.fact("planned_kept"),
        "before loading": one.base,
        "highest rise while loading": one.peak,
        "rise left after loading": settled,
        "limit": one.limit,
    }


def as_text(one: RankStory) -> str:
    return "; ".join(f"{name} {mib(size)}" for name, size in table(one).items() if size is not None)


def needed(one: RankStory) -> int | None:
    """What a loader that wastes nothing needs: base, weights, and KV where it is known."""
    kept = one.fact("planned_kept")
    return None if kept is None else one.base + kept + (one.fact("planned_kv") or 0)


def pressed(one: RankStory) -> bool:
    """Alive, and close to its limit."""
    return one.limit is not None and one.base + one.peak > FITS * one.limit


def smallest_change(one: RankStory, excess: int) -> str:
    """What would have fitted, in one sentence."""
    need, limit = needed(one), one.limit
    if need is None or limit is None:
        return "Without the excess the rank needs what its plan says."
    if need <= CERTAIN * limit:
        return f"Without these {mib(excess)} the rank needs {mib(need)} of {mib(limit)}: it fits."
    return f"Also without these {mib(excess)} the rank needs {mib(need)} of {mib(limit)}: raise the limit to {mib(need / CERTAIN)}."


def verdict(
    case: Case,
    cause: str,
    title: str,
    one: RankStory,
    ranks: list[int],
    excess: int,
    said: str,
    observed: float,
    threshold: float,
    unit: str,
    remedy: Remedy,
    score: float = 0.9,
    basis: Basis = "established",
    evidence: tuple[Evidence, ...] = (),
    fatal: bool | None = None,
) -> Result:
    """A cause that was found: an error where memory ran out, a warning where it is close, only a note where there is room."""
    failed = (story(case).failed if fatal is None else fatal) or bool(one.died)
    severity: Any = "error" if failed else "warning" if pressed(one) else "info"
    reference = max(one.limit or 0, one.base + one.peak, 1)
    kept: dict[str, Any] = {name: size for name, size in table(one).items() if size is not None}
    found = finding(
        case,
        cause,
        severity,
        subject("rank", one.rank, ranks=ranks, budget=kept),
        title,
        f"{said} {smallest_change(one, excess)}",
        score,
        basis,
        impact=Impact(metric="memory", value=excess, unit="bytes", share=round(min(1.0, excess / reference), 4), alone=excess),
        evidence=(
            *evidence,
            case.derived("playbooks.oom_on_load.story on memory, load, event", round(observed, 3), threshold, unit, as_text(one)),
        ),
        remedy=(remedy,),
    )
    outcome: Any = "fail" if failed else "warn" if severity == "warning" else "pass"
    return Result(outcome, said, round(observed, 3), threshold, unit, (found,))
