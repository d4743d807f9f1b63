"""Rung 9: one request at a time, through template, tokenizer and end of answer."""

from __future__ import annotations

import msgspec

from probes.asking import Asker, Told
from traces.errors import BadAnswer
from workbench.bringup.agreement import parting
from workbench.bringup.document import Evidence
from workbench.bringup.record import SERIAL, keep
from workbench.bringup.rung import Outcome, Rung, failed, passed, skipped
from workbench.bringup.site import Site, diagnose

QUESTIONS = (
    "Hello!",
    "What is 2 + 3?",
    "What is the capital of France?",
    "Count from one to five.",
    "Name a colour.",
    "Say yes or no.",
    "Who are you?",
    "What is the opposite of hot?",
)
TOKENS = 96
THINKING = 2048  # tokens that are given to one question when none was answered within those
FEW_KINDS = 0.2  # of the tokens of an answer that are of different kinds; less is a loop


class Alone(msgspec.Struct, frozen=True, array_like=True):
    """An answer to one request alone. `units`: see `Told`; `gaps` are empty where the server does not say."""

    units: list[str]
    gaps: list[float]
    text: str


def climb(site: Site) -> Outcome:
    assert site.url is not None
    (site.folder / SERIAL).unlink(missing_ok=True)
    asker = Asker(site.url, site.options.served_name)
    answers = [asker.chat(question, TOKENS) for question in QUESTIONS]
    again = asker.chat(QUESTIONS[1], TOKENS)
    silent, endless = not any(answer.text.strip() for answer in answers), all(answer.finish == "length" for answer in answers)
    looped = [question for question, answer in zip(QUESTIONS, answers, strict=True) if _loops(answer.units)]
    most_loop = len(looped) > len(QUESTIONS) // 2
    thinks = (silent or endless) and not most_loop and _thinks(asker, answers)
    asker.close()
    evidence = [Evidence(question, answer.text) for question, answer in zip(QUESTIONS, answers, strict=True)]
    more = diagnose("garbled-output", site.run_flag)
    if thinks:
        return skipped(f"it thinks before it answers, longer than {TOKENS} tokens: its short answers cannot be judged", *evidence)
    if silent:
        return failed("no answer holds text: chat template, tokenizer or end-of-answer token", *evidence, next=more)
    if endless:
        told = f"none of {len(answers)} short questions was answered within {TOKENS} tokens: the end-of-answer token, the chat template, or"
        return failed(f"{told} answers that go wrong ({len(looped)} repeat a few tokens over and over)", *evidence, next=more)
    if most_loop:
        return failed(f"{len(looped)} of {len(answers)} answers repeat a few tokens over and over", *evidence, next=more)
    apart = parting(answers[1].units, again.units, answers[1].gaps)
    near = True if apart is None else apart.near_tie(site.full_precision)
    if apart is not None and near is False:
        return failed(f"the same question, asked again alone: answers {apart.words}", *evidence, next=more)
    if apart is not None and near is None:
        why = f"the same question, asked again alone: answers {apart.words}: a near tie cannot be told from an error"
        return skipped(why, *evidence)
    keep(site.folder, SERIAL, [Alone(list(answer.units), list(answer.gaps), answer.text) for answer in answers])
    ended = sum(answer.finish == "stop" for answer in answers)
    return passed(f"{len(answers)} questions answered one at a time, {ended} ended by themselves", *evidence)


def _thinks(asker: Asker, answers: list[Told]) -> bool:
    """Whether answers are late, not wrong: there are thoughts, or one question is answered when it is given much more room."""
    if any(answer.thought.strip() for answer in answers):
        return True
    room = THINKING if asker.longest is None else min(THINKING, asker.longest // 2)
    try:
        answer = asker.chat(QUESTIONS[1], room)
    except BadAnswer:
        return False
    return bool(answer.thought.strip() or (answer.text.strip() and answer.finish != "length"))


def _loops(tokens: tuple[str, ...]) -> bool:
    return len(tokens) >= TOKENS // 2 and len(set(tokens)) < FEW_KINDS * len(tokens)


RUNG = Rung(
    "serial request", "template, tokenizer and the end of an answer", ("environment", "config", "weights", "settings", "endpoint"), climb,
    asks=True,
)  # fmt: skip
