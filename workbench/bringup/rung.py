"""What a rung declares, and what it says when it has been climbed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from workbench.bringup.document import Evidence, Status
from workbench.bringup.site import Site


@dataclass(frozen=True, slots=True)
class Outcome:
    """`next` are commands for whoever has to find out more."""

    status: Status
    summary: str
    evidence: tuple[Evidence, ...] = ()
    next: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rung:
    """`adds`: the one variable that is new. `depends`: aspects of the site (`Site.aspects`) that its result holds for.

    `serves`: leaves a server for the rungs above it; `asks`: needs one. `inside`: cannot be climbed from outside an engine.
    """

    name: str
    adds: str
    depends: tuple[str, ...]
    climb: Callable[[Site], Outcome]
    serves: bool = False
    asks: bool = False
    inside: bool = False


def passed(summary: str, *evidence: Evidence) -> Outcome:
    return Outcome("pass", summary, evidence)


def failed(summary: str, *evidence: Evidence, next: tuple[str, ...] = ()) -> Outcome:
    return Outcome("fail", summary, evidence, next)


def skipped(why: str, *evidence: Evidence) -> Outcome:
    return Outcome("skipped", why, evidence)
