"""`--compare A B`: two checkpoints, precisions or cache formats. What changes for those who read the answers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from runtime.local import greedy
from runtime.taps.capture import Capture
from runtime.taps.compare import KL_LIMIT, TOP1_LIMIT, compare
from runtime.taps.tapped_model import TappedModel, record
from runtime.validation.document import Changed, Sides
from runtime.validation.subject import Subject, encoded, open_subject
from traces.errors import UsageError

DTYPES = ("float32", "bfloat16", "float16")
FLOAT8 = "kv-fp8"
ANSWER = 24  # tokens
STEP = 8  # tokens of a prompt's chunk: a chunk sees its own keys as computed, so that only what comes from the cache shows its format


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: a folder, a compute dtype, and whether the cache is in float8."""

    path: str
    dtype: str
    float8: bool

    @classmethod
    def of(cls, word: str, path: str | None, dtype: str) -> Side:
        """`word`: a folder, a dtype, kv-fp8, or several of them with commas; what it leaves open is `path` and `dtype`. UsageError."""
        float8 = False
        for part in word.split(","):
            if part in DTYPES:
                dtype = part
            elif part == FLOAT8:
                float8 = True
            elif Path(part).is_dir():
                path = part
            else:
                raise UsageError(f"{part!r} is neither a model folder nor one of {', '.join((*DTYPES, FLOAT8))}", "see --help")
        if path is None:
            raise UsageError(f"the side {word!r} names no model", "give MODEL, or a folder for each side")
        return cls(path, dtype, float8)

    def __str__(self) -> str:
        return f"{self.path} in {self.dtype}{', cache in fp8' if self.float8 else ''}"


@dataclass(slots=True)
class _Answers:
    """`read`: what both sides read: each prompt with A's answer to it, then ids that were asked for."""

    subject: Subject
    prompts: list[list[int]]
    read: list[list[int]]
    captures: list[Capture]
    drawn: list[list[int]]


def compare_sides(a: Side, b: Side, device: str, texts: tuple[str, ...], ids: list[int] | None, seed: int) -> Sides:
    """A is the reference. Both read the same ids, made with A's tokenizer: text as the model meets it, where there is one, because the
    choices among random ids are all close ones. UsageError where B's vocabulary is smaller."""
    before = _answers(a, device, texts, None, ids, seed)
    after = _answers(b, device, texts, before, ids, seed)
    found = [compare(one, other) for one, other in zip(before.captures, after.captures, strict=True)]
    tokens = [len(capture.ids) for capture in before.captures]
    kl = [(math.inf if c.kl is None else c.kl) for c in found]
    weighted = sum(k * n for k, n in zip(kl, tokens, strict=True)) / sum(tokens)
    top1 = 1 - sum(len(c.changed) for c in found) / sum(tokens)
    first = next((c.first for c in found if c.first is not None), None)
    told = zip(before.prompts, before.drawn, after.drawn, strict=True)
    changed = [
        Changed(before.subject.words(prompt), before.subject.words(one), before.subject.words(other), _alike(one, other))
        for prompt, one, other in told
        if one != other
    ]
    known = all(c.kl is not None for c in found)
    return Sides(
        a=str(a), b=str(b), tokens=sum(tokens), kl=weighted if known else None, kl_worst=max(kl) if known else None, top1=top1,
        answers=len(before.drawn), changed=changed, first_tap=first.name if first else None,
        first_relative=first.relative if first else None, first_gain=first.gain if first else None,
        visible=not weighted <= KL_LIMIT or top1 < TOP1_LIMIT,
    )  # fmt: skip


def _answers(side: Side, device: str, texts: tuple[str, ...], other: _Answers | None, ids: list[int] | None, seed: int) -> _Answers:
    """Greedy answers to the prompts, and taps of all that is read; `other`: the side that was asked first, whose ids are used."""
    subject = open_subject(side.path, getattr(torch, side.dtype), device, side.float8, ids, seed, 1 << 20)
    if other is not None:
        prompts = other.prompts
    else:
        prompts = encoded(subject.tokenizer, subject.model.arch.vocab, texts) if texts else subject.prompts()
    drawn = [greedy(subject.model, prompt, ANSWER, side.float8) for prompt in prompts]
    read = other.read if other is not None else [p + d for p, d in zip(prompts, drawn, strict=True)] + ([ids] if ids else [])
    view = TappedModel.over(subject.model)
    captures = [record(view, part, [STEP] * (len(part) // STEP), side.float8) for part in read]
    return _Answers(subject, prompts, read, captures, drawn)


def _alike(a: list[int], b: list[int]) -> int:
    return next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
