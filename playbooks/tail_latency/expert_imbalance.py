"""tail.expert-imbalance: some rank's experts receive many more rows than others', and every rank waits for it.

What is seen: steps are long although no rank is slow per row; at the end of the experts the rank with the most rows is last, the
others wait for it in the combine. Typical origins: an expert placement made for other traffic (stale), one very popular expert,
padding rows that are routed too.

How it is told apart: (1) rows per rank are more uneven than a *uniform router* would be with the same number of tokens, top-k and
slot map (the null; a constant would call every small batch uneven), (2) the cost of the excess is a real part of the step, (3) the
rank that is last is the one with the most rows. A slow rank instead has a high cost per row (tail.straggler-rank); a slow link has
even rows. A healthy model is skewed by modality, so (1) alone is no fault. Small decode batches follow the number of active experts,
not the rows: the cost model has both. Whether moving experts would help is judged on counts the new placement has not seen.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Need, Result, not_applicable, passed, skipped
from playbooks.expert_counts import read
from playbooks.tail_latency.expert_finding import describe
from playbooks.tail_latency.expert_limits import (
    ABOVE_NULL,
    AVOIDABLE,
    ID,
    IMPACT_FAIL,
    IMPACT_WARN,
    LAST_IS_HOTTEST,
    LEAST_STEPS,
)
from playbooks.tail_latency.expert_load import ExpertLoad, measure

_TRAFFIC = "send traffic with `workbench traffic {url}`, or ask for a window of full detail: POST /control/window"
NEEDS = (
    Need("detailed steps", "layer", LEAST_STEPS, _TRAFFIC, count="count(DISTINCT step)", where="tokens_routed > 0"),
    Need("windows of expert counts", "expert_load", 1, "serve with telemetry on: `workbench serve`"),
    Need("the expert map", "placement", 1, "serve with telemetry on: `workbench serve`", time=""),
)


def test(case: Case) -> Result:
    layers = case.layers
    if len(layers.ranks) < 2:
        return not_applicable("one rank holds every expert")
    if layers.steps < LEAST_STEPS:
        return skipped(f"only {layers.steps} detailed steps under placement {case.placement}, {LEAST_STEPS} are needed: {_TRAFFIC}")
    counts = read(case.store, case.period, case.placement or 0, len(layers.ranks))
    if not counts.layers:
        return skipped(f"no expert counts under placement {case.placement} yet: they are written every second; {_TRAFFIC}")
    measured = measure(case, counts)
    if not measured.uneven:
        worst = max(measured.layers, key=lambda one: one.above)
        said = f"rows per rank are as even as a uniform router's: at most {worst.above:.0%} of steps above the null (layer {worst.layer})"
        return passed(said, round(worst.above, 4), ABOVE_NULL, "share of steps")
    return _judge(case, measured)


def _judge(case: Case, measured: ExpertLoad) -> Result:
    """Impact decides between natural skew and a fault; who is last, and whether it persists, between fault and warning."""
    share, agrees = measured.share.value, _last(case, measured)
    worst = max(measured.uneven, key=lambda one: one.excess)
    said = (
        f"layer {worst.layer}: rank {worst.hot_rank} has the most rows, max/mean {worst.ratio:.2f} (null p99 {worst.null:.2f}); the excess "
        f"costs {share:.1%} of the step ({case.basis} basis), {measured.avoidable:.1%} by the placement"
    )
    grave = share >= IMPACT_FAIL and agrees > LAST_IS_HOTTEST
    if grave and (measured.avoidable >= AVOIDABLE or measured.persistent >= IMPACT_FAIL):
        return Result("fail", said, round(share, 4), IMPACT_FAIL, "share of step time", (describe(case, measured, "error"),))
    transient = grave and measured.beyond_chance >= IMPACT_FAIL
    if transient or (measured.avoidable >= IMPACT_WARN and agrees > LAST_IS_HOTTEST):
        return Result("warn", said, round(share, 4), IMPACT_FAIL, "share of step time", (describe(case, measured, "warning"),))
    if share >= IMPACT_FAIL:
        said += (
            f", but the rank with the most rows is last in only {agrees:.0%}"
            if agrees <= LAST_IS_HOTTEST
            else ", as chance has it in small batches"
        )
    return passed(said, round(share, 4), IMPACT_FAIL, "share of step time")


def _last(case: Case, measured: ExpertLoad) -> float:
    """On a contended host the wall clock says who was descheduled last; CPU time says who had the most to do."""
    return measured.last_cpu if case.basis == "cpu" and measured.last_cpu is not None else measured.last_wall


CHECK = Check(ID, "Expert load uneven over ranks", mandatory=True, cost=30, test=test, needs=NEEDS, page=__doc__ or "")
