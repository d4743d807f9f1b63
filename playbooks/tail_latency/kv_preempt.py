"""tail.kv-preempt: the KV pool is too small for what runs, sequences are thrown out and computed again.

What is seen: single requests stand still for long in the middle of their answer and show a second `prefill` stage; the KV pool is
nearly full. Measured elsewhere: 10 to 23 % of the work online, up to 79 % when forced (reference, S4 case 22).

How it is told apart: preemptions are counted by the scheduler, and the tokens of a request's prefill stages beyond its prompt were
computed twice. They are compared with all tokens computed. A full pool without preemption only holds back admission (tail.queueing).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from playbooks.case import Case
from playbooks.check import Check, Need, Result, passed
from playbooks.document import Finding, Impact, Remedy
from playbooks.finding import finding, subject

ID = "tail.kv-preempt"

# Reference section 2: preemptions, recomputed/total tokens > 5 %, KV > 95 % before.
RECOMPUTED = 0.05
FULL = 0.95
# Part of the preempting steps at which the pool must have been full; our choice: the pool is sampled once a step, after the victim left.
FULL_SHARE = 0.5
# How many steps before a preemption the pool is looked at.
BEFORE = 3

_TRAFFIC = "send traffic with `workbench traffic {url}`"
NEEDS = (
    Need("steps with the KV pool's use", "step", 30, _TRAFFIC, count="count(DISTINCT step)", where="kv_total > 0"),
    Need("requests", "request", 1, _TRAFFIC),
)


@dataclass(frozen=True, slots=True)
class Preempted:
    """Sequences thrown out, steps in which that happened, share of them with a full pool, tokens computed twice and in all."""

    sequences: int
    steps: int
    full: float
    recomputed: int
    tokens: int

    @property
    def share(self) -> float:
        return self.recomputed / self.tokens if self.tokens else 0.0


def sql(case: Case) -> str:
    """Tokens of each request's prefill stages beyond its prompt."""
    window = f"ts BETWEEN {case.period.t0} AND {case.period.t1}"
    return (
        "SELECT trace_id, greatest(p.tokens - r.input_tokens, 0) AS again FROM request r JOIN (SELECT trace_id, "
        "sum(TRY_CAST(attrs ->> '$.\"moe.tokens\"' AS BIGINT)) AS tokens FROM span "
        f"WHERE name = 'prefill' AND {window} GROUP BY trace_id) p USING (trace_id) WHERE r.{window}"
    )


def measure(case: Case) -> Preempted:
    steps = case.steps
    hit = np.nansum(steps["preempted"], axis=1) > 0
    use = steps["kv_used"] / np.where(steps["kv_total"] > 0, steps["kv_total"], np.nan)
    highest = np.array([np.nanmax(use[max(0, s - BEFORE) : s + 1][:, steps["preempted"][s] > 0]) for s in np.flatnonzero(hit)])
    again = case.store.rows(f"SELECT coalesce(sum(again), 0) AS n FROM ({sql(case)})")[0]["n"]
    window = f"stage = 0 AND ts BETWEEN {case.period.t0} AND {case.period.t1}"  # every stage computes the same tokens
    tokens = case.store.rows(f"SELECT sum(prefill_tokens + decode_tokens) AS n FROM step WHERE {window}")[0]["n"]
    return Preempted(
        sequences=int(np.nansum(steps["preempted"])),
        steps=int(hit.sum()),
        full=float(np.mean(highest >= FULL)) if len(highest) else 0.0,
        recomputed=int(again),
        tokens=int(tokens or 0),
    )


def test(case: Case) -> Result:
    found = measure(case)
    if not found.sequences:
        return passed("no sequence was preempted", 0.0, RECOMPUTED, "share of tokens computed twice")
    said = (
        f"{found.sequences} preemptions in {found.steps} steps; {found.share:.1%} of all tokens were computed again; the KV pool was full "
        f"before {found.full:.0%} of them"
    )
    if found.share <= RECOMPUTED or found.full < FULL_SHARE:
        return passed(said, round(found.share, 4), RECOMPUTED, "share of tokens computed twice")
    return Result("fail", said, round(found.share, 4), RECOMPUTED, "share of tokens computed twice", (_finding(case, found, said),))


def _finding(case: Case, found: Preempted, said: str) -> Finding:
    window = f"ts BETWEEN {case.period.t0} AND {case.period.t1}"
    by_rank = np.nansum(case.steps["preempted"], axis=0)
    ranks = sorted(int(rank) for rank, n in zip(case.steps.ranks, by_rank, strict=True) if n >= 0.2 * by_rank.max() > 0)
    blocks = int(np.nanmax(case.steps["kv_total"]))
    return finding(
        case,
        ID,
        "error",
        subject("setting", "kv_blocks", ranks=ranks),
        f"The KV pool is too small: {found.sequences} preemptions, {found.share:.0%} of the tokens computed twice",
        f"{said[0].upper()}{said[1:]}.",
        0.95,
        "established",
        impact=Impact(metric="tokens", value=float(found.recomputed), unit="tokens computed twice", share=round(min(1.0, found.share), 4)),
        evidence=(
            case.sql(f"SELECT sum(preempted) AS n FROM step WHERE {window}", 0, "preemptions", "all ranks"),
            case.sql(f"SELECT sum(again) AS n FROM ({sql(case)})", 0, "tokens", "prefill stages beyond the prompts"),
            case.sql(f"SELECT max(kv_used / kv_total) AS used FROM step WHERE {window} AND kv_total > 0", FULL, "share of the KV pool"),
            case.sql(
                f"SELECT coalesce(sum(preempted), 0) / nullif(sum(dur), 0) AS share FROM request WHERE {window}",
                0.0,
                "share of the requests' time",
                "thrown out and waiting to come back",
            ),
        ),
        remedy=(
            Remedy(
                text="Give the KV cache more blocks, or let fewer sequences run at once.",
                config={"kv_blocks": 2 * blocks, "max_sequences": "lower"},
                risk="medium: more blocks take memory; fewer sequences lower the throughput when the pool suffices",
                verify="workbench diagnose tail-latency",
            ),
        ),
    )


CHECK = Check(ID, "The KV pool is too small", mandatory=False, cost=28, test=test, needs=NEEDS, page=__doc__ or "")
