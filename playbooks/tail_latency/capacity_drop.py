"""tail.capacity-drop: experts have a capacity, and rows beyond it are dropped or the buffers are padded up to it.

What is seen: answers get worse under load without any error, or every step computes many rows that nobody asked for. Both come from a
fixed number of rows per expert: too small drops, too large pads. A drop-less dispatch has neither.

How it is told apart: dropped assignments and padding rows are counted by the engine, per layer and window of steps. Padding that is
routed to one rank makes that rank hot (tail.expert-imbalance names it); here its whole cost counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from playbooks.case import Case
from playbooks.check import Check, Need, Result, passed
from playbooks.document import Finding, Impact, Remedy
from playbooks.finding import finding, listed, subject

ID = "tail.capacity-drop"

# Our choice: a dropped assignment changes an answer, so one in a thousand is worth a word and one in a hundred a fault.
DROPPED_WARN = 0.001
DROPPED_FAIL = 0.01
# Our choice: a third of all rows computed for nothing, the share from which padding costs more than the worst usual imbalance.
PADDED = 0.33

NEEDS = (Need("windows of expert counts", "expert_load", 1, "serve with telemetry on: `workbench serve`"),)


@dataclass(frozen=True, slots=True)
class Layer:
    layer: int
    dropped: int
    padding: int
    assigned: int
    rows: int

    @property
    def lost(self) -> float:
        return self.dropped / max(1, self.assigned + self.dropped)

    @property
    def padded(self) -> float:
        return self.padding / max(1, self.rows)


def sql(case: Case) -> str:
    return (
        "SELECT layer, sum(dropped)::BIGINT AS dropped, sum(padding)::BIGINT AS padding, sum(list_sum(tokens))::BIGINT AS assigned, "
        f"sum(list_sum(physical))::BIGINT AS computed FROM expert_load WHERE ts BETWEEN {case.period.t0} AND {case.period.t1} "
        "GROUP BY layer ORDER BY layer"
    )


def test(case: Case) -> Result:
    layers = [
        Layer(*(int(row[name] or 0) for name in ("layer", "dropped", "padding", "assigned", "computed")))
        for row in case.store.rows(sql(case))
    ]
    worst, padded = max(layers, key=lambda one: one.lost), max(layers, key=lambda one: one.padded)
    said = (
        f"{worst.lost:.2%} of the assignments are dropped in layer {worst.layer}, at most; {padded.padded:.0%} of the rows are padding in "
        f"layer {padded.layer}, at most"
    )
    if worst.lost < DROPPED_WARN and padded.padded < PADDED:
        return passed(said, round(worst.lost, 5), DROPPED_WARN, "share of assignments")
    severe = worst.lost >= DROPPED_FAIL
    found = _finding(case, layers, said, severe)
    return Result("fail" if severe else "warn", said, round(worst.lost, 5), DROPPED_FAIL, "share of assignments", (found,))


def _finding(case: Case, layers: list[Layer], said: str, severe: bool) -> Finding:
    hit = [one.layer for one in layers if one.lost >= DROPPED_WARN or one.padded >= PADDED]
    dropping = any(one.lost >= DROPPED_WARN for one in layers)
    worst = max(layers, key=lambda one: one.lost if dropping else one.padded)
    return finding(
        case,
        ID,
        "error" if severe else "warning",
        subject("setting", "capacity", layers=hit),
        f"Experts drop assignments: {worst.lost:.2%} in layer {worst.layer}"
        if dropping
        else f"{worst.padded:.0%} of the expert rows are padding",
        f"{said[0].upper()}{said[1:]} ({listed(hit, 'layer')}).",
        0.95,
        "established",
        impact=Impact(
            metric="assignments" if dropping else "expert rows",
            value=float(worst.dropped if dropping else worst.padding),
            unit="rows",
            share=round(worst.lost if dropping else worst.padded, 5),
        ),
        evidence=(
            case.sql(f"SELECT sum(dropped) AS n FROM ({sql(case)})", 0, "assignments", "dropped in all layers"),
            case.sql(f"SELECT sum(padding) / sum(computed) AS share FROM ({sql(case)})", 0.0, "share of rows", "padding in all layers"),
        ),
        remedy=(
            Remedy(
                text="Raise the capacity factor until nothing is dropped, or use a dispatch without a capacity; if rows are mostly padding "
                "instead, lower it.",
                risk="low: more rows per expert take memory and time",
                verify="workbench diagnose tail-latency; answers against the reference",
            ),
        ),
    )


CHECK = Check(ID, "Experts drop or pad rows", mandatory=False, cost=16, test=test, needs=NEEDS, page=__doc__ or "")
