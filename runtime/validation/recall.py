"""Needle recall: a number at the beginning of a text is asked for at its end, over longer and longer texts, where the model can do it
over a short one. An unknown model promises no recall, so that losing it is a fault only where something else shows that it need not be
lost: the same prompt in one pass, or the reference model."""

from __future__ import annotations

from typing import Any

import torch

from runtime.local import LocalSequence, greedy
from runtime.validation.document import Check
from runtime.validation.subject import Subject

NUMBER = "58213"
FACT = f"The number of the locker is {NUMBER}. Remember it."
# They begin with a space, so that they are cut into tokens as in the whole text.
FILLER = " The river runs past the mill. The baker opens at six. A cat sleeps on the wall."
ASKED = " What is the number of the locker? The number of the locker is"
ANSWER = 8  # tokens
STEP = 64  # tokens of a chunk, as in the rest of the tier
GROWTH = 4  # from one length to the next
NAME = "needle recall"


def examine_recall(subject: Subject) -> Check:
    """Lengths up to `subject.room`. A model that cannot do it over the shortest text is said to be so."""
    if subject.tokenizer is None:
        return Check(NAME, "skipped", "the model has no tokenizer that could read a text")
    shortest = len(text_ids(subject.tokenizer, 0))
    if shortest + ANSWER > subject.room:
        return Check(NAME, "skipped", f"needs {shortest + ANSWER} tokens, --most-tokens or the model allow {subject.room}")
    if max(text_ids(subject.tokenizer, 0)) >= subject.model.arch.vocab:
        return Check(NAME, "skipped", "the tokenizer gives tokens that the model does not have")
    if not _recalled(subject, _in_chunks(subject, text_ids(subject.tokenizer, 0))):
        return Check(NAME, "note", f"the model does not repeat a number over {shortest} tokens: longer texts can be held to nothing")
    done, length = shortest, shortest
    while done + ANSWER < subject.room:
        length = min(GROWTH * length, subject.room - ANSWER)
        ids = text_ids(subject.tokenizer, length)
        if len(ids) <= done:
            break
        answer = _in_chunks(subject, ids)
        if not _recalled(subject, answer):
            return _lost(subject, ids, answer, done)
        done = len(ids)
    return Check(NAME, "pass", f"a number is repeated over {done} tokens, in chunks of {STEP}", float(done))


def text_ids(tokenizer: Any, length: int) -> list[int]:
    """The fact, as many fillers as fit in `length` tokens, at least one, and the question."""
    first = tokenizer.encode(FACT).ids
    filler, asked = (tokenizer.encode(text, add_special_tokens=False).ids for text in (FILLER, ASKED))
    count = max(1, (length - len(first) - len(asked)) // len(filler))
    ids: list[int] = first + count * filler + asked
    return ids


def _in_chunks(subject: Subject, ids: list[int]) -> list[int]:
    """Greedy, as a server prefills a long prompt: in chunks, over blocks in no order."""
    sequence = LocalSequence(subject.model, len(ids) + ANSWER, subject.float8, scattered=True)
    drawn = [int(sequence.feed_in_chunks(ids, STEP)[-1].argmax())]
    while len(drawn) < ANSWER:
        drawn.append(int(sequence.feed(drawn[-1:])[-1].argmax()))
    return drawn


def _lost(subject: Subject, ids: list[int], answer: list[int], done: int) -> Check:
    told = f"a number is repeated over {done} tokens; over {len(ids)} the answer is {subject.words(answer)!r}"
    at_once = greedy(subject.model, ids, ANSWER, subject.float8)
    if _recalled(subject, at_once):
        # in half precision the two ways differ by rounding, which can decide at the edge of what a model can do
        return Check(NAME, "fail" if subject.exact else "note", f"{told} in chunks of {STEP}, and right in one pass", float(len(ids)))
    if subject.outside is not None and _recalled(subject, _theirs(subject, ids)):
        return Check(NAME, "fail" if subject.exact else "note", f"{told}, and the reference's is right", float(len(ids)))
    why = "nor does the reference" if subject.outside is not None else "no reference says that it should; give --reference transformers"
    return Check(NAME, "note", f"{told}, in one pass as in chunks; {why}", float(done))


def _theirs(subject: Subject, ids: list[int]) -> list[int]:
    """Greedy, each token by a pass over all of them."""
    tokens = list(ids)
    with torch.no_grad():
        while len(tokens) < len(ids) + ANSWER:
            tokens.append(int(subject.outside(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(ids) :]


def _recalled(subject: Subject, answer: list[int]) -> bool:
    return NUMBER in subject.words(answer).replace(" ", "")
