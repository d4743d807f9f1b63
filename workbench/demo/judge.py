"""Whether the demonstration showed what it set out to show, against the fault that was really set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from playbooks.document import Diagnosis, Finding
from workbench.demo.document import Fault
from workbench.demo.measure import Phase

CAUSE = "tail.expert-imbalance"


def problems(before: Diagnosis, during: Diagnosis, fault: Fault, phases: tuple[Phase, Phase, Phase]) -> tuple[str, ...]:
    """Plain sentences, one for each thing that did not hold; empty when all did. `during` holds what was applied."""
    return (*_healthy(before), *_named(during, fault), *_repaired(during), *_improved(*phases))


def _healthy(before: Diagnosis) -> Iterator[str]:
    if before.verdict != "healthy":
        found = f", first {before.findings[0].id}" if before.findings else ""
        yield f"The run was to be healthy before anything was broken, but the verdict was {before.verdict}{found}."


def _named(during: Diagnosis, fault: Fault) -> Iterator[str]:
    if not during.findings:
        yield f"The stale placement was to be found as {CAUSE}, but nothing was found (verdict {during.verdict})."
        return
    first = during.findings[0]
    if first.id != CAUSE:
        yield f"The stale placement was to be found as {CAUSE}, but the first finding was {first.id}."
        return
    ranks, layers = numbers(first, "ranks"), numbers(first, "layers")
    if ranks != [fault.rank]:
        yield f"The popular experts were packed on rank {fault.rank}, but the finding names {_words('rank', ranks)}."
    if not layers or not set(layers) <= set(fault.layers):
        yield f"The placement was changed in {_words('layer', fault.layers)}, but the finding names {_words('layer', layers)}."
    elif not set(numbers(first, "experts")) & {expert for layer in layers for expert in fault.experts.get(layer, ())}:
        yield "None of the experts that the finding names was packed by the stale placement."


def _repaired(during: Diagnosis) -> Iterator[str]:
    if not during.applied:
        yield "The playbook carried out no remedy."
    # An "undetermined" of the playbook's own short measurement is no failure here: the phases around it are longer, and decide.
    for one in during.applied:
        if one.answers_equal is False:
            yield "Greedy answers changed with the remedy."
        elif one.rolled_back or one.verdict in ("worse", "unchanged"):
            yield f"The playbook's own measurement says {one.verdict} ({one.note})."


def _improved(before: Phase, during: Phase, after: Phase) -> Iterator[str]:
    if during.imbalance.value <= before.imbalance.value:
        yield f"The stale placement did not make the ranks less even ({before.imbalance} before, {during.imbalance} during)."
    if after.imbalance.value >= during.imbalance.value:
        yield f"The remedy did not make the ranks more even ({during.imbalance} during, {after.imbalance} after)."
    if after.expert_ms.value >= during.expert_ms.value:
        yield f"The remedy did not lower the time of the experts ({during.expert_ms} ms during, {after.expert_ms} ms after)."


def numbers(finding: Finding, label: str) -> list[int]:
    """A label of the subject as integers: ranks, layers, experts."""
    value: Any = finding.subject.labels.get(label, [])
    return [int(one) for one in (value if isinstance(value, list | tuple) else [value])]


def _words(noun: str, values: Sequence[int]) -> str:
    return f"{noun}{'' if len(values) == 1 else 's'} {', '.join(map(str, values)) or 'none'}"
