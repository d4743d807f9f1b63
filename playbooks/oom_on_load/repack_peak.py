"""oom.repack-peak: weights are rearranged after they were read, and old and new copies live side by side.

What is seen: everything has been read, then memory rises once more, by the size of what is converted: a list of experts and the stack
made of it, a fused tensor and its transposed copy.

How it is told apart: the rise begins after the last read, and falls back when the conversion ends.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, passed, skipped
from playbooks.document import Remedy
from playbooks.oom_on_load.budget import mib, verdict
from playbooks.oom_on_load.device_error import device_check
from playbooks.oom_on_load.story import NEED, RankStory, story
from playbooks.oom_on_load.thresholds import REPACK, SMALL

ID = "oom.repack-peak"
_REMEDY = Remedy(
    text="Write each expert into the preallocated fused tensor as it arrives; convert layer by layer through a bounded scratch.",
    risk="low: the same weights arrive",
    verify="workbench diagnose oom-on-load",
)


def test(case: Case) -> Result:
    if story(case).foreign:
        return device_check(case, ID, "Weights are rearranged on a full device", _REMEDY)
    known = [one for one in story(case).loaded_by_us if one.peak_after is not None]
    if not known:
        return skipped("a rank that had read everything; none came so far")
    worst = max(known, key=_saw)
    largest = max(worst.fact("largest") or 0, 1)
    said = f"after the last read, rank {worst.rank} rose by {mib(max(_saw(worst), 0))}; its largest tensor has {mib(largest)}"
    if not _repacks(worst):
        return passed(said, round(_saw(worst) / largest, 3), REPACK, "of the largest tensor")
    return verdict(
        case, ID, "Old and new copies live side by side while weights are rearranged", worst, [one.rank for one in known if _repacks(one)],
        _saw(worst), f"After the last byte was read, rank {worst.rank} rose by {mib(_saw(worst))} while it rearranged "
        f"{mib(worst.fact('planned_kept'))} of weights.",
        _saw(worst) / largest, REPACK, "of the largest tensor",
        _REMEDY, 0.9,
    )  # fmt: skip


def _saw(one: RankStory) -> int:
    """Rise after the last read above what there was when it ended."""
    if one.peak_after is None or one.all_read is None:
        return 0
    before = [s.anon - one.base for s in one.loading if s.ts <= one.all_read]
    return one.peak_after - (before[-1] if before else 0)


def _repacks(one: RankStory) -> bool:
    if _saw(one) < max(REPACK * (one.fact("largest") or 0), SMALL):
        return False
    settled = one.settled
    return settled is None or (one.peak_after or 0) - settled > 0.5 * _saw(one)


CHECK = Check(ID, "A second copy while converting", mandatory=True, cost=15, test=test, needs=(NEED,), page=__doc__ or "")
