"""Why are the slowest requests slower than typical ones? Their stages, with the queue split into what the load alone would make and what
the causes that lengthen the steps induce (attribution/queue_replay.py): `p95 = typical + queue intrinsic + queue induced + ... + residual`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from playbooks.attribution.queue_replay import induced
from playbooks.attribution.tail import Tail, compare
from playbooks.case import Case
from playbooks.measured import Floats, floats

QUANTILE = 0.95
LEAST_REQUESTS = 30
STAGES = ("queue", "prefill", "decode", "preempted", "tokenize", "image", "detokenize", "send")


@dataclass(frozen=True, slots=True)
class RequestAccount:
    """`tail` compares the slowest 5 % with the middle; its parts add up to the excess. `residual`: share of it that no stage explains."""

    requests: int
    tail: Tail

    @property
    def residual(self) -> float:
        return abs(self.tail.parts["residual"].value) / self.tail.excess if self.tail.excess > 0 else 0.0


def sql(case: Case) -> str:
    stages = ", ".join(f"coalesce({name}, 0) AS {name}" for name in STAGES)
    return (
        f"SELECT ts - {case.period.t0} AS ts, dur, coalesce(rank, -1) AS rank, {stages} FROM request "
        f"WHERE ts BETWEEN {case.period.t0} AND {case.period.t1} AND status = 'ok' AND queue IS NOT NULL ORDER BY ts"
    )


def account(case: Case, lost: float) -> RequestAccount | None:
    """`lost`: share of the step time that the causes take, 0..1. None with too few requests to compare anything."""
    table = case.store.query(sql(case))
    if table.num_rows < LEAST_REQUESTS:
        return None
    column = {name: floats(table, name) for name in table.column_names}
    intrinsic = _intrinsic(case, column["ts"], column["queue"], column["rank"], lost)
    parts = {
        "queue intrinsic": intrinsic,
        "queue induced": column["queue"] - intrinsic,
        "prefill": column["prefill"],
        "decode": column["decode"],
        "preempted": column["preempted"],
        "front end": column["tokenize"] + column["image"] + column["detokenize"] + column["send"],
    }
    parts["residual"] = column["dur"] - np.sum(list(parts.values()), axis=0)
    return RequestAccount(table.num_rows, compare(column["dur"], parts, QUANTILE))


def _intrinsic(case: Case, ts: Floats, queue: Floats, rank: Floats, lost: float) -> Floats:
    """Waits without the causes; the step that is running when a request arrives is nobody's fault."""
    step = float(np.median(case.steps.wall)) if len(case.steps.step) else 0.0
    left = np.minimum(queue, step)
    for one in np.unique(rank):
        mine = rank == one
        left[mine] += induced(ts[mine], queue[mine], min(max(lost, 0.0), 0.95), step).intrinsic
    return left


def in_words(found: RequestAccount) -> str:
    if not found.tail.determined:
        return f"the tail of {found.requests} requests is undetermined (fewer than 30 in it)"
    parts = " + ".join(
        f"{name} {part.value / 1e6:.1f} [{part.low / 1e6:.1f}, {part.high / 1e6:.1f}]"
        for name, part in found.tail.parts.items()
        if abs(part.value) >= 0.02 * found.tail.excess
    )
    return f"the slowest 5 % of requests take {found.tail.excess / 1e6:.1f} ms more than the middle: {parts} ms"
