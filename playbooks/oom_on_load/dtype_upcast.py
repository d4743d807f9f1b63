"""oom.dtype-upcast: weights are kept in a wider dtype than they are stored in.

What is seen: anonymous memory rises by two or four times the bytes that were read, and stays.

How it is told apart: the ratio is that of the dtypes, the same for every rank, and does not depend on how many ranks there are. Reading
buffers double the peak as well, but fall back, and the kept bytes are then as many as were read.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, passed, skipped
from playbooks.document import Remedy
from playbooks.oom_on_load.budget import mib, needed, verdict
from playbooks.oom_on_load.story import NEED, RankStory, story
from playbooks.oom_on_load.thresholds import CERTAIN, UPCAST

ID = "oom.dtype-upcast"


def test(case: Case) -> Result:
    known = [one for one in story(case).ranks.values() if one.fact("planned_read")]
    if not known:
        return skipped("the dtypes that are stored and kept; serve with telemetry on")
    worst = max(known, key=_ratio)
    ratio = _ratio(worst)
    said = f"rank {worst.rank} keeps {ratio:.2f} bytes for every byte that is stored"
    if ratio < UPCAST:
        return passed(said, round(ratio, 3), UPCAST, "kept / stored")
    excess = (worst.fact("planned_kept") or 0) - (worst.fact("planned_read") or 0)
    if not _decides(worst, excess, story(case).failed):
        return passed(f"{said}; there is room for it", round(ratio, 3), UPCAST, "kept / stored")
    kinds = ", ".join(sorted(worst.plan.get("stored", {})))
    return verdict(
        case, ID, "Weights are kept in a wider dtype than they are stored in", worst, [one.rank for one in known if _ratio(one) >= UPCAST],
        excess, f"Stored in {kinds}, kept in {worst.fact('kept_item')} bytes a value: {ratio:.1f} times the bytes, {mib(excess)} more.",
        ratio, UPCAST, "kept / stored",
        Remedy(
            text="Keep the dtype of the checkpoint; pass it to the nested text and vision configs, too.",
            command="workbench serve MODEL --dtype bfloat16",
            risk="medium: on a CPU bfloat16 decodes more slowly",
            verify="workbench diagnose oom-on-load",
        ),
        0.92, fatal=True,
    )  # fmt: skip


def _ratio(one: RankStory) -> float:
    return (one.fact("planned_kept") or 0) / max(one.fact("planned_read") or 0, 1)


def _decides(one: RankStory, excess: int, failed: bool) -> bool:
    """Whether it would have fitted without: the plan is over the limit with it and under without, or nothing else is known to exceed it."""
    need, limit = needed(one), one.limit
    if need is None or limit is None:
        return failed and one.peak < 1.2 * (one.fact("planned_kept") or 0)  # the rise is no more than the plan: no other waste
    return need > CERTAIN * limit >= need - excess


CHECK = Check(ID, "Weights widened while loading", mandatory=True, cost=6, test=test, needs=(NEED,), page=__doc__ or "")
