"""tail.pipeline-bubble: pipeline stages stand idle, because one of them is slower or there are too few micro-batches.

What is seen: with P stages and M micro-batches every step contains idle time, at least (P-1)/(M+P-1) of it. More than that means that
the stages do not take equally long: all wait for the slowest, every micro-batch again.

How it is told apart: the time each stage spends in its layers is measured; the rest of the step is idle. It is compared with the
smallest idle share that this number of stages and micro-batches allows. A stage may be slow because of its number of layers (uneven
split), or because of one of its ranks (tail.straggler-rank names it).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from playbooks.attribution.frontier import SEGMENTS
from playbooks.case import Case
from playbooks.check import Check, Need, Result, not_applicable, passed
from playbooks.document import Finding, Impact, Remedy
from playbooks.finding import finding, subject
from playbooks.measured import Floats, floats

ID = "tail.pipeline-bubble"

# Our choice: idle beyond the unavoidable from which a stage split is worth changing, and how uneven the stages must be to be its cause.
BEYOND = 0.10
UNEVEN = 1.2
LEAST_STEPS = 30

NEEDS = (
    Need(
        "detailed steps",
        "layer",
        LEAST_STEPS,
        "send traffic with `workbench traffic {url}`, or ask for a window of full detail: POST /control/window",
        count="count(DISTINCT step)",
    ),
)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """[S, P] ns that each stage is busy in each detailed step, [S] ns the step takes, [S] micro-batches."""

    stages: tuple[int, ...]
    busy: Floats
    span: Floats
    micro: Floats

    @property
    def idle(self) -> float:
        return float(1.0 - self.busy.sum() / (self.span.sum() * len(self.stages)))

    @property
    def least(self) -> float:
        """The share that must be idle, weighed by the steps' time: (P-1)/(M+P-1) (Huang et al. 2019, GPipe)."""
        more = len(self.stages) - 1
        return float(np.average(more / (self.micro + more), weights=self.span))

    @property
    def loads(self) -> Floats:
        """[P] each stage's time over the mean stage's."""
        total = self.busy.sum(axis=0)
        return np.asarray(total / total.mean())


def sql(case: Case) -> str:
    window = f"ts BETWEEN {case.period.t0} AND {case.period.t1}"
    one = f"SELECT step, stage, micro_batch, layer, max({' + '.join(SEGMENTS)}) AS dur FROM layer WHERE {window} GROUP BY ALL"
    busy = f"SELECT step, stage, sum(dur) AS busy FROM ({one}) GROUP BY step, stage"
    span = (
        f"SELECT step, max(ts + dur) - min(ts) AS span, count(DISTINCT micro_batch) AS micro FROM step WHERE {window} "
        "AND prefill_tokens + decode_tokens > 0 GROUP BY step"
    )
    return f"SELECT step, stage, busy, span, micro FROM ({busy}) JOIN ({span}) USING (step) ORDER BY step, stage"


def read(case: Case) -> Pipeline:
    table = case.store.query(sql(case))
    steps, row = np.unique(floats(table, "step"), return_inverse=True)
    stages, column = np.unique(floats(table, "stage"), return_inverse=True)
    busy, span, micro = np.full((len(steps), len(stages)), np.nan), np.zeros(len(steps)), np.ones(len(steps))
    busy[row, column] = floats(table, "busy")
    span[row], micro[row] = floats(table, "span"), floats(table, "micro")
    whole = np.isfinite(busy).all(axis=1)
    return Pipeline(tuple(int(stage) for stage in stages), busy[whole], span[whole], micro[whole])


def test(case: Case) -> Result:
    found = read(case)
    if len(found.stages) < 2:
        return not_applicable("one pipeline stage has no bubble")
    worst = int(np.argmax(found.loads))
    said = (
        f"{len(found.stages)} stages stand idle for {found.idle:.0%} of the steps' time, {found.least:.0%} is unavoidable with "
        f"{found.micro.mean():.1f} micro-batches; stage {found.stages[worst]} is busy {found.loads[worst]:.2f}x the mean"
    )
    beyond = found.idle - found.least
    if beyond < BEYOND or found.loads[worst] < UNEVEN:
        return passed(said, round(beyond, 4), BEYOND, "share of the steps' time")
    return Result("fail", said, round(beyond, 4), BEYOND, "share of the steps' time", (_finding(case, found, said, worst),))


def _finding(case: Case, found: Pipeline, said: str, worst: int) -> Finding:
    stage = found.stages[worst]
    ranks = [int(row["rank"]) for row in case.store.rows(f"SELECT DISTINCT rank FROM step WHERE stage = {stage} ORDER BY rank")]
    gained = float((found.busy.max(axis=1) - found.busy.mean(axis=1)).mean()) / 1e6
    beyond = found.idle - found.least
    return finding(
        case,
        ID,
        "error",
        subject("group", f"stage {stage}", ranks=ranks, stage=stage),
        f"Pipeline stage {stage} is {found.loads[worst]:.1f}x as busy as the mean: the others wait for it",
        f"{said[0].upper()}{said[1:]}.",
        0.85,
        "established",
        impact=Impact(metric="step time", value=round(gained, 4), unit="ms", share=round(beyond, 4), alone=round(gained, 4)),
        evidence=(
            case.sql(
                f"SELECT 1 - sum(busy) / sum(span) AS idle FROM ({sql(case)})",
                round(found.least, 4),
                "share of time",
                "stages idle; expected: the least for these stages and micro-batches",
            ),
            case.sql(
                f"SELECT max(b) / avg(b) AS uneven FROM (SELECT stage, sum(busy) AS b FROM ({sql(case)}) GROUP BY stage)", 1.0, "max/mean"
            ),
        ),
        remedy=(
            Remedy(
                text="Give the slow stage fewer layers, or use more micro-batches per step.",
                risk="medium: needs a restart; more micro-batches make each of them smaller",
                verify="workbench diagnose tail-latency",
            ),
        ),
    )


CHECK = Check(ID, "Pipeline stages stand idle", mandatory=False, cost=26, test=test, needs=NEEDS, page=__doc__ or "")
