"""Rung 10: the same questions all at once: what shares a step must not change an answer."""

from __future__ import annotations

from probes.asking import Asker
from workbench.bringup.agreement import Parting, parting
from workbench.bringup.document import Evidence
from workbench.bringup.record import SERIAL, kept
from workbench.bringup.rung import Outcome, Rung, failed, passed, skipped
from workbench.bringup.rungs.serial import QUESTIONS, TOKENS, Alone
from workbench.bringup.site import Site, diagnose


def climb(site: Site) -> Outcome:
    assert site.url is not None
    alone: list[Alone] | None = kept(site.folder, SERIAL, list[Alone])
    if alone is None or len(alone) < len(QUESTIONS):
        return skipped("there are no serial answers to compare with")
    asker = Asker(site.url, site.options.served_name)
    rounds = max(1, -(-site.options.concurrency // len(QUESTIONS)))
    answers = asker.all_at_once(QUESTIONS * rounds, TOKENS)
    asker.close()
    apart: list[tuple[str, Parting, str, str]] = []
    for number, answer in enumerate(answers):
        before = alone[number % len(QUESTIONS)]
        found = parting(before.units, answer.units, before.gaps)
        if found is not None:
            apart.append((QUESTIONS[number % len(QUESTIONS)], found, answer.text, before.text))
    ties = [one for one in apart if one[1].near_tie(site.full_precision)]
    unknown = [one for one in apart if one[1].near_tie(site.full_precision) is None]
    wrong = [one for one in apart if one not in ties and one not in unknown]
    evidence = [Evidence(f"{question} ({found.words})", text, said) for question, found, text, said in [*wrong, *unknown, *ties][:8]]
    told = f"{len(answers)} requests at once: {len(answers) - len(apart)} answers as alone, {len(ties)} up to a near tie"
    if wrong:
        return failed(f"{told}, {len(wrong)} different", *evidence, next=diagnose("garbled-output", site.run_flag))
    if unknown:
        why = f"{told}; {len(unknown)} differ, and the server tells no log-probabilities: near ties cannot be told from errors"
        return skipped(why, *evidence)
    return passed(told, *evidence)


RUNG = Rung(
    "batch", "several sequences in one step", ("environment", "config", "weights", "settings", "endpoint"), climb, asks=True
)  # fmt: skip
