"""tail.long-context: a few requests with a very long context make one rank's attention slow, and every rank waits for it.

What is seen: step times rise with somebody's conversation and fall when it ends; one data-parallel rank is last at the end of the
attention; tokens and requests are spread evenly.

How it is told apart: the attention of all ranks is fitted by tokens and by cached tokens attended to. What would be gained with the
cached tokens spread evenly is the cost. If a few long requests hold most of the rank's context it is this cause; if many ordinary ones
do, the router sends too many tokens there (tail.dp-imbalance). A rank that is slow per token and per row is tail.straggler-rank.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Need, Result, not_applicable, passed, skipped
from playbooks.document import Finding, Impact, Remedy
from playbooks.finding import finding, subject
from playbooks.tail_latency.rank_load import Holders, RankLoad, holders, measure

ID = "tail.long-context"

# Reference section 2: the context coefficient dominates on one rank. The line for the cost is the one of the imbalance.
IMPACT_FAIL = 0.05
RATIO = 1.3  # max/mean context tokens, reference section 2 (tail.dp-imbalance)
# Our choice: a request is long at four times the typical length, and long ones are to blame when they hold half of the context.
LONG = 4.0
HELD = 0.5
LEAST_STEPS = 30

_TRAFFIC = "send traffic with `workbench traffic {url}`, or ask for a window of full detail: POST /control/window"
NEEDS = (
    Need("detailed steps", "layer", LEAST_STEPS, _TRAFFIC, count="count(DISTINCT step)", where="tokens_routed > 0"),
    Need("steps with cached tokens", "step", LEAST_STEPS, _TRAFFIC, count="count(DISTINCT step)", where="context_tokens > 0"),
)


def uneven(load: RankLoad) -> bool:
    """More of the context lies on one rank, and that costs. A conversation need not last the whole window."""
    return load.context.ratio > RATIO and load.cost.value >= IMPACT_FAIL


def test(case: Case) -> Result:
    if len(case.layers.ranks) < 2:
        return not_applicable("one rank waits for nobody")
    if case.layers.steps < LEAST_STEPS:
        return skipped(f"only {case.layers.steps} detailed steps under placement {case.placement}, {LEAST_STEPS} are needed")
    load = measure(case)
    rank = case.steps.ranks[load.context.column]
    said = (
        f"rank {rank} attends to {load.context.ratio:.2f}x the mean cached tokens, in {load.context.persistent:.0%} of the window; the "
        f"uneven part costs {load.cost.value:.1%} of the step"
    )
    held = holders(case, rank, LONG)
    if not uneven(load) or held.share < HELD:
        return passed(said, round(load.cost.value, 4), IMPACT_FAIL, "share of step time")
    found = _finding(case, load, held, rank, said)
    return Result("fail", said, round(load.cost.value, 4), IMPACT_FAIL, "share of step time", (found,))


def _finding(case: Case, load: RankLoad, held: Holders, rank: int, said: str) -> Finding:
    window = f"ts BETWEEN {case.period.t0} AND {case.period.t1}"
    by_rank = f"SELECT rank, avg(context_tokens) AS c FROM step WHERE {window} GROUP BY rank"
    return finding(
        case,
        ID,
        "error",
        subject("rank", rank, ranks=[rank]),
        f"{held.number} long request{'s' if held.number > 1 else ''} on rank {rank} slow{'s' if held.number == 1 else ''} every step down",
        f"{said[0].upper()}{said[1:]}. Requests of up to {held.longest} tokens, typically {held.typical}, hold {held.share:.0%} of it.",
        0.9,
        "established",
        impact=Impact(
            metric="step time",
            value=round(load.cost_ns / 1e6, 4),
            unit="ms",
            share=round(load.cost.value, 4),
            alone=round(load.cost_ns / 1e6, 4),
        ),
        evidence=(
            case.sql(f"SELECT max(c) / avg(c) AS ratio FROM ({by_rank})", RATIO, "max/mean", "cached tokens attended to, by rank"),
            case.derived(
                "playbooks.tail_latency.rank_load.context_excess",
                round(load.cost.value, 4),
                IMPACT_FAIL,
                "share of step time",
                f"90 % interval [{load.cost.low:.3f}, {load.cost.high:.3f}]; {case.basis} time",
            ),
            case.sql(
                f"SELECT max(input_tokens) AS longest FROM request WHERE {window} AND rank = {rank}",
                held.typical,
                "tokens",
                "longest prompt on the rank; expected: the typical length",
            ),
        ),
        remedy=(
            Remedy(
                text="Give long contexts ranks of their own, or a budget apart; route by cached tokens, not by requests.",
                risk="low",
                verify="workbench diagnose tail-latency",
            ),
        ),
    )


CHECK = Check(ID, "Long contexts on one rank", mandatory=False, cost=34, test=test, needs=NEEDS, page=__doc__ or "")
