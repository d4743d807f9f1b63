"""Runs drills one after another: produce the fault, stop the server, strip a copy, diagnose it, compare."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from playbooks.drills.document import DrillResult
from playbooks.drills.drill import Dose, Drill, Truth
from playbooks.drills.lab import Say, lab
from playbooks.drills.score import is_located, serious
from playbooks.drills.strip import stripped
from playbooks.runner import diagnose
from traces.errors import UsageError
from traces.run import Run, runs_root

# Symptom -> module with DRILLS.
BOOKS = {
    "garbled-output": "playbooks.garbled_output.drills",
    "tail-latency": "playbooks.tail_latency.drills",
    "image-drift": "playbooks.image_drift.drills",
    "oom-on-load": "playbooks.oom_on_load.drills",
    "slow-load": "playbooks.slow_load.drills",
    "cross-node-throughput": "playbooks.cross_node.drills",
    "hang": "playbooks.hang.drills",
}

OnResult = Callable[[DrillResult], None]


def drills_of(symptom: str) -> tuple[Drill, ...]:
    """Raises UsageError for a symptom without drills."""
    if symptom not in BOOKS:
        raise UsageError(f"there are no drills for {symptom!r}", f"there are some for {', '.join(BOOKS)}")
    drills: tuple[Drill, ...] = import_module(BOOKS[symptom]).DRILLS
    return drills


def chosen(symptom: str, ids: Sequence[str]) -> tuple[Drill, ...]:
    """The drills of a symptom, or those named. Raises UsageError for an unknown id."""
    drills = {drill.id: drill for drill in drills_of(symptom)}
    if unknown := [name for name in ids if name not in drills]:
        raise UsageError(f"there is no drill {unknown[0]!r} for {symptom}", f"there are {', '.join(drills)}")
    return tuple(drills[name] for name in dict.fromkeys(ids)) if ids else tuple(drills.values())


def doses(drill: Drill, seeds: int, strengths: int) -> list[Dose]:
    """The strongest doses first cut to `strengths` of them, each with so many seeds."""
    first = max(0, len(drill.doses) - strengths)
    return [Dose(strength, seed) for seed in range(seeds) for strength in range(first, len(drill.doses))]


def _made(drill: Drill, dose: Dose, ranks: int, root: Path, say: Say) -> tuple[Run, Truth]:
    """The run of a drill, and where its fault was set."""
    if drill.start is not None:
        return drill.start(dose, root, say), drill.truth(dose)
    with lab(drill, dose, ranks, root, say) as live:
        truth = drill.produce(live, dose)
        return live.run, truth


def run_drill(symptom: str, drill: Drill, dose: Dose, ranks: int, keep: bool, say: Say) -> DrillResult:
    """One drill. Its runs are kept with the others, or made in a temporary folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="wb-") as scratch:
        root = runs_root() if keep else Path(scratch) / "runs"
        root.mkdir(parents=True, exist_ok=True)
        run, truth = _made(drill, dose, ranks, root, say)
        say("diagnosing")
        copy = stripped(run, Path(scratch) / "copies")
        began = time.monotonic()
        found = diagnose(copy, symptom, argv=())
        seconds = time.monotonic() - began
        original = diagnose(run, symptom, argv=())
        named = serious(found)
        first = named[0] if named else None
        # A control that could not be measured is no healthy answer.
        right = found.verdict == "healthy" if drill.control else first is not None and first.id == drill.expected
        return DrillResult(
            id=drill.id,
            seed=dose.seed,
            strength=drill.doses[dose.strength],
            expected=drill.expected,
            verdict=found.verdict,
            first=first.id if first else None,
            correct=right,
            located=is_located(truth, first) if first is not None and right else None if drill.control or not truth.ranks else False,
            unlabelled=(found.verdict, [one.id for one in found.findings]) == (original.verdict, [one.id for one in original.findings]),
            seconds=round(seconds, 2),
            findings=tuple(f"{one.id} {one.severity} {one.role}" for one in found.findings),
            detail="" if right else "; ".join(f"{one.id} {one.outcome}: {one.summary}" for one in found.checks),
            run=str(run.path) if keep else None,
        )
