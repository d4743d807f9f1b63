"""What is measured of one phase of the demonstration: the client's latencies, how even the ranks were, what the experts cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from playbooks.attribution.bootstrap import Interval, ratio, statistic
from traces.errors import BadAnswer
from traces.store import Store

TAIL = 30  # requests that must lie beyond a quantile before it is claimed (DESIGN section 5)

# Steps in their order; a step's expert time is that of its slowest rank, layer by layer, because every layer waits for it.
STEPS = """
WITH one AS (
  SELECT step, layer, max(tokens_routed) AS hot, avg(tokens_routed) AS mean, sum(tokens_routed) AS total,
         max(coalesce(experts_cpu, experts)) AS work
  FROM layer WHERE ts BETWEEN $t0 AND $t1 GROUP BY step, layer)
SELECT step, sum(hot) AS hot, sum(mean) AS mean, sum(total) AS total, sum(work) AS work
FROM one GROUP BY step HAVING sum(total) > 0 ORDER BY step
"""
LATENCIES = "SELECT ts, dur, status FROM client_request WHERE phase = $phase ORDER BY ts"


@dataclass(frozen=True, slots=True)
class Phase:
    """Measured values of one phase. Latencies in ms, expert_ms in CPU ms per 1,000 routed rows."""

    requests: int
    failed: int
    exact: float | None
    p50: Interval
    p99: Interval | None
    imbalance: Interval
    expert_ms: Interval

    def document(self) -> dict[str, Any]:
        """The keys that workbench.demo.v1 adds to a diagnosis."""
        return {
            "requests": self.requests,
            "failed": self.failed,
            "exact": self.exact,
            "p50": self.p50.value,
            "p50_interval": [self.p50.low, self.p50.high],
            "p99": None if self.p99 is None else self.p99.value,
            "p99_interval": None if self.p99 is None else [self.p99.low, self.p99.high],
            "imbalance": self.imbalance.value,
            "imbalance_interval": [self.imbalance.low, self.imbalance.high],
            "expert_ms": self.expert_ms.value,
            "expert_ms_interval": [self.expert_ms.low, self.expert_ms.high],
        }


def measure(store: Store, phase: str, exact: float | None) -> Phase:
    """One phase, from the first request that bears its name to the end of the last. Raises BadAnswer when nothing was recorded."""
    requests = store.rows(LATENCIES, {"phase": phase}, limit=1_000_000)
    if not requests:
        raise BadAnswer(f"no request of the phase {phase} was recorded", "look at the logs folder of the run")
    window = {"t0": requests[0]["ts"], "t1": max(row["ts"] + row["dur"] for row in requests)}
    steps = store.rows(STEPS, window, limit=1_000_000)
    ms = np.array([row["dur"] / 1e6 for row in requests if row["status"] == "ok"])
    if not len(ms) or not steps:
        raise BadAnswer(f"the phase {phase} left no measurements", "look at the logs folder of the run")
    hot, mean, total, work = (np.array([float(row[name]) for row in steps]) for name in ("hot", "mean", "total", "work"))
    p99 = statistic(ms, lambda x: float(np.quantile(x, 0.99))) if len(ms) >= 100 * TAIL else None
    return Phase(
        requests=len(requests),
        failed=len(requests) - len(ms),
        exact=exact,
        p50=statistic(ms, lambda x: float(np.median(x))),
        p99=p99,
        imbalance=ratio(hot, mean),
        expert_ms=ratio(work / 1e6, total / 1e3),
    )
