"""oom.retained-source: what was read is held on to after its values were copied, or a small view holds a large tensor.

What is seen: when loading has ended, memory does not fall to what is kept. Anonymous memory stays high when buffers or views hold it;
mapped files show as file pages that never fall while anonymous memory looks healthy.

How it is told apart: buffers of reading fall back at the end of the phase; a wider dtype stays as well, but is in the plan.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, passed, skipped
from playbooks.document import Remedy
from playbooks.oom_on_load.budget import mib, verdict
from playbooks.oom_on_load.story import NEED, RankStory, story
from playbooks.oom_on_load.thresholds import RETAINED, SMALL

ID = "oom.retained-source"
LATER = ("kv_cache", "warmup", "serve")
MAPPED = 0.5  # of the bytes read, as file pages that stay: mapped and held (S1.3: 1.0; a healthy load keeps 0.02)


def test(case: Case) -> Result:
    known = [one for one in story(case).loaded_by_us if one.settled is not None or one.error]
    if not known:
        return skipped("samples after loading; no rank came so far")
    worst = max(known, key=lambda one: max(_left(one), _mapped(one)))
    kept = max(worst.fact("planned_kept") or 0, 1)
    left, mapped = _left(worst), _mapped(worst)
    said = f"after loading, {mib(max(left, 0))} of anonymous memory and {mib(max(mapped, 0))} of file pages are held beside the weights"
    if not _retains(worst):
        return passed(said, round(left / kept, 3), RETAINED, "of the kept bytes")
    what = "anonymous memory" if left > RETAINED * kept else "pages of mapped files"
    return verdict(
        case, ID, "What was read is still held", worst, [one.rank for one in known if _retains(one)], max(left, mapped),
        f"After loading, rank {worst.rank} holds {mib(max(left, mapped))} of {what} beside the {mib(kept)} it keeps.",
        max(left, mapped) / kept, RETAINED, "of the kept bytes",
        Remedy(
            text="Consume and drop in one pass, a generator instead of a list; copy slices, because a view holds its whole tensor.",
            risk="low: the same weights arrive",
            verify="workbench diagnose oom-on-load",
        ),
        0.9,
    )  # fmt: skip


def _left(one: RankStory) -> int:
    """Anonymous bytes beside the weights when loading has ended."""
    settled = one.settled
    return 0 if settled is None else settled - (one.fact("planned_kept") or 0)


def _mapped(one: RankStory) -> int:
    """File pages that were not there before loading and are there after it."""
    before = [sample.file for sample in one.during("start", "plan")]
    after = one.during(*LATER) or ([one.samples[-1]] if one.error and one.samples else [])
    return after[0].file - before[-1] if before and after else 0


def _retains(one: RankStory) -> bool:
    kept, read = one.fact("planned_kept") or 0, one.fact("planned_read") or 0
    return _left(one) > max(RETAINED * kept, SMALL) or _mapped(one) > max(MAPPED * read, SMALL)


CHECK = Check(ID, "The source outlives its copy", mandatory=True, cost=16, test=test, needs=(NEED,), page=__doc__ or "")
