"""What a drill is: a fault that is really produced on a live server, and what must be found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traces.run import Run

if TYPE_CHECKING:
    from playbooks.drills.lab import Lab

HEALTHY = "healthy"


@dataclass(frozen=True, slots=True)
class Dose:
    """How strong a fault is (an index into `Drill.doses`, weakest first), and the seed by which its place is chosen."""

    strength: int
    seed: int


@dataclass(frozen=True, slots=True)
class Truth:
    """Where the fault was set. Empty: the finding need not name a place."""

    ranks: tuple[int, ...] = ()
    layers: tuple[int, ...] = ()
    experts: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Drill:
    """`expected`: id of the finding that must come first, or HEALTHY for a control.

    `settings` are the server's for a dose, `environment` variables that the server is started with (both are stripped from the copy that
    is diagnosed), `produce` sets the fault and sends the traffic. `doses` says in words what each strength is, weakest first.

    `checkpoint` makes the one to serve, below a folder; without it the shipped one is served.

    A drill that needs no server of its own, or is about starting one, has `start` instead of `produce`: it makes its run itself, below a
    folder; `truth` says where its fault is set. `unavailable` gives the reason why this machine cannot produce the fault, "" if it can.
    """

    id: str
    expected: str
    title: str
    produce: Callable[[Lab, Dose], Truth] = lambda lab, dose: Truth()
    doses: tuple[str, ...] = ("",)
    settings: Callable[[Dose], dict[str, Any]] = lambda dose: {}
    environment: Callable[[Dose], dict[str, str]] = lambda dose: {}
    start: Callable[[Dose, Path, Callable[[str], None]], Run] | None = None
    checkpoint: Callable[[Dose, Path], Path] | None = None
    truth: Callable[[Dose], Truth] = lambda dose: Truth()
    unavailable: Callable[[], str] = lambda: ""

    @property
    def control(self) -> bool:
        return self.expected == HEALTHY


def rank_of(dose: Dose, ranks: int) -> int:
    """The rank that a seed hits; strengths of one seed hit different ones."""
    return (2 * dose.seed + dose.strength + 1) % ranks
