"""Part of workbench.plan.v1: the plan against a run."""

from __future__ import annotations

import msgspec


class ComparedLine(msgspec.Struct, frozen=True):
    """Bytes of one line of one rank. `measure` says what was measured; `within` None: too small to judge, or not measured."""

    rank: int
    phase: str
    line: str
    measure: str
    planned: int
    used: int | None
    difference: float | None  # (used - planned) / planned
    within: bool | None


class Comparison(msgspec.Struct, frozen=True):
    """Part `verification` of workbench.plan.v1. `agrees` None: nothing was large enough to judge."""

    run: str
    tolerance: float
    agrees: bool | None
    lines: list[ComparedLine]
