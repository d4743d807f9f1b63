"""tail.prefix-miss: slow first tokens are those of requests whose prompt was not in the prefix cache, although others' were.

What is seen: the time to the first token has two levels at equal prompt length; the queue is short. Typical origins: a router that
sends a conversation's next turn to a replica without its prefix, a cache that evicts too early (reference, S4 case 26: 26 s with no
cached token against 2.5 to 5 s).

How it is told apart: cached tokens of every request. Slow requests must have a much smaller cached part than fast ones of similar
length, and the tokens they had to compute must explain their excess; waiting for admission explains none of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from playbooks.case import Case
from playbooks.check import Check, Need, Result, passed, skipped
from playbooks.document import Finding, Impact, Remedy
from playbooks.finding import finding, subject
from playbooks.measured import Floats, floats

ID = "tail.prefix-miss"

# Names under which engines report the prompt tokens that were taken from the cache: ours, OpenTelemetry's GenAI conventions, vLLM's.
CACHED = ("moe.cached_tokens", "gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cached_tokens")
# Reference section 2: "far below the fast ones at equal length; queue ~ 0; residual after prefill cost model ~ 0". The numbers are ours.
FAR_BELOW = 0.30
SIMILAR = 1.25  # prompt lengths within this factor are equal
QUEUE = 0.20  # share of the slow requests' excess
EXPLAINED = 0.50
SLOW = 0.90  # quantile of the time from admission to the first token from which on a request is slow; the fast ones are the faster half
TAIL = 1.5  # slow over fast, at equal length
LEAST_REQUESTS = 40
LEAST_LENGTH = 64  # tokens: the prefix of a shorter prompt saves nothing

_ATTRS = ", ".join(f"""TRY_CAST(attrs ->> '$."{name}"' AS BIGINT)""" for name in CACHED)
NEEDS = (
    Need(
        "requests with their cached prompt tokens",
        "request",
        LEAST_REQUESTS,
        "serve with a prefix cache that reports cached tokens",
        where=f"ttft IS NOT NULL AND coalesce({_ATTRS}) IS NOT NULL",
    ),
)


@dataclass(frozen=True, slots=True)
class Prompts:
    """[n] requests: time to the first token and in the queue (ns), prompt tokens and those of them from the cache."""

    ttft: Floats
    queue: Floats
    tokens: Floats
    cached: Floats

    @property
    def share(self) -> Floats:
        """Cached part of each prompt."""
        return self.cached / self.tokens

    @property
    def computed(self) -> Floats:
        return np.maximum(self.tokens - self.cached, 0.0)


@dataclass(frozen=True, slots=True)
class Miss:
    """Slow requests against fast ones of similar length: cached parts, times, and shares of the excess."""

    fast_ratio: float
    slow_ratio: float
    times: float
    excess: float
    queue: float
    explained: float
    number: int


def sql(case: Case) -> str:
    return (
        f"SELECT ts, ttft, coalesce(queue, 0) AS queue, input_tokens, coalesce({_ATTRS}) AS cached FROM request "
        f"WHERE ts BETWEEN {case.period.t0} AND {case.period.t1} AND ttft IS NOT NULL AND input_tokens >= {LEAST_LENGTH} "
        f"AND coalesce({_ATTRS}) IS NOT NULL ORDER BY ts"
    )


def test(case: Case) -> Result:
    table = case.store.query(sql(case))
    prompts = Prompts(*(floats(table, name) for name in ("ttft", "queue", "input_tokens", "cached")))
    if len(prompts.ttft) < LEAST_REQUESTS:
        return skipped(f"only {len(prompts.ttft)} prompts of {LEAST_LENGTH} tokens and more in the window, {LEAST_REQUESTS} are needed")
    found = compare(prompts)
    if found is None:
        return passed("no slow request has a fast one of similar length beside it", 0.0, FAR_BELOW, "cached part")
    said = (
        f"slow prompts had {found.slow_ratio:.0%} of their tokens cached, fast ones of equal length {found.fast_ratio:.0%}; they take "
        f"{found.times:.1f} times as long to the first token, {found.explained:.0%} of the excess is computing what was not cached"
    )
    gap = found.fast_ratio - found.slow_ratio
    if gap < FAR_BELOW or found.times < TAIL or found.explained < EXPLAINED or found.queue > QUEUE:
        return passed(said, round(gap, 4), FAR_BELOW, "cached part")
    return Result("fail", said, round(gap, 4), FAR_BELOW, "cached part", (_finding(case, found, said),))


def compare(prompts: Prompts) -> Miss | None:
    """Every slow request is compared with the fast ones of similar length; None where there is no such pair."""
    served = prompts.ttft - prompts.queue  # whoever waits behind a slow prompt is no slow prompt
    slow = np.flatnonzero(served >= np.quantile(served, SLOW))
    fast = np.flatnonzero(served <= np.median(served))
    partners = [fast[np.abs(np.log(prompts.tokens[fast] / prompts.tokens[one])) <= np.log(SIMILAR)] for one in slow]
    paired = [(one, others) for one, others in zip(slow, partners, strict=True) if len(others)]
    if not paired:
        return None
    mine = np.array([one for one, _ in paired])
    theirs = {
        name: np.array([float(getattr(prompts, name)[others].mean()) for _, others in paired])
        for name in ("ttft", "queue", "computed", "share")
    }
    excess = float((prompts.ttft[mine] - theirs["ttft"]).mean())
    more = float((prompts.computed[mine] - theirs["computed"]).mean())
    return Miss(
        fast_ratio=float(theirs["share"].mean()),
        slow_ratio=float(prompts.share[mine].mean()),
        times=float(prompts.ttft[mine].mean() / max(theirs["ttft"].mean(), 1.0)),
        excess=excess,
        queue=float((prompts.queue[mine] - theirs["queue"]).mean() / excess) if excess > 0 else 0.0,
        explained=float(np.clip(_per_token(prompts) * more / excess, 0.0, 1.0)) if excess > 0 else 0.0,
        number=len(paired),
    )


def _per_token(prompts: Prompts) -> float:
    """ns of a computed prompt token: median slope between pairs of requests (Theil-Sen), which a few odd ones do not move."""
    x, y = prompts.computed, prompts.ttft - prompts.queue
    i, j = np.triu_indices(len(x), 1)
    apart = np.abs(x[i] - x[j]) >= LEAST_LENGTH / 2
    slopes = (y[i] - y[j])[apart] / (x[i] - x[j])[apart]
    return float(np.median(slopes)) if len(slopes) else 0.0


def _finding(case: Case, found: Miss, said: str) -> Finding:
    return finding(
        case,
        ID,
        "error",
        subject("group", "prefix-cache"),
        f"Slow first tokens missed the prefix cache: {found.slow_ratio:.0%} cached against {found.fast_ratio:.0%}",
        f"{said[0].upper()}{said[1:]}.",
        0.9,
        "established",
        impact=Impact(
            metric="TTFT",
            value=round(found.excess / 1e6, 3),
            unit="ms",
            share=round(found.explained, 4),
            alone=round(found.excess / 1e6, 3),
        ),
        evidence=(
            case.sql(
                f"SELECT sum(cached) / sum(input_tokens) AS ratio FROM ({sql(case)}) "
                f"WHERE ttft >= (SELECT quantile_cont(ttft, {SLOW}) FROM ({sql(case)}))",
                round(found.fast_ratio, 4),
                "cached part",
                "slow prompts; expected: fast ones of equal length",
            ),
            case.derived("prefix_miss.compare", round(found.explained, 4), EXPLAINED, "share of the excess", "computing tokens not cached"),
            case.derived("prefix_miss.compare", round(found.queue, 4), QUEUE, "share of the excess", "waiting for admission"),
        ),
        remedy=(
            Remedy(
                text="Send the turns of a conversation to the rank or replica that holds its prefix, within a window of load; or keep more "
                "of the cache (more KV blocks).",
                risk="low: a strict affinity can overload one replica",
                verify="workbench diagnose tail-latency",
            ),
        ),
    )


CHECK = Check(ID, "Slow prompts missed the prefix cache", mandatory=False, cost=36, test=test, needs=NEEDS, page=__doc__ or "")
