"""workbench.drill.v1: every drill that was run, and the accuracy they measure. Shares are 0..1, intervals [low, high] at 95 %."""

from __future__ import annotations

from typing import Literal

import msgspec

from playbooks.document import Verdict


class DrillResult(msgspec.Struct, frozen=True, kw_only=True):
    """One drill. `first`: id of the first finding that is more than a note, None if there is none. `located`: the finding names the rank,
    layers and experts that were hit (None where there is no place to name). `unlabelled`: the verdict on the original is the same.
    `seconds` is what the diagnosis took.
    """

    id: str
    seed: int
    strength: str
    expected: str
    verdict: Verdict
    first: str | None
    correct: bool
    located: bool | None
    unlabelled: bool
    seconds: float
    findings: tuple[str, ...] = ()
    detail: str = ""
    run: str | None = None


class DrillReport(msgspec.Struct, frozen=True, kw_only=True):
    """`accuracy_at_1`: faults whose first finding is right, `interval` its Wilson interval; `located_share`: of those that have a place.

    `false_alarms`: controls with any finding that is more than a note. `abstentions`: faults without one.
    """

    symptom: str
    drills: tuple[DrillResult, ...]
    faults: int
    controls: int
    accuracy_at_1: float | None
    interval: tuple[float, float] | None
    located_share: float | None
    macro_f1: float | None
    false_alarms: int
    abstentions: int
    slowest_seconds: float
    schema: Literal["workbench.drill.v1"] = "workbench.drill.v1"


class DrillListed(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    symptom: str
    expected: str
    title: str
    strengths: tuple[str, ...]


class DrillList(msgspec.Struct, frozen=True, kw_only=True):
    drills: tuple[DrillListed, ...]
    schema: Literal["workbench.drill-list.v1"] = "workbench.drill-list.v1"
