"""tail.dp-imbalance: the router gives some data-parallel ranks more to do than others, and all of them step at the pace of the fullest.

What is seen: requests wait on one rank while another has room, or one rank attends to many more cached tokens although every rank has
as many requests. Origins: loads that are stale when the router reads them, ties that always go to the same rank, a score that counts
requests and not tokens (reference, S4 cases 16 and 17), or clients and balancers that choose the replica themselves.

How it is told apart: running and waiting requests, and cached tokens, by rank over time. Unequal counts: the router's counts are stale
or its ties fixed. Equal counts and unequal tokens: it is blind to tokens. If a few very long requests are the reason it is
tail.long-context; a rank that computes slowly fills up by itself (tail.straggler-rank).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from playbooks.case import Case
from playbooks.check import Check, Need, Result, not_applicable, passed
from playbooks.document import Finding, Impact, Remedy
from playbooks.finding import finding, subject
from playbooks.tail_latency.long_context import HELD, LONG, uneven
from playbooks.tail_latency.rank_load import RankLoad, holders, measure

ID = "tail.dp-imbalance"

# Reference section 2: max/mean > 1.3.
RATIO = 1.3
# Our choice: the same rank leads in this share of six blocks of time (by chance: 1/ranks).
PERSISTENT = 0.80
# Our choice: requests of the fullest rank wait this part of their time to the first token longer than those of the others.
WAIT_SHARE = 0.20
# Clients are the reason when they chose the replica of half of its requests. Our choice.
CHOSEN = 0.5
# Requests are counted when a step has ended: with fewer than this on a mean rank the count is of chance. Our choice.
LEAST_HELD = 1.0
LEAST_REQUESTS = 30

_TRAFFIC = "send traffic with `workbench traffic {url}`"
NEEDS = (
    Need("steps", "step", 30, _TRAFFIC, count="count(DISTINCT step)", where="prefill_tokens + decode_tokens > 0"),
    Need("requests with their rank", "request", LEAST_REQUESTS, _TRAFFIC, where="rank IS NOT NULL AND ttft IS NOT NULL"),
)


@dataclass(frozen=True, slots=True)
class Waits:
    """Mean wait for admission on the fullest rank and on the others (ns), and the difference as a share of the time to the first token."""

    mine: float
    others: float
    share: float


def test(case: Case) -> Result:
    if case.leads.sum() < 2:
        return not_applicable("one replica has every sequence")
    load = measure(case)
    waits = waiting(case, case.steps.ranks[load.requests.column])
    requests, context = load.requests, load.context
    said = (
        f"rank {case.steps.ranks[requests.column]} holds {requests.ratio:.2f}x the mean requests, which wait {waits.mine / 1e6:.1f} ms "
        f"(others {waits.others / 1e6:.1f}); rank {case.steps.ranks[context.column]} attends to {context.ratio:.2f}x the cached tokens, "
        f"which costs {load.cost.value:.1%} of the step"
    )
    typical = float(np.median(case.steps.wall))
    held = requests.mean.sum() / case.leads.sum() >= LEAST_HELD
    by_count = held and requests.ratio > RATIO and requests.persistent >= PERSISTENT
    if by_count and waits.share >= WAIT_SHARE and waits.mine - waits.others >= typical:
        return _fail(case, load, said, waits.share, waits.mine - waits.others, "counts")
    column = context.column
    by_tokens = context.persistent >= PERSISTENT and uneven(load) and holders(case, case.steps.ranks[column], LONG).share < HELD
    if by_tokens:
        return _fail(case, load, said, load.cost.value, load.cost_ns, "tokens")
    return passed(said, round(requests.ratio, 4), RATIO, "max/mean requests")


def waiting(case: Case, rank: int) -> Waits:
    rows = case.store.rows(
        f"SELECT avg(queue) FILTER (WHERE rank = {rank}) AS mine, avg(queue) FILTER (WHERE rank <> {rank}) AS others, avg(ttft) AS ttft "
        f"FROM request WHERE ts BETWEEN {case.period.t0} AND {case.period.t1} AND ttft IS NOT NULL"
    )[0]
    mine, others = float(rows["mine"] or 0.0), float(rows["others"] or 0.0)
    return Waits(mine, others, (mine - others) / float(rows["ttft"]) if rows["ttft"] else 0.0)


def chosen_by_clients(case: Case, rank: int) -> float:
    """Share of a rank's requests for which the client, not the router, chose the replica."""
    row = case.store.rows(
        """SELECT avg(CASE WHEN attrs ->> '$."moe.route_by_client"' = 'true' THEN 1.0 ELSE 0.0 END) AS share FROM request """
        f"WHERE rank = {rank} AND ts BETWEEN {case.period.t0} AND {case.period.t1}"
    )[0]
    return float(row["share"] or 0.0)


def _fail(case: Case, load: RankLoad, said: str, share: float, ns: float, why: str) -> Result:
    found = _finding(case, load, said, share, ns, why)
    return Result("fail", said, round(share, 4), WAIT_SHARE if why == "counts" else 0.05, "share", (found,))


def _finding(case: Case, load: RankLoad, said: str, share: float, ns: float, why: str) -> Finding:
    spread = load.requests if why == "counts" else load.context
    rank = case.steps.ranks[spread.column]
    window = f"ts BETWEEN {case.period.t0} AND {case.period.t1}"
    asked = chosen_by_clients(case, rank)
    reason = "its counts are stale, or its ties always go there" if why == "counts" else "it counts requests, not tokens"
    if asked >= CHOSEN:
        reason = f"clients asked for it with {asked:.0%} of its requests (X-Data-Parallel-Rank)"
    value = "running + waiting" if why == "counts" else "context_tokens"
    by_rank = f"SELECT rank, avg({value}) AS c FROM step WHERE {window} GROUP BY rank"
    return finding(
        case,
        ID,
        "error",
        subject("rank", rank, ranks=[rank], by=why),
        f"Too much is sent to rank {rank}: {spread.ratio:.1f}x the mean {'requests' if why == 'counts' else 'cached tokens'}",
        f"{said[0].upper()}{said[1:]}. Rank {rank} is preferred: {reason}.",
        0.85,
        "established" if spread.persistent == 1.0 else "supported",
        impact=Impact(
            metric="TTFT" if why == "counts" else "step time",
            value=round(ns / 1e6, 4),
            unit="ms",
            share=round(share, 4),
            alone=round(ns / 1e6, 4),
        ),
        evidence=(
            case.sql(f"SELECT max(c) / avg(c) AS ratio FROM ({by_rank})", RATIO, "max/mean", f"{value} by rank"),
            case.sql(
                f"SELECT avg(queue) FILTER (WHERE rank = {rank}) / nullif(avg(queue), 0) AS times FROM request WHERE {window}",
                1.0,
                "ratio",
                f"wait for admission on rank {rank} over the mean",
            ),
            case.derived("rank_load.spread", round(spread.persistent, 4), PERSISTENT, "share of blocks", f"rank {rank} has the most"),
        ),
        remedy=(
            Remedy(
                text="Let the server choose the replica, or spread the clients' choices evenly."
                if asked >= CHOSEN
                else "Route by queued and cached tokens with fresh loads, and rotate ties.",
                risk="low",
                verify="workbench diagnose tail-latency",
            ),
        ),
    )


CHECK = Check(ID, "Requests unevenly routed", mandatory=False, cost=37, test=test, needs=NEEDS, page=__doc__ or "")
