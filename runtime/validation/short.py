"""Tier 3: short answers. What is decoded token by token must be what the whole text gives, and what the reference would say."""

from __future__ import annotations

from typing import Any

import torch

from runtime.local import greedy
from runtime.validation.document import Check
from runtime.validation.subject import Subject, apart

ANSWER = 16  # tokens


def examine_short(subject: Subject) -> list[Check]:
    """A few prompts, greedy."""
    checks = []
    for n, prompt in enumerate(subject.prompts()):
        answer = greedy(subject.model, prompt, ANSWER, subject.float8)
        steps = (len(prompt), *[1] * (len(answer) - 1))
        checks.append(subject.equal_in_steps(f"decode {n}", prompt + answer[:-1], steps))
        if greedy(subject.model, prompt, ANSWER, subject.float8) != answer:
            checks.append(Check(f"repeat {n}", "fail", "the same prompt gives another answer when asked again"))
        if subject.outside is not None:
            checks.append(_like_reference(subject, n, prompt, answer))
        if subject.tokenizer is not None:
            checks.append(Check(f"answer {n}", "note", f"{subject.words(prompt)!r} -> {subject.words(answer)!r}"))
    if subject.outside is None:
        checks.append(Check("reference answers", "skipped", "no reference model that could answer; give --reference transformers"))
    return checks


def _like_reference(subject: Subject, n: int, prompt: list[int], answer: list[int]) -> Check:
    """Our answer's logits against one pass of the reference over the same tokens, and whether it would have drawn each of them."""
    tokens = prompt + answer
    ours, theirs = subject.logits(tokens[:-1])[len(prompt) - 1 :], outside_logits(subject.outside, tokens[:-1])[len(prompt) - 1 :]
    rows = apart(theirs, ours)
    typical, worst = float(rows.median()), float(rows.max())  # a near-tie of a router may send single tokens elsewhere
    if typical > subject.limit:
        detail = f"logits are {typical:.1e} from the reference's (largest {worst:.1e})"
        return Check(f"reference answer {n}", "fail", detail, typical, subject.limit)
    other = (theirs.argmax(-1) != torch.tensor(answer)).nonzero().flatten().tolist()
    if other:
        top = theirs[other[0]].double().topk(2).values
        scale = float(theirs[other[0]].double().std())
        margin = float(top[0] - top[1]) / scale if scale else 0.0
        if margin > subject.limit or worst > 10 * subject.limit:
            detail = f"token {other[0]} of the answer would be another, by {margin:.2g} standard deviations of the logits"
            return Check(f"reference answer {n}", "fail", detail, worst, subject.limit)
    told = f"{len(answer) - len(other)} of {len(answer)} tokens are the reference's; logits {typical:.1e} apart (largest {worst:.1e})"
    return Check(f"reference answer {n}", "pass", told, typical, subject.limit)


def outside_logits(model: Any, ids: list[int]) -> torch.Tensor:
    """[T, V] of a transformers model."""
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=torch.tensor([ids])).logits[0]
    return logits
