"""oom.all-ranks-full-copy: every rank brings the whole checkpoint into memory to keep a part of it.

What is seen: anonymous memory of each rank rises by the size of the whole checkpoint, whatever the number of ranks: adding ranks makes
the host worse, not better.

How it is told apart: the plan says that the rank's share is at most half. With one rank the same loader is oom.full-read-buffer.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, passed, skipped
from playbooks.document import Remedy
from playbooks.oom_on_load.budget import mib, verdict
from playbooks.oom_on_load.story import NEED, RankStory, story
from playbooks.oom_on_load.thresholds import FULL_COPY, SHARED_PLAN

ID = "oom.all-ranks-full-copy"


def test(case: Case) -> Result:
    known = story(case).loaded_by_us
    if not known:
        return skipped("memory samples of ranks that say their plan; serve with telemetry on")
    shared = [one for one in known if is_shared(one) and not _still_held(one)]
    if not shared:
        return passed("the plan gives a rank more than half of the checkpoint", None, SHARED_PLAN, "of the checkpoint")
    worst = max(shared, key=share)
    said = f"rank {worst.rank} rose to {share(worst):.2f} of the whole checkpoint while reading"
    if share(worst) < FULL_COPY:
        return passed(said, round(share(worst), 3), FULL_COPY, "of the checkpoint")
    ranks = [one.rank for one in shared if share(one) >= FULL_COPY]
    plan = worst.fact("planned_kept") or 0
    return verdict(
        case, ID, "Every rank brings in the whole checkpoint", worst, ranks, max(0, worst.peak_reading - plan),
        f"Rank {worst.rank} was to keep {mib(plan)} and rose by {mib(worst.peak_reading)}: the whole checkpoint has "
        f"{mib(worst.fact('checkpoint_bytes'))}.",
        share(worst), FULL_COPY, "of the checkpoint",
        Remedy(
            text="Let each rank read only the slices it keeps; or let one rank read and broadcast tensor by tensor.",
            risk="low: the same weights arrive",
            verify="workbench diagnose oom-on-load",
        ),
        0.93,
    )  # fmt: skip


def is_shared(one: RankStory) -> bool:
    """Whether the rank was to read at most half of the checkpoint."""
    return (one.fact("planned_read") or 0) <= SHARED_PLAN * (one.fact("checkpoint_bytes") or 0)


def _still_held(one: RankStory) -> bool:
    """The excess outlives loading: that is oom.retained-source."""
    excess = one.peak_reading - (one.fact("planned_kept") or 0)
    return one.settled is not None and one.peak_reading - one.settled < 0.5 * excess


def share(one: RankStory) -> float:
    return one.peak_reading / max(one.fact("checkpoint_bytes") or 0, 1)


CHECK = Check(ID, "Every rank reads everything", mandatory=True, cost=12, test=test, needs=(NEED,), page=__doc__ or "")
