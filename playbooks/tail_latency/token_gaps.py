"""The time from one token of an answer to the next, and what it is made of: prompts computed meanwhile, images encoded meanwhile, the rest.

Ranks step in lockstep, so a token waits for the prompts and images of every rank. What a prompt takes is fitted over all steps
(wall time by decoding sequences, prompt tokens, cached tokens); an encoded image is measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from playbooks.attribution.rates import fit
from playbooks.attribution.tail import Tail, compare
from playbooks.case import Case
from playbooks.document import Evidence, Impact
from playbooks.measured import Floats, Ints, floats
from playbooks.tail_latency.overlap import covered

# A tail worth the name, over the typical gap. Nobody told us the target for the time between tokens; our choice, above what prompts of a
# few hundred tokens do to a step of a healthy engine (2 to 3).
TAIL = 4.0
QUANTILE = 0.95
# Part of the tail's excess that one cause must explain; the line of the reference for pauses (section 2, tail.gc-pause).
EXPLAINED = 0.50
LEAST_GAPS = 600  # 30 of them are in the tail (DESIGN section 5)

GAPS = (
    "SELECT ts - lag(ts) OVER one AS gap, step, lag(step) OVER one AS before FROM token WHERE ts BETWEEN {t0} AND {t1} "
    'WINDOW one AS (PARTITION BY trace_id ORDER BY "index") QUALIFY gap IS NOT NULL ORDER BY ts'
)


@dataclass(frozen=True, slots=True)
class Gaps:
    """[n] in order of time, ns: the gap, and what of it was `prefill` (by the model) and `encode` (measured)."""

    gap: Floats
    prefill: Floats
    encode: Floats

    @property
    def tail(self) -> Tail:
        return compare(self.gap, {"prefill": self.prefill, "encode": self.encode}, QUANTILE)

    @property
    def typical(self) -> float:
        return float(np.median(self.gap))

    @property
    def late(self) -> float:
        """Mean gap of the latest 5 %, ns: their quantile alone says nothing of a few that are very late."""
        return float(self.gap[self.gap >= self.tail.threshold].mean())


@dataclass(frozen=True, slots=True)
class StepParts:
    """[S] ns of each step: prompts by the model, images as measured. `per_token`: what a prompt token adds, ns."""

    prefill: Floats
    encode: Floats
    per_token: float


def sql(case: Case) -> str:
    return GAPS.format(t0=case.period.t0, t1=case.period.t1)


def gaps(case: Case) -> Gaps:
    if "token-gaps" not in case.memo:
        case.memo["token-gaps"] = _read(case)
    found: Gaps = case.memo["token-gaps"]
    return found


def impact(case: Case, name: str) -> Impact:
    """What one part of the tail's excess takes from an answer."""
    tail = gaps(case).tail
    value = round(tail.parts[name].value / 1e6, 3)
    return Impact(metric="time between tokens", value=value, unit="ms", share=round(min(1.0, tail.share(name)), 4), alone=value)


def evidence(case: Case, name: str, what: str) -> tuple[Evidence, Evidence]:
    """The late gaps, and what of their excess is the part `name`, called `what`."""
    found = gaps(case)
    tail, part = found.tail, found.tail.parts[name]
    late = f"SELECT quantile_cont(gap, {QUANTILE}) / 1e6 AS late FROM ({sql(case)})"
    note = f"{what}, of an excess of {tail.excess / 1e6:.1f} ms; 90 % interval [{part.low / 1e6:.1f}, {part.high / 1e6:.1f}]"
    return (
        case.sql(late, round(found.typical / 1e6, 3), "ms", "gap between tokens, 95th percentile; expected: the median"),
        case.derived("playbooks.attribution.tail.compare on tail_latency.token_gaps.gaps", round(part.value / 1e6, 3), None, "ms", note),
    )


def _read(case: Case) -> Gaps:
    table = case.store.query(sql(case))
    first = _place(case, floats(table, "before"))
    last = _place(case, floats(table, "step"))
    made = parts(case)
    return Gaps(floats(table, "gap"), *(_between(part, first, last) for part in (made.prefill, made.encode)))


def parts(case: Case) -> StepParts:
    if "step-parts" not in case.memo:
        case.memo["step-parts"] = _parts(case)
    made: StepParts = case.memo["step-parts"]
    return made


def _parts(case: Case) -> StepParts:
    steps = case.steps
    encode = covered(case, _encoded(case))
    prefill, decode = steps["prefill_tokens"], steps["decode_tokens"]
    features = (
        np.nanmax(decode, axis=1) + 1,
        np.nanmax(prefill, axis=1),
        np.nansum(prefill, axis=1),
        np.nanmax(steps["context_tokens"], axis=1),
    )
    model = fit((steps.wall - encode)[:, None], tuple(feature[:, None] for feature in features))
    busiest, all_ranks = (float(model.coefficients[i]) for i in (2, 3))
    return StepParts(busiest * features[1] + all_ranks * features[2], encode, busiest + all_ranks)


def _encoded(case: Case) -> list[tuple[float, float]]:
    t0 = case.period.t0
    rows = case.store.rows(f"SELECT ts - {t0} AS ts, dur FROM span WHERE name = 'image.encode' AND ts BETWEEN {t0} AND {case.period.t1}")
    return [(float(row["ts"]), float(row["ts"] + row["dur"])) for row in rows]


def _place(case: Case, step: Floats) -> Ints:
    """Index of the step, or of the last one before it."""
    return np.asarray(np.searchsorted(case.steps.step, step, side="right") - 1, dtype=np.int64)


def _between(part: Floats, first: Ints, last: Ints) -> Floats:
    """Sum of a part over the steps after `first` up to `last`."""
    total = np.concatenate([[0.0], np.cumsum(part)])
    return np.asarray(total[last + 1] - total[first + 1])
