"""A step's plan, cut into micro-batches that follow one another through the pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from runtime.assemble import assemble
from runtime.batch import ForwardBatch
from runtime.sampler import Wanted, wanted
from runtime.scheduler import Chunk, Plan
from runtime.sequence import Sequence

LEAST_TOKENS = 16  # a smaller micro-batch takes about as long as one of this size: every weight is read for it


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What every rank of a replica computes together. `sequences` and `requests` only where it was planned."""

    batch: ForwardBatch
    wanted: list[Wanted]  # how the tokens behind it are drawn, where another rank draws them than planned it
    prefill: int = 0  # tokens of prompts
    decode: int = 0
    context: int = 0  # cached tokens that its sequences attend to
    requests: list[str] = field(default_factory=list)
    sequences: list[Sequence] = field(default_factory=list)  # those that sample

    @property
    def tokens(self) -> int:
        return self.prefill + self.decode

    @classmethod
    def of(cls, chunks: list[Chunk], device: torch.device, drawn_elsewhere: bool) -> MicroBatch:
        """Images of the chunks must have been encoded."""
        sampling = [c.sequence for c in chunks if c.samples]
        decode = sum(c.decodes for c in chunks)
        return cls(
            assemble(Plan(chunks), device),
            [wanted(sequence) for sequence in sampling] if drawn_elsewhere else [],
            sum(c.length for c in chunks) - decode,
            decode,
            sum(c.start for c in chunks),
            [c.sequence.trace_id for c in chunks],
            sampling,
        )

    @classmethod
    def empty(cls) -> MicroBatch:
        return cls(ForwardBatch.empty(), [])


def micro_batches_for(tokens: int, most: int) -> int:
    """Into how many a plan of `tokens` tokens is worth cutting."""
    return max(1, min(most, tokens // LEAST_TOKENS))


def cut(chunks: list[Chunk], count: int) -> list[list[Chunk]]:
    """`count` parts with about equally many tokens, in order. A long chunk may go on in the next part: its cache is written by then."""
    total = sum(chunk.length for chunk in chunks)
    ends = [total * (part + 1) // count for part in range(count)]
    parts: list[list[Chunk]] = [[] for _ in range(count)]
    at = part = 0
    for chunk in chunks:
        first = chunk.start
        stop = first + chunk.length
        while first < stop:
            while at == ends[part]:
                part += 1
            taken = min(stop - first, ends[part] - at)
            parts[part].append(Chunk(chunk.sequence, first, taken))
            first, at = first + taken, at + taken
    return parts
