"""The next token of each sequence: greedy, or drawn with temperature, min-p, top-k and top-p from the sequence's own generator.

A choice depends only on the row of logits and on its sequence, never on what else is in the batch. Order as in vLLM: penalties and
biases, the least length, the grammar, temperature, min-p, top-k, top-p.

The rank that has the logits need not be the one that holds the sequence: what crosses between them is a `Wanted`.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from runtime.messages import Sampling
from runtime.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Sampled:
    """A token, and the log-probabilities that were asked for (natural logarithm, of the model's own distribution)."""

    token: int
    logprob: float | None = None
    top: list[tuple[int, float]] | None = None


class Wanted(msgspec.Struct, frozen=True, array_like=True):
    """How the next token of a sequence is to be drawn; `point` in [0, 1) decides which, None: greedy. Steered: only where the sequence
    is, because its past decides too."""

    logprobs: int
    sampling: Sampling | None = None
    point: float | None = None
    steered: bool = False


def wanted(sequence: Sequence) -> Wanted:
    """Takes one number from the sequence's generator, unless it is steered."""
    sampling = sequence.sampling
    if not sequence.free:
        return Wanted(sampling.logprobs, steered=True)
    if sequence.generator is None:
        return Wanted(sampling.logprobs)
    return Wanted(sampling.logprobs, sampling, _uniform(sequence.generator))


def sample_wanted(logits: Tensor, asked: list[Wanted]) -> list[Sampled]:
    """One token per row of `logits` [K, vocab], as asked[k] says; of steered ones the likeliest, which does not count."""
    if not asked:
        return []
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    for row, want in enumerate(asked):
        if want.sampling is not None and want.point is not None:
            tokens[row] = _pick(logits[row], want.sampling, want.point)
    return [
        Sampled(token) if want.logprobs < 0 or want.steered else _with_logprobs(logits[row], token, want.logprobs)
        for row, (token, want) in enumerate(zip(tokens, asked, strict=True))
    ]


def sample(logits: Tensor, sequences: list[Sequence]) -> list[Sampled]:
    """One token per row of `logits` [K, vocab]; row k belongs to sequences[k]."""
    if not sequences:
        return []
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    for row, sequence in enumerate(sequences):
        if sequence.free and sequence.generator is None:
            continue
        wanted = logits[row] if sequence.free else _steered(logits[row], sequence)
        tokens[row] = int(wanted.argmax()) if sequence.generator is None else draw(wanted, sequence.sampling, sequence.generator)
        if sequence.constraint is not None:
            sequence.constraint.accept(tokens[row])
    return [
        Sampled(token) if sequence.sampling.logprobs < 0 else _with_logprobs(logits[row], token, sequence.sampling.logprobs)
        for row, (token, sequence) in enumerate(zip(tokens, sequences, strict=True))
    ]


def draw(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """One draw from softmax(logits / temperature) [vocab], cut to the top-k tokens and to the smallest set of mass top-p."""
    return _pick(logits, sampling, _uniform(generator))


def _uniform(generator: torch.Generator) -> float:
    return float(torch.rand(1, generator=generator, dtype=torch.float64))


def _pick(logits: Tensor, sampling: Sampling, point: float) -> int:
    scaled = logits.to("cpu", torch.float64) / sampling.temperature
    values, order = scaled.sort(descending=True, stable=True)
    if sampling.min_p > 0:
        # p_i >= min_p * p_max, in logarithms; the likeliest always stays.
        kept = int((values >= values[0] + torch.tensor(sampling.min_p, dtype=torch.float64).log()).sum())
        values, order = values[: max(kept, 1)], order[: max(kept, 1)]
    if 0 < sampling.top_k < len(values):
        values, order = values[: sampling.top_k], order[: sampling.top_k]
    probabilities = values.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities  # mass of the likelier tokens: the first token always stays
    kept_mass = probabilities[before < sampling.top_p]
    cumulative = kept_mass.cumsum(dim=-1)
    # Rounding may put the point on the very end of the last interval.
    index = min(int(torch.searchsorted(cumulative, point * cumulative[-1], right=True)), len(kept_mass) - 1)
    return int(order[index])


def penalised(logits: Tensor, sampling: Sampling, prompt: list[int], answer: list[int]) -> Tensor:
    """logits [vocab] with penalties and biases, as a new tensor.

    repetition (Keskar et al. 2019, section 4.1) looks at prompt and answer; frequency and presence (OpenAI API reference) at the answer.
    """
    logits = logits.float().clone()
    vocabulary = logits.shape[-1]
    generated = torch.bincount(torch.tensor(answer, dtype=torch.int64), minlength=vocabulary).to(logits.device)
    if sampling.repetition != 1.0:
        seen = generated > 0
        seen[torch.tensor(prompt, dtype=torch.int64, device=logits.device)] = True
        logits = torch.where(seen, torch.where(logits > 0, logits / sampling.repetition, logits * sampling.repetition), logits)
    if sampling.frequency or sampling.presence:
        logits = logits - sampling.frequency * generated - sampling.presence * (generated > 0)
    if sampling.bias:
        places = torch.tensor(list(sampling.bias), dtype=torch.int64, device=logits.device)
        logits[places] += torch.tensor(list(sampling.bias.values()), dtype=logits.dtype, device=logits.device)
    return logits


def _steered(logits: Tensor, sequence: Sequence) -> Tensor:
    """What the request wants of this row: penalties, biases, no end before its least length, grammar."""
    start = sequence.prompt_length
    steered = penalised(logits, sequence.sampling, sequence.tokens[:start], sequence.tokens[start:])
    if sequence.must_go_on:
        steered[list(sequence.stops)] = -torch.inf
    if sequence.constraint is not None:
        sequence.constraint.restrict(steered)
    return steered


def _with_logprobs(logits: Tensor, token: int, alternatives: int) -> Sampled:
    logprobs = logits.float().log_softmax(dim=-1)
    if not alternatives:
        return Sampled(token, float(logprobs[token]), [])
    values, indices = logprobs.topk(min(alternatives, logprobs.shape[-1]))
    return Sampled(token, float(logprobs[token]), list(zip(indices.tolist(), values.tolist(), strict=True)))
