"""oom.meta-fallback: building the model allocates real memory, before a byte of the checkpoint is read.

What is seen: anonymous memory rises by the size of the model while it is constructed; the weights come on top.

How it is told apart: the rise is over before the first read. A model that is built on the meta device costs nothing but rope tables.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, passed, skipped
from playbooks.document import Remedy
from playbooks.oom_on_load.budget import mib, verdict
from playbooks.oom_on_load.story import NEED, RankStory, story
from playbooks.oom_on_load.thresholds import CONSTRUCTED, SMALL

ID = "oom.meta-fallback"


def test(case: Case) -> Result:
    known = story(case).loaded_by_us
    if not known:
        return skipped("memory samples of ranks that say their plan; serve with telemetry on")
    worst = max(known, key=lambda one: one.built)
    kept = max(worst.fact("planned_kept") or 0, 1)
    share = worst.built / kept
    if not _built(worst):
        return passed(f"before the first read rank {worst.rank} rose by {mib(worst.built)}", round(share, 3), CONSTRUCTED, "of the plan")
    return verdict(
        case, ID, "Construction fills memory before anything is read", worst, [one.rank for one in known if _built(one)], worst.built,
        f"Rank {worst.rank} rose by {mib(worst.built)} before the first byte was read; its weights take {mib(kept)}.",
        share, CONSTRUCTED, "of the plan",
        Remedy(
            text="Build the model on the meta device; nothing inside construction may touch data. Fail loudly instead of falling back.",
            risk="low: the same weights arrive",
            verify="workbench diagnose oom-on-load",
        ),
        0.93,
    )  # fmt: skip


def _built(one: RankStory) -> bool:
    return one.built > max(CONSTRUCTED * (one.fact("planned_kept") or 0), SMALL)


CHECK = Check(ID, "Real memory in construction", mandatory=True, cost=10, test=test, needs=(NEED,), page=__doc__ or "")
