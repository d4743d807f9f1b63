"""tail.queueing: requests spend most of the time to their first token waiting for admission.

What is seen: a long `queue` stage, many sequences waiting, steps back to back. Either the load is more than the engine can carry
(intrinsic), or the engine would carry it if its steps were as short as they should be: then the queue is *induced* by whatever makes
the steps long, and curing that cures the queue.

How it is told apart: queue share of TTFT beyond the one step that any request waits for, and utilisation, the share of time in which
the engine steps. Induced or intrinsic is decided by a replay of the recorded arrivals with shorter service times
(attribution/queue_replay.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from playbooks.attribution.queue_replay import Replay, induced
from playbooks.attribution.tail import tail_quantile
from playbooks.case import Case
from playbooks.check import Check, Need, Result, passed, skipped
from playbooks.document import Evidence, Finding, Impact, Remedy
from playbooks.finding import finding, subject
from playbooks.measured import Floats, floats

ID = "tail.queueing"

# Reference section 2: queue share of TTFT > 50 % and utilisation >= 0.8.
QUEUE_SHARE = 0.50
UTILISATION = 0.80
LEAST_REQUESTS = 30
# The queue is called a consequence when this part of the waiting goes away with the cause, or what is left is no longer a finding; our
# choice.
INDUCED = 0.50
# Causes that keep requests out by themselves, whatever the length of the steps.
HOLDS_BACK = ("tail.kv-preempt", "tail.dp-imbalance")
# A KV pool this full is what holds admission back.
FULL = 0.95

_TRAFFIC = "send traffic with `workbench traffic {url}`"
NEEDS = (
    Need("requests with a first token", "request", LEAST_REQUESTS, _TRAFFIC, where="ttft IS NOT NULL"),
    Need("steps", "step", LEAST_REQUESTS, _TRAFFIC, count="count(DISTINCT step)"),
)


@dataclass(frozen=True, slots=True)
class Requests:
    """[n] by arrival, ns since the window's start; rank -1 where it is not known."""

    ts: Floats
    queue: Floats
    ttft: Floats
    dur: Floats
    rank: Floats


def test(case: Case) -> Result:
    requests = read(case)
    if len(requests.ts) < LEAST_REQUESTS:
        return skipped(f"only {len(requests.ts)} requests began in the window, {LEAST_REQUESTS} are needed: {_TRAFFIC}")
    share, used = queue_share(case, requests), utilisation(case)
    said = f"requests in the slower half wait {share:.0%} of the time to their first token; the engine steps {used:.0%} of the time"
    if share <= QUEUE_SHARE:
        return passed(said, round(share, 4), QUEUE_SHARE, "share of TTFT")
    outcome, severity = ("fail", "error") if used >= UTILISATION else ("warn", "warning")
    found = _finding(case, requests, share, used)
    return Result(
        "fail" if outcome == "fail" else "warn",
        said,
        round(share, 4),
        QUEUE_SHARE,
        "share of TTFT",
        (msgspec.structs.replace(found, severity=severity),),
    )


def read(case: Case) -> Requests:
    t0 = case.period.t0
    table = case.store.query(
        f"SELECT ts - {t0} AS ts, queue, ttft, dur, coalesce(rank, -1) AS rank FROM request "
        f"WHERE ts BETWEEN {t0} AND {case.period.t1} AND ttft IS NOT NULL AND queue IS NOT NULL ORDER BY ts"
    )
    return Requests(*(floats(table, name) for name in ("ts", "queue", "ttft", "dur", "rank")))


def queue_share(case: Case, requests: Requests) -> float:
    """Share of TTFT spent in the queue beyond one typical step, over the slower half of the requests."""
    slower = requests.ttft >= np.median(requests.ttft)
    step = float(np.median(case.steps.wall)) if len(case.steps.step) else 0.0
    return float(np.maximum(requests.queue[slower] - step, 0.0).sum() / requests.ttft[slower].sum())


def utilisation(case: Case) -> float:
    """Share of the window in which the engine steps."""
    return float(min(1.0, case.steps.wall.sum() / max(1, case.period.t1 - case.period.t0)))


def replayed(case: Case, requests: Requests, share: float) -> Replay:
    """Waits beyond one step, rank by rank, and what is left of them with steps shorter by `share`."""
    step = float(np.median(case.steps.wall))
    measured, intrinsic = np.zeros(len(requests.ts)), np.zeros(len(requests.ts))
    for rank in np.unique(requests.rank):
        mine = requests.rank == rank
        one = induced(requests.ts[mine], requests.queue[mine], share, step)
        measured[mine], intrinsic[mine] = one.measured, one.intrinsic
    return Replay(measured, intrinsic)


def relate(case: Case, queue: Finding, roots: tuple[Finding, ...]) -> Finding:
    """A cascade of what fills the KV pool, and of the roots that make the steps long, if without them requests would not queue so long
    that this check fails.
    """
    if holding := [root for root in roots if root.id in HOLDS_BACK]:
        names = ", ".join(root.id for root in holding)
        caused_by = tuple(root.id for root in holding)
        said = f"It is a consequence of {names}: who is not admitted waits."
        return msgspec.structs.replace(queue, role="cascade", caused_by=caused_by, summary=f"{queue.summary} {said}")
    causes = [root for root in roots if root.impact is not None and root.impact.metric == "step time"]
    if not causes:
        return queue
    share = min(0.95, sum(root.impact.share for root in causes if root.impact))
    requests = read(case)
    replay = replayed(case, requests, share)
    left = _left_share(requests, replay)
    names = ", ".join(root.id for root in causes)
    evidence = case.derived(
        "playbooks.attribution.queue_replay.induced",
        round(left, 4),
        QUEUE_SHARE,
        "share of TTFT",
        f"left without {names}: mean wait {replay.intrinsic.mean() / 1e6:.1f} instead of {replay.measured.mean() / 1e6:.1f} ms",
    )
    queue = msgspec.structs.replace(queue, evidence=(*queue.evidence, evidence))
    if left > QUEUE_SHARE and replay.induced_share < INDUCED:
        return queue
    said = f"It is a consequence: with steps {share:.0%} shorter, {replay.induced_share:.0%} of the waiting is gone."
    caused_by = tuple(root.id for root in causes)
    return msgspec.structs.replace(queue, role="cascade", caused_by=caused_by, summary=f"{queue.summary} {said}")


def _left_share(requests: Requests, replay: Replay) -> float:
    """The share of TTFT that the check judges, had the waits been the intrinsic ones."""
    slower = requests.ttft >= np.median(requests.ttft)
    ttft = requests.ttft - (replay.measured - replay.intrinsic)
    return float(replay.intrinsic[slower].sum() / max(ttft[slower].sum(), 1.0))


def _finding(case: Case, requests: Requests, share: float, used: float) -> Finding:
    window = f"ts BETWEEN {case.period.t0} AND {case.period.t1}"
    held, reason = _held_back(case)
    growing = overload(requests)
    p99 = tail_quantile(requests.ttft)
    tail = (
        "overload: the queue grows, there is no steady p99"
        if growing
        else (f"p99 of TTFT {p99 / 1e6:.0f} ms" if p99 is not None else "p99 undetermined (fewer than 30 requests in the tail)")
    )
    mean = float(requests.queue.mean() / 1e6)
    evidence: tuple[Evidence, ...] = (
        case.sql(
            f"SELECT sum(queue) / sum(ttft) AS share FROM request WHERE {window} AND ttft IS NOT NULL",
            QUEUE_SHARE,
            "share of TTFT",
            "all requests",
        ),
        case.sql(
            f"SELECT sum(dur) / ({case.period.t1} - {case.period.t0}) AS used FROM (SELECT step, max(dur) AS "
            f"dur FROM step WHERE {window} GROUP BY step)",
            UTILISATION,
            "share of time",
            "the engine steps",
        ),
        case.sql(f"SELECT max(waiting) AS waiting FROM step WHERE {window}", 0, "sequences", "most waiting on one rank"),
        *held,
    )
    return finding(
        case,
        ID,
        "error",
        subject("group", "requests"),
        f"Requests queue: {share:.0%} of the time to the first token is waiting for admission",
        f"The slower half of the requests spend {share:.0%} of TTFT in the queue beyond one step; the engine "
        f"steps {used:.0%} of the time{reason}; {tail}.",
        0.85,
        "established",
        impact=Impact(metric="TTFT", value=round(mean, 3), unit="ms", share=round(share, 4), alone=round(mean, 3)),
        evidence=evidence,
        remedy=_remedy(),
    )


def overload(requests: Requests) -> bool:
    """The wait keeps growing: the last third waits more than twice the middle one, which waits more than twice the first."""
    thirds = [part.mean() for part in np.array_split(requests.queue, 3)]
    return bool(thirds[1] > 2 * thirds[0] and thirds[2] > 1.3 * thirds[1])


def _held_back(case: Case) -> tuple[tuple[Evidence, ...], str]:
    """What holds admission back while sequences wait: a full KV pool, or ranks of unequal load."""
    window = f"ts BETWEEN {case.period.t0} AND {case.period.t1}"
    full = case.sql(
        f"SELECT avg((kv_used >= {FULL} * kv_total)::INT) AS share FROM step WHERE {window} AND waiting > 0",
        0.0,
        "share of steps",
        "KV pool full while sequences wait",
    )
    waiting = np.nanmean(case.steps["waiting"], axis=0)
    skewed = len(waiting) > 1 and waiting.max() > 2 * max(float(np.median(waiting)), 0.5)
    reason = ""
    if isinstance(full.observed, float) and full.observed > 0.5:
        reason = "; the KV pool is full while requests wait"
    elif skewed:
        reason = f"; most wait for rank {case.steps.ranks[int(np.argmax(waiting))]}, the ranks are not evenly loaded"
    return (full,), reason


def _remedy() -> tuple[Remedy, ...]:
    return (
        Remedy(
            text=(
                "If nothing else makes the steps long: fewer requests per replica, more replicas, or a larger "
                "token budget, sequence limit or KV pool."
            ),
            config={"max_sequences": "higher", "max_tokens_per_step": "higher", "kv_blocks": "higher"},
            risk="medium: larger batches raise the time per output token",
            verify="workbench diagnose tail-latency",
        ),
    )


CHECK = Check(ID, "Requests wait for admission", mandatory=True, cost=40, test=test, needs=NEEDS, page=__doc__ or "", relate=relate)
