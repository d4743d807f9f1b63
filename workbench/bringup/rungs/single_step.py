"""Rung 5: one device, one sequence, no server: the first step is right from inside, and leaves answers for the rungs above."""

from __future__ import annotations

from typing import Any

import msgspec

from runtime.budget.layout import Layout
from workbench.bringup.document import Evidence
from workbench.bringup.paper import fullest, room
from workbench.bringup.record import SINGLE_DEVICE, keep, kept
from workbench.bringup.rung import Outcome, Rung, failed, passed, skipped
from workbench.bringup.site import Site, diagnose

TOKENS = 24  # of each answer
LONG = 700  # tokens of the long prompt at most: more than a step computes, so that a server cuts it
TEXTS = ("The capital of France is", "What is 3 + 4?", "Once upon a time there was a small robot who")


class Reference(msgspec.Struct, frozen=True):
    """A greedy answer of one device. `gaps`: by how much each token was likelier than the next, natural logarithm."""

    ids: list[int]
    tokens: list[int]
    gaps: list[float]


def climb(site: Site) -> Outcome:
    (site.folder / SINGLE_DEVICE).unlink(missing_ok=True)  # of another model, or of another state of this one
    there, alone = room(site), fullest(site, Layout())
    if there.nbytes is not None and alone.total > there.nbytes:
        return skipped(f"the model needs {alone.total} bytes, and one device has {there.nbytes}: nothing to hold the layout to")
    import torch

    from runtime.validation.single_step import examine_single_step
    from runtime.validation.subject import open_subject

    subject = open_subject(site.model, torch.float32 if site.full_precision else torch.bfloat16, site.device, False, None, 0, LONG + TOKENS)
    checks = examine_single_step(subject)
    evidence = [Evidence(f"{check.outcome}: {check.name}", check.detail) for check in checks]
    bad = [check for check in checks if check.outcome == "fail"]
    if bad:
        more = (f"workbench validate {site.model}", *diagnose("garbled-output", f"--model {site.model}"))
        return failed("; ".join(f"{check.name}: {check.detail}" for check in bad), *evidence, next=more)
    told = ", ".join(check.name for check in checks if check.outcome == "pass")
    references = [_greedy(subject.model, prompt) for prompt in _prompts(site, subject.model)]
    if not references:
        return passed(f"{told}; no answers are kept for the layout: no prompt fits beside {TOKENS} tokens of answer", *evidence)
    keep(site.folder, SINGLE_DEVICE, references)
    closest = min(min(one.gaps) for one in references)
    evidence.append(Evidence("answers kept for the layout", f"{len(references)} of {TOKENS} tokens, the closest choice by {closest:.2g}"))
    return passed(told, *evidence)


def references_of(site: Site) -> list[Reference]:
    """What this rung left; nothing when it was skipped."""
    found: list[Reference] | None = kept(site.folder, SINGLE_DEVICE, list[Reference])
    return found or []


def _greedy(model: Any, prompt: list[int]) -> Reference:
    from runtime.local import LocalSequence

    sequence = LocalSequence(model, len(prompt) + TOKENS)
    logits = sequence.feed(prompt)
    tokens, gaps = list[int](), list[float]()
    while len(tokens) < TOKENS:
        best = logits[-1].float().log_softmax(-1).topk(2)
        tokens.append(int(best.indices[0]))
        gaps.append(float(best.values[0] - best.values[1]))
        logits = sequence.feed(tokens[-1:])
    return Reference(prompt, tokens, gaps)


def _prompts(site: Site, model: Any) -> list[list[int]]:
    """A few sentences and a long text, as token ids that the embedding has, cut to what a sequence can have; none where that is nothing."""
    from runtime.server.tokenizer import Tokenizer

    tokenizer, vocabulary = Tokenizer.of(site.model), model.arch.vocab
    found = [[token for token in tokenizer.encode(text) if token < vocabulary] for text in TEXTS]
    most = min(LONG, model.arch.max_positions - TOKENS, (site.options.config.max_model_len or LONG + TOKENS) - TOKENS)
    sentence = tokenizer.encode(" ".join(TEXTS)) or [0]
    found.append(sentence * (max(most, 0) // len(sentence) + 1))
    return [prompt[:most] for prompt in found if prompt[: max(most, 0)]]


RUNG = Rung(
    "one device", "the model's arithmetic, one sequence on one device", ("environment", "config", "weights", "settings"), climb, inside=True
)  # fmt: skip
