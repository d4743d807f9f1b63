"""tail.operator-slower: an operator takes longer per token than in a run from when all was well.

What is seen: everything is slower than yesterday, evenly on all ranks, so nobody waits for anybody. A kernel fell back to a slower
variant, a library changed, a cast or a copy came in.

How it is told apart: both runs hold a profiler window (`workbench profile`). Self times per computed token are compared operator by
operator; traffic that makes every operator cheaper or dearer alike (longer prompts, smaller batches) moves their median, and is divided
out. One rank that is slow in everything is tail.straggler-rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from playbooks.case import Case
from playbooks.check import Check, Result, not_applicable, passed, skipped
from playbooks.document import Finding, Impact, Remedy
from playbooks.finding import finding, subject
from playbooks.operators import Profile, latest, operators_sql
from traces.store import open_run

ID = "tail.operator-slower"

# Our choice: an operator is slower from a quarter more time per token on, beyond what all operators changed by, if that is a twentieth of
# the profiled time. Two profiles of one server under one traffic differed by less (test_profile.py measures it).
SLOWER = 1.25
SHARE = 0.05
# Operators that take less than this part of the time are too short to compare one by one.
LEAST_PART = 0.01
# With fewer computed tokens on either side a window is too short.
LEAST_TOKENS = 50
# Waiting is not computing: what the ranks spend in collectives depends on the other ranks, and has checks of its own.
WAITING = ("gloo:", "nccl:", "c10d::", "record_param_comms", "ncclDevKernel", "ProfilerStep")


@dataclass(frozen=True, slots=True)
class Slower:
    """`ratio`: time per token now over before, with the common change divided out; `share` of the profiled time that it costs."""

    name: str
    ratio: float
    share: float
    appeared: bool


def test(case: Case) -> Result:
    if case.baseline is None:
        return not_applicable("no baseline to compare operators with (--baseline RUN)")
    now = latest(case.store)
    with open_run(case.baseline) as store:
        before = latest(store)
    for profile, run in ((now, case.run), (before, case.baseline)):
        if profile is None or profile.window.tokens < LEAST_TOKENS:
            return skipped(f"no profile of {run.id}: `workbench profile --run {run.id} --steps 20` while there is traffic")
    assert now is not None and before is not None
    common, slower = compare(now, before)
    said = f"all operators together take {common:.2f}x the time per token of the baseline"
    if not slower:
        return passed(f"{said}, none more than {SLOWER:g}x beyond that", round(common, 4), SLOWER, "x the baseline")
    worst = slower[0]
    said += f"; {worst.name} takes {'time that it did not take' if worst.appeared else f'{worst.ratio:.2f}x beyond that'}"
    found = _finding(case, now, slower, said)
    return Result("fail", said, round(worst.share, 4), SHARE, "share of the profiled time", (found,))


def compare(now: Profile, before: Profile) -> tuple[float, tuple[Slower, ...]]:
    """The change common to all operators (median ratio, weighed by time), and those that changed more, the costliest first."""
    new, old = _computing(now), _computing(before)
    total, total_old = sum(new.values()), sum(old.values())
    both = [name for name in new if name in old and new[name] >= LEAST_PART * total and old[name] >= LEAST_PART * total_old]
    common = _weighted_median([new[name] / old[name] for name in both], [new[name] + old[name] for name in both])
    slower = []
    for name, value in new.items():
        usual = common * old.get(name, 0.0)
        if value - usual >= SHARE * total and value >= SLOWER * usual:
            slower.append(Slower(name, value / usual if usual else float("inf"), (value - usual) / total, name not in old))
    return common, tuple(sorted(slower, key=lambda one: -one.share))


def _computing(profile: Profile) -> dict[str, float]:
    return {name: ns for name, ns in profile.per_token().items() if not name.startswith(WAITING)}


def _weighted_median(values: list[float], weights: list[float]) -> float:
    if not values:
        return 1.0
    order = np.argsort(values)
    total = np.cumsum(np.array(weights)[order])
    return float(np.array(values)[order][int(np.searchsorted(total, total[-1] / 2))])


def _finding(case: Case, now: Profile, slower: tuple[Slower, ...], said: str) -> Finding:
    worst, window = slower[0], now.window
    total = sum(_computing(now).values()) * window.tokens / window.steps / 1e6
    cost = round(worst.share * total, 4)
    return finding(
        case,
        ID,
        "error",
        subject("group", worst.name, operators=[one.name for one in slower], ranks=list(window.ranks)),
        f"{worst.name} got slower than in the baseline: {worst.share:.0%} of the computing time",
        f"{said[0].upper()}{said[1:]}, which costs {worst.share:.0%} of the computing time of steps {window.first} to {window.last}.",
        0.85,
        "supported",
        impact=Impact(metric="computing time", value=cost, unit="ms a step, all ranks", share=round(worst.share, 4), alone=cost),
        evidence=(
            case.sql(
                f"SELECT ns / 1e6 AS ms FROM ({operators_sql(window)}) WHERE name = {case.literal(worst.name)}",
                None,
                "ms",
                f"self time of {worst.name} on all ranks",
            ),
            case.derived(
                f"playbooks.tail_latency.operator_slower.compare with run:{case.baseline.id if case.baseline else ''}",
                round(worst.ratio, 4) if np.isfinite(worst.ratio) else "new",
                SLOWER,
                "x the baseline per token",
                "beyond the change common to all operators",
            ),
        ),
        remedy=(
            Remedy(
                text="Compare library versions, dtypes and kernel choices of both runs; the environment's differences are listed first.",
                command="workbench fingerprint --diff A B",
                risk="low",
                verify="workbench profile, then workbench diagnose tail-latency --baseline RUN",
            ),
        ),
    )


CHECK = Check(ID, "An operator got slower than in the baseline", mandatory=False, cost=17, test=test, page=__doc__ or "")
