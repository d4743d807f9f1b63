"""A run of traffic in numbers. Durations in ns, as everywhere; rates per second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from probes.traffic.quantile import Quantile, quantiles
from probes.traffic.record import RequestRecord


@dataclass(frozen=True, slots=True)
class Exact:
    """Answers that were judged, and those of them that were right word for word."""

    judged: int
    right: int

    @property
    def share(self) -> float | None:
        return self.right / self.judged if self.judged else None


@dataclass(frozen=True, slots=True)
class TrafficSummary:
    """`e2e`, `ttft`, `tpot` and `itl_max` (the longest gap inside an answer) each hold p50, p90 and p99 over the successful requests."""

    count: int
    ok: int
    errors: int
    cancelled: int
    reasons: dict[str, int]  # why requests failed, most frequent first
    busy: int  # times the server said 429 or 503 and was waited for
    duration: int  # first start to last end
    requests_per_second: float | None
    output_tokens: int
    tokens_per_second: float | None
    exact: Exact
    exact_by_question: dict[str, Exact]
    e2e: dict[str, Quantile]
    ttft: dict[str, Quantile]
    tpot: dict[str, Quantile]
    itl_max: dict[str, Quantile]
    send_lag: int | None  # longest delay between planned and real sending: the client's own fault


def summarise(records: Sequence[RequestRecord], seed: int = 0) -> TrafficSummary:
    """Summary of what was measured, in order of the requests' starts."""
    ordered = sorted(records, key=lambda record: record.start)
    good = [record for record in ordered if record.status == "ok"]
    failed = [record for record in ordered if record.status == "error"]
    duration = max(record.start + record.e2e for record in ordered) - ordered[0].start if ordered else 0
    tokens = sum(record.output_tokens for record in ordered)

    def rate(amount: int) -> float | None:
        return amount / duration * 1e9 if duration else None

    return TrafficSummary(
        count=len(ordered),
        ok=len(good),
        errors=len(failed),
        cancelled=len(ordered) - len(good) - len(failed),
        reasons=dict(Counter(record.reason for record in failed).most_common()),
        busy=sum(record.busy for record in ordered),
        duration=duration,
        requests_per_second=rate(len(good)),
        output_tokens=tokens,
        tokens_per_second=rate(tokens),
        exact=_exact(good),
        exact_by_question={
            kind: _exact([r for r in good if r.question == kind]) for kind in sorted({r.question for r in good if r.exact is not None})
        },
        e2e=quantiles([record.e2e for record in good], seed=seed),
        ttft=quantiles([record.ttft for record in good if record.ttft is not None], seed=seed),
        tpot=quantiles([record.tpot for record in good if record.tpot is not None], seed=seed),
        itl_max=quantiles([record.itl_max for record in good if record.itl_max is not None], seed=seed),
        send_lag=max((record.lag for record in ordered), default=None),
    )


def _exact(records: Sequence[RequestRecord]) -> Exact:
    judged = [record.exact for record in records if record.exact is not None]
    return Exact(len(judged), sum(judged))


def _exact_by_question(records: Sequence[RequestRecord]) -> dict[str, Exact]:
    asked = sorted({record.question for record in records if record.exact is not None})
    return {question: _exact([record for record in records if record.question == question]) for question in asked}
