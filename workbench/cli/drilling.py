"""Runs drills for the command line: one line on stderr when one begins and when it is over."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

from playbooks.drills.document import DrillResult
from playbooks.drills.session import chosen, doses, run_drill
from traces.errors import UsageError
from workbench.cli.output import note


def run_all(symptom: str, ids: Sequence[str], seeds: int, strengths: int, ranks: int, keep: bool) -> list[DrillResult]:
    """Raises UsageError for unknown names, KeyboardInterrupt when stopped, and what a server that does not start raises."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    planned = [(drill, dose) for drill in chosen(symptom, ids) for dose in doses(drill, seeds, strengths)]
    results: list[DrillResult] = []
    for number, (drill, dose) in enumerate(planned, 1):
        words = f"{drill.id}{f' ({drill.doses[dose.strength]})' if drill.doses[dose.strength] else ''}, seed {dose.seed}"
        note(f"[{number}/{len(planned)}] {words}")
        if reason := drill.unavailable():
            note(f"  skipped: {reason}")
            continue
        began = time.monotonic()
        result = run_drill(symptom, drill, dose, ranks, keep, lambda said: note(f"  {said}"))
        results.append(result)
        found = result.first or "nothing"
        note(f"  {'right' if result.correct else 'WRONG'}: found {found}, expected {result.expected} ({time.monotonic() - began:.0f} s)")
        if result.detail:
            note(f"  {result.detail}")
    if planned and not results:
        raise UsageError(f"no drill of {symptom} can run here: {planned[0][0].unavailable()}", "run as root on a machine with iproute2")
    return results
