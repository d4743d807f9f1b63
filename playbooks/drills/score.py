"""How well a playbook did: accuracy with its interval, macro F1, false alarms, abstentions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from playbooks.document import Diagnosis, Finding
from playbooks.drills.document import DrillReport, DrillResult
from playbooks.drills.drill import HEALTHY, Truth

Z95 = 1.959964


def wilson(right: int, total: int, z: float = Z95) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927). Raises ValueError for no trials."""
    if total < 1:
        raise ValueError("no trials")
    share = right / total
    centre = share + z * z / (2 * total)
    spread = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def macro_f1(expected: Sequence[str], found: Sequence[str]) -> float:
    """Mean over the expected classes of 2 TP / (2 TP + FP + FN)."""
    scores = []
    for name in sorted(set(expected)):
        pairs = list(zip(expected, found, strict=True))
        true = sum(want == got == name for want, got in pairs)
        wrong = sum((want == name) != (got == name) for want, got in pairs)
        scores.append(2 * true / (2 * true + wrong))
    return sum(scores) / len(scores)


def serious(diagnosis: Diagnosis) -> tuple[Finding, ...]:
    """Findings that are more than a note, best explanation first."""
    return tuple(one for one in diagnosis.findings if one.severity != "info")


def is_located(truth: Truth, found: Finding) -> bool | None:
    """Whether the finding names the place: the ranks exactly; layers and experts among those that were hit. None: no place was hit."""
    if not truth.ranks:
        return None
    labels = found.subject.labels
    if tuple(sorted(labels.get("ranks", ()))) != tuple(sorted(truth.ranks)):
        return False
    if truth.layers and not set(labels.get("layers", ())) <= set(truth.layers):
        return False
    named = {int(layer): set(experts) for layer, experts in dict(labels.get("experts_by_layer", {})).items()}
    return all(experts & set(truth.experts[layer]) for layer, experts in named.items()) if truth.experts else True


def report(symptom: str, results: Sequence[DrillResult]) -> DrillReport:
    faults = [one for one in results if one.expected != HEALTHY]
    controls = [one for one in results if one.expected == HEALTHY]
    placed = [one.located for one in faults if one.located is not None]
    right = sum(one.correct for one in faults)
    return DrillReport(
        symptom=symptom,
        drills=tuple(results),
        faults=len(faults),
        controls=len(controls),
        accuracy_at_1=right / len(faults) if faults else None,
        interval=wilson(right, len(faults)) if faults else None,
        located_share=sum(placed) / len(placed) if placed else None,
        macro_f1=macro_f1([one.expected for one in results], [one.first or HEALTHY for one in results]) if results else None,
        false_alarms=sum(one.first is not None for one in controls),
        abstentions=sum(one.first is None for one in faults),
        slowest_seconds=max((one.seconds for one in results), default=0.0),
    )
