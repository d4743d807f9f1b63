"""oom.page-cache-cgroup: pages of the checkpoint's files fill the control group, while the process itself is small.

What is seen: killed by the kernel with little anonymous memory; the group's file pages are as large as what was read.

How it is told apart: anonymous memory is below 0.7 of the limit and file pages above a quarter of it. With anonymous memory near the limit
the cache is a bystander: the kernel takes it back first.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, not_applicable, passed
from playbooks.document import Remedy
from playbooks.oom_on_load.budget import mib, verdict
from playbooks.oom_on_load.story import NEED, RankStory, Sample, story
from playbooks.oom_on_load.thresholds import CACHE_ANON, CACHE_FILE

ID = "oom.page-cache-cgroup"


def test(case: Case) -> Result:
    known = [(one, sample) for one in story(case).ranks.values() if (sample := _last(one)) and one.fact("limit_cgroup")]
    if not known:
        return not_applicable("no control group with a limit, or its account was not sampled")
    one, sample = max(known, key=lambda pair: pair[1].cgroup_file or 0)
    limit = one.fact("limit_cgroup") or 1
    anon, pages = (sample.cgroup_anon or 0) / limit, (sample.cgroup_file or 0) / limit
    said = f"at last the group held {mib(sample.cgroup_anon)} anonymous and {mib(sample.cgroup_file)} of file pages of {mib(limit)}"
    if not (one.died and anon < CACHE_ANON and pages > CACHE_FILE):
        return passed(said, round(pages, 3), CACHE_FILE, "of the limit")
    return verdict(
        case, ID, "File pages fill the control group", one, [one.rank], sample.cgroup_file or 0, said[0].upper() + said[1:] + ".",
        pages, CACHE_FILE, "of the limit",
        Remedy(
            text="Read directly or advise the kernel that pages are not needed again; stagger the ranks; or raise the limit.",
            risk="low",
            verify="workbench diagnose oom-on-load",
        ),
        0.85, "supported",
    )  # fmt: skip


def _last(one: RankStory) -> Sample | None:
    known = [sample for sample in one.samples if sample.cgroup_file is not None and sample.cgroup_anon is not None]
    return known[-1] if known else None


CHECK = Check(ID, "Page cache against the group's limit", mandatory=False, cost=18, test=test, needs=(NEED,), page=__doc__ or "")
