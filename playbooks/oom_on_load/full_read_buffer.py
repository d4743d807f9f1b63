"""oom.full-read-buffer: files are read whole into memory before their tensors are taken out.

What is seen: while reading, anonymous memory rises by about twice what is kept; file pages stay low; afterwards it falls back.

How it is told apart: a mapped file shows as file pages, a buffer does not. The excess comes with the reads: a rise before them is
construction, one after them conversion; one that stays is a source that is retained.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, passed, skipped
from playbooks.document import Remedy
from playbooks.oom_on_load import all_ranks_full_copy, drained_iterator
from playbooks.oom_on_load.budget import mib, verdict
from playbooks.oom_on_load.story import NEED, RankStory, story
from playbooks.oom_on_load.thresholds import CONSTRUCTED, DOUBLE, FEW_FILE_PAGES, FULL_COPY, RETAINED, SMALL

ID = "oom.full-read-buffer"


def test(case: Case) -> Result:
    known = story(case).loaded_by_us
    if not known:
        return skipped("memory samples of ranks that say their plan; serve with telemetry on")
    worst = max(known, key=_excess)
    ratio = worst.peak_reading / max(worst.fact("planned_kept") or 0, 1)
    said = f"while reading, rank {worst.rank} rose to {ratio:.2f} times what it keeps, with {mib(worst.file_reading)} of file pages"
    if not _buffers(worst):
        return passed(said, round(ratio, 3), DOUBLE, "of the kept bytes")
    return verdict(
        case, ID, "Files are read whole before tensors are taken out of them", worst, [one.rank for one in known if _buffers(one)],
        _excess(worst), f"While reading, rank {worst.rank} rose to {mib(worst.peak_reading)} to keep {mib(worst.fact('planned_kept'))}, "
        f"with only {mib(worst.file_reading)} of file pages.",
        ratio, DOUBLE, "of the kept bytes",
        Remedy(
            text="Read tensor by tensor through a bounded buffer, or map the file.",
            risk="low: the same weights arrive",
            verify="workbench diagnose oom-on-load",
        ),
        0.9,
    )  # fmt: skip


def _excess(one: RankStory) -> int:
    return one.peak_reading - max(one.built, 0) - (one.fact("planned_kept") or 0)


def _buffers(one: RankStory) -> bool:
    """Above what is kept while reading, without file pages, and gone afterwards; or dead of it although the plan fits."""
    kept = max(one.fact("planned_kept") or 0, 1)
    if drained_iterator.drains(one):
        return False
    if all_ranks_full_copy.share(one) >= FULL_COPY and all_ranks_full_copy.is_shared(one):
        return False
    if one.file_reading > FEW_FILE_PAGES * kept or one.built > max(CONSTRUCTED * kept, SMALL):
        return False
    if one.died_in == "reading":
        return _excess(one) > RETAINED * kept or (one.limit is not None and one.base + kept < one.limit)
    falls = one.settled is None or one.peak_reading - one.settled > 0.5 * _excess(one)
    return one.peak_reading / kept > DOUBLE and _excess(one) > SMALL and falls


CHECK = Check(ID, "Whole files in memory", mandatory=True, cost=14, test=test, needs=(NEED,), page=__doc__ or "")
