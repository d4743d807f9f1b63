"""Tier 4: long answers. Around every boundary a prompt is cut in several ways, at the far end of the positions, and over a long text."""

from __future__ import annotations

from runtime.arch import AttentionSpec, KdaSpec
from runtime.layers.delta_rule import CHUNK
from runtime.local import BLOCK
from runtime.validation.document import Check
from runtime.validation.positions import examine_positions
from runtime.validation.recall import examine_recall
from runtime.validation.subject import Subject, probe_ids

STEP = 64  # tokens: a chunk of a prompt that is prefilled in several steps
AROUND = 3  # single tokens before and behind a boundary


def boundaries(subject: Subject) -> dict[int, str]:
    """Length at which something changes -> what."""
    arch, found = subject.model.arch, {BLOCK: "block of the cache", STEP: "chunk of a prompt"}
    for layer in arch.layers:
        if isinstance(layer.attention, AttentionSpec) and layer.attention.window is not None:
            found[layer.attention.window] = "sliding window"
        if isinstance(layer.attention, KdaSpec):
            found[CHUNK] = "chunk of delta attention and block of the cache" if CHUNK == BLOCK else "chunk of delta attention"
    if arch.rope is not None and arch.rope.yarn is not None:
        found[arch.rope.yarn.original] = "original context of yarn"
    return dict(sorted(found.items()))


def examine_long(subject: Subject) -> list[Check]:
    """Every boundary that fits `subject.room`; the others are skipped by name."""
    checks = []
    for at, what in boundaries(subject).items():
        length = 2 * at + AROUND
        if length > subject.room:
            length = at + AROUND  # crosses it once
        if length > subject.room:
            checks.append(Check(f"{what} {at}", "skipped", f"needs {length} tokens, --most-tokens allows {subject.room}"))
            continue
        ids = probe_ids(subject.model.arch.vocab, at, length)
        for size in (at - 1, at, at + 1):
            if 0 < size < length:
                steps = [size] * (length // size)
                checks.append(subject.equal_in_steps(f"{what} {at}: steps of {size}", ids, steps, scattered=size != at))
        before = max(1, at - AROUND)
        checks.append(
            subject.equal_in_steps(f"{what} {at}: token by token", ids[: at + AROUND], [before, *[1] * (2 * AROUND)], scattered=True)
        )
    return [*checks, *examine_positions(subject), examine_recall(subject)]
