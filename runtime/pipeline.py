"""A step through the stages of a replica: its micro-batches one behind the other, and the drawn tokens back to its first rank."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.batch import StepContext
from runtime.boundary import Boundary
from runtime.kv import KVCache
from runtime.mesh import Mesh
from runtime.micro_batch import MicroBatch
from runtime.model import MoeModel
from runtime.sampler import Sampled, Wanted, sample, sample_wanted
from runtime.step_marks import StepMarks


@dataclass(frozen=True, slots=True)
class Pipeline:
    """This rank's part: its stage."""

    model: MoeModel
    kv: KVCache

    @property
    def mesh(self) -> Mesh:
        return self.model.mesh

    @torch.inference_mode()
    def run(self, micro_batches: list[MicroBatch], contexts: list[StepContext], marks: StepMarks) -> list[Sampled]:
        """One token for every sequence that samples, on the replica's first rank; nothing elsewhere. Marks the end of all but the last."""
        sampled: list[Sampled] = []
        for micro_batch, context in zip(micro_batches, contexts, strict=True):
            logits = self.model.forward(micro_batch.batch, self.kv, context)
            if self.mesh.results is None and self.mesh.leads:
                sampled += sample(logits, micro_batch.sequences)
            elif self.mesh.results is not None and self.mesh.samples:
                self._give(self.mesh.results, logits, micro_batch.wanted, context)
            if context is not contexts[-1]:
                marks.mark()
        if self.mesh.results is not None and self.mesh.leads:
            for micro_batch, context in zip(micro_batches, contexts, strict=True):
                sampled += self._take(self.mesh.results, micro_batch, context)
        self.mesh.settle()
        return sampled

    def _give(self, link: Boundary, logits: Tensor, asked: list[Wanted], step: StepContext) -> None:
        """From the rank that has the logits [K, V]: what it drew, and whole rows for sequences that are steered where they are held."""
        if asked:
            link.send([_pack(sample_wanted(logits, asked), _alternatives(asked))], "tokens", step)
            if steered := [row for row, want in enumerate(asked) if want.steered]:
                link.send([logits[steered].float().cpu()], "logits", step)

    def _take(self, link: Boundary, micro_batch: MicroBatch, step: StepContext) -> list[Sampled]:
        """To the rank that schedules."""
        asked, here = micro_batch.wanted, torch.device("cpu")
        if not asked:
            return []
        (rows,) = link.receive([(len(asked), 2 + 2 * _alternatives(asked))], torch.float64, here, "tokens", step)
        sampled = [_unpack(row, want) for row, want in zip(rows.tolist(), asked, strict=True)]
        if steered := [row for row, want in enumerate(asked) if want.steered]:
            (logits,) = link.receive([(len(steered), self.model.arch.vocab)], torch.float32, here, "logits", step)
            for row, one in zip(steered, sample(logits, [micro_batch.sequences[row] for row in steered]), strict=True):
                sampled[row] = one
        return sampled


def _alternatives(asked: list[Wanted]) -> int:
    """The most that any of them asked for."""
    return max([0, *(want.logprobs for want in asked)])


def _pack(sampled: list[Sampled], alternatives: int) -> Tensor:
    """[K, 2 + 2 alternatives] float64: token, log-probability, then the alternatives' tokens (-1: none) and log-probabilities."""
    rows = torch.full((len(sampled), 2 + 2 * alternatives), -1.0, dtype=torch.float64)
    for row, one in zip(rows, sampled, strict=True):
        row[0] = one.token
        if one.logprob is not None:
            row[1] = one.logprob
        for i, (token, logprob) in enumerate(one.top or ()):
            row[2 + 2 * i], row[3 + 2 * i] = token, logprob
    return rows


def _unpack(row: list[float], want: Wanted) -> Sampled:
    if want.logprobs < 0:
        return Sampled(int(row[0]))
    pairs = zip(row[2::2], row[3::2], strict=True)
    return Sampled(int(row[0]), row[1], [(int(token), logprob) for token, logprob in pairs if token >= 0])
