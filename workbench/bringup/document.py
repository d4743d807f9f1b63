"""workbench.bringup.v1: how far a model has come, and what stopped it."""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA = "workbench.bringup.v1"
Status = Literal["pass", "fail", "skipped", "not reached"]


class Evidence(msgspec.Struct, frozen=True):
    """What was seen, and what should have been, where that can be said."""

    name: str
    observed: str
    expected: str = ""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One rung. `adds` is the variable that is new in it; `basis` are digests of what its result depends on; `next` are commands."""

    name: str
    adds: str
    status: Status
    summary: str = ""
    evidence: list[Evidence] = []
    seconds: float | None = None
    ended: str = ""  # ISO 8601, UTC
    basis: dict[str, str] = {}
    next: list[str] = []
    kept: bool = False  # passed in an earlier call, and nothing that it depends on has changed


class BringupDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`stopped_at` and `variable` name the rung that failed and what was new in it; null when none did.

    `unfinished`: none failed, and not all were reached.
    """

    schema: str = SCHEMA
    model: str
    endpoint: str | None
    record: str  # folder of this document and of manual.md
    status: Literal["pass", "fail", "unfinished"]
    stopped_at: str | None = None
    variable: str | None = None
    steps: list[Step]
