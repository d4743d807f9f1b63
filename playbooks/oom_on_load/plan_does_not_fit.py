"""oom.plan-does-not-fit: what must be kept is more than there is, however well it is loaded.

What is seen: the rank dies while it reads, or it is known before: the bytes of its share of the weights, in the dtype it computes with,
and its KV cache exceed the limit.

How it is told apart: from headers alone, before anything is measured. A loader that needs more than this plan is another cause; a plan
that would fit in the dtype the weights are stored in is oom.dtype-upcast.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, passed, skipped
from playbooks.document import Remedy
from playbooks.oom_on_load.budget import mib, needed, verdict
from playbooks.oom_on_load.device_error import device_check
from playbooks.oom_on_load.story import NEED, RankStory, story
from playbooks.oom_on_load.thresholds import CERTAIN, UPCAST

ID = "oom.plan-does-not-fit"
_REMEDY = Remedy(
    text="Spread the experts over more ranks, take a checkpoint of lower precision, raise the limit, or shorten the context.",
    command="workbench plan MODEL --devices N --device-memory SIZE",
    risk="low: a plan changes nothing",
    verify="workbench diagnose oom-on-load --model MODEL --limit SIZE",
)


def test(case: Case) -> Result:
    if story(case).foreign:
        return device_check(case, ID, "The model does not fit the device", _REMEDY, excess="requested")
    known = [one for one in story(case).ranks.values() if needed(one) is not None and one.limit is not None]
    if not known:
        if _ran(case):
            return passed("no limit stands in this run, and it served")
        return skipped("a limit and a plan; give --model MODEL --limit SIZE, or serve with telemetry on")
    worst = max(known, key=lambda one: _share(one))
    share = _share(worst)
    if share <= CERTAIN:
        said = f"rank {worst.rank} needs {mib(needed(worst))} of {mib(worst.limit)} on paper"
        return passed(said, round(share, 3), CERTAIN, "of the limit")
    if _fits_as_stored(worst):
        return passed("it would fit in the dtype that is stored", round(share, 3), CERTAIN, "of the limit")
    ranks = [one.rank for one in known if _share(one) > CERTAIN]
    lines = {"weights": worst.fact("planned_kept") or 0, "KV cache": worst.fact("planned_kv") or 0, "interpreter and libraries": worst.base}
    largest = max(lines, key=lambda name: lines[name])
    need = needed(worst) or 0
    return verdict(
        case, ID, "The plan does not fit", worst, ranks, need - int(CERTAIN * (worst.limit or 0)),
        f"Rank {worst.rank} needs {mib(need)} of {mib(worst.limit)} on paper; the largest line is {largest} with {mib(lines[largest])}.",
        share, CERTAIN, "of the limit",
        _REMEDY, 0.97, fatal=True,
    )  # fmt: skip


def _ran(case: Case) -> bool:
    return any(one.served for one in story(case).ranks.values())


def _share(one: RankStory) -> float:
    return (needed(one) or 0) / (one.limit or 1)


def _fits_as_stored(one: RankStory) -> bool:
    """Whether the weights alone would fit, were they kept as they are stored."""
    kept, read = one.fact("planned_kept") or 0, one.fact("planned_read") or 0
    return bool(read) and kept / read >= UPCAST and (needed(one) or 0) - kept + read <= CERTAIN * (one.limit or 0)


CHECK = Check(ID, "What must be kept exceeds the limit", mandatory=True, cost=5, test=test, needs=(NEED,), page=__doc__ or "")
