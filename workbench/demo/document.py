"""workbench.demo.v1: what a demonstration did, what it found, and what it measured before, during and after.

Latencies are in ms, `expert_ms` is CPU milliseconds of the slowest rank's experts per 1,000 routed rows, `imbalance` is rows of the
busiest rank over the mean rank. An interval is [low, high] at 90 %; p99 is null when fewer than 30 requests lie beyond it.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Change = Literal["lower", "higher", "undetermined", "equal"]


class Stage(msgspec.Struct, frozen=True):
    name: str
    seconds: float


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What was broken: the experts of each layer that were packed on one rank, and the placement version that did it."""

    rank: int
    layers: tuple[int, ...]
    experts: dict[int, tuple[int, ...]]
    placement: int


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table, with its cells as they are printed; `verdict` compares during with after."""

    metric: str
    text: str
    before: str
    during: str
    after: str
    verdict: Change


class Demo(msgspec.Struct, frozen=True, kw_only=True):
    """`before`, `during` and `after` are diagnosis documents with the measured values beside the diagnosis's own keys."""

    run: str
    path: str
    report: str
    ok: bool
    problems: tuple[str, ...]
    stages: tuple[Stage, ...]
    fault: Fault
    before: dict[str, Any]
    during: dict[str, Any]
    after: dict[str, Any]
    comparison: tuple[Comparison, ...]
    schema: Literal["workbench.demo.v1"] = "workbench.demo.v1"

    def to_dict(self) -> dict[str, Any]:
        built: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return built
