"""oom.drained-iterator: all tensors are listed before the first one is placed.

What is seen: while reading, memory rises to about twice what is kept, and falls back. `list(tensors)` where `for ... in tensors` was meant,
or a sorted(), a dict() or a progress bar around the iterator.

How it is told apart: by what is held when the first value is placed. A loader that reads whole files holds one of them then, this one all
that it is going to read. With a single file there is no difference, and it is oom.full-read-buffer; when the whole checkpoint is brought in
for a part of it, it is oom.all-ranks-full-copy; when what was listed is held on to, oom.retained-source.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, passed, skipped
from playbooks.document import Remedy
from playbooks.oom_on_load import all_ranks_full_copy
from playbooks.oom_on_load.budget import mib, verdict
from playbooks.oom_on_load.story import NEED, RankStory, story
from playbooks.oom_on_load.thresholds import FULL_COPY, LISTED, STAGED

ID = "oom.drained-iterator"


def test(case: Case) -> Result:
    known = [one for one in story(case).loaded_by_us if one.placing]
    if not known:
        return skipped("a rank that says what it held when it placed its first value")
    worst = max(known, key=held)
    ratio = held(worst) / max(worst.fact("planned_read") or 0, 1)
    said = f"rank {worst.rank} held {mib(held(worst))} when it placed its first value, {ratio:.2f} of what it was to read"
    if not drains(worst):
        return passed(said, round(ratio, 3), LISTED, "of the bytes to read")
    return verdict(
        case, ID, "All tensors are listed before the first is placed", worst, [one.rank for one in known if drains(one)], held(worst),
        f"Rank {worst.rank} held {mib(held(worst))} of {worst.fact('files')} files when it placed its first value.",
        ratio, LISTED, "of the bytes to read",
        Remedy(
            text="Place each tensor as the iterator yields it, and drop it: no list(), sorted() or dict() around the iterator.",
            risk="low: the same weights arrive",
            verify="workbench diagnose oom-on-load",
        ),
        0.93,
    )  # fmt: skip


def held(one: RankStory) -> int:
    """Bytes above those before reading, anonymous or of mapped files, when the first value was placed."""
    before = [sample.file for sample in one.during("start", "plan")]
    anon = int(one.placing.get("anon") or 0) - one.base - max(one.built, 0)
    file = int(one.placing.get("file") or 0) - before[-1] if before else 0
    return max(anon, file, 0) if one.placing else 0


def drains(one: RankStory) -> bool:
    """Everything that was to be read was there before anything was placed, in more files than one; and it was let go of."""
    read = one.fact("planned_read") or 0
    if (one.fact("files") or 0) < 2 or held(one) < max(LISTED * read, STAGED):
        return False
    if all_ranks_full_copy.is_shared(one) and all_ranks_full_copy.share(one) >= FULL_COPY:
        return False
    excess = one.peak_reading - (one.fact("planned_kept") or 0)
    return one.settled is None or one.peak_reading - one.settled > 0.5 * excess


CHECK = Check(ID, "Tensors listed before they are placed", mandatory=False, cost=13, test=test, needs=(NEED,), page=__doc__ or "")
