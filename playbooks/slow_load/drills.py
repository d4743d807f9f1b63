"""Faults of the symptom slow-load, really produced: a real checkpoint whose cached pages are dropped, real ranks, a loader set wrongly."""

from __future__ import annotations

from functools import partial

from playbooks.drills.drill import HEALTHY, Dose, Drill
from playbooks.drills.start import StartDrill

DOSES = ("smaller checkpoint", "larger checkpoint")
WEIGHTS = (256 << 20, 384 << 20)  # bytes of experts, by strength


def _weights(dose: Dose) -> int:
    return WEIGHTS[dose.strength] + dose.seed * (32 << 20)


_drill = partial(StartDrill, weights=_weights, cold=True)

STARTS: tuple[StartDrill, ...] = (
    _drill("load.well", HEALTHY, "The default loader, one rank"),
    _drill("load.well-shared", HEALTHY, "The default loader, four ranks", settings={"ep": 4}),
    _drill("load.every-file", "load.every-rank-reads-all", "Four ranks read everything", style="every-file", settings={"ep": 4}),
    _drill("load.mapped", "load.mmap-fault", "Weights come through page faults", style="mapped"),
    _drill("load.one-stream", "load.single-thread", "One thread, small reads", style="single-thread"),
)

DRILLS: tuple[Drill, ...] = tuple(one.drill(DOSES) for one in STARTS)
