"""The sampler against distributions computed by hand and against itself in other batches."""

from __future__ import annotations

import math
from collections import Counter

import torch

from runtime.messages import Sampling, Submit
from runtime.sampler import draw, penalised, sample
from runtime.sequence import Sequence


def make(temperature: float, seed: int = 0, **more: float) -> Sequence:
    sampling = Sampling(temperature=temperature, seed=seed, **more)  # type: ignore[arg-type]
    return Sequence.of(Submit(1, "0" * 32, [1], 8, [], sampling, 0, 0))


def test_greedy_takes_the_largest() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 3.0, 1.0]])
    assert [s.token for s in sample(logits, [make(0.0), make(0.0)])] == [1, 0]


def test_frequencies_follow_the_softmax() -> None:
    logits = torch.tensor([0.0, math.log(2.0), math.log(5.0)])  # 1/8, 2/8, 5/8
    generator = torch.Generator().manual_seed(3)
    counts = Counter(draw(logits, Sampling(), generator) for _ in range(4000))
    # Three standard deviations of a binomial share at n = 4000 are at most 0.024.
    assert all(abs(counts[i] / 4000 - p) < 0.024 for i, p in enumerate([0.125, 0.25, 0.625]))


def test_top_p_keeps_the_smallest_set_of_that_mass() -> None:
    logits = torch.tensor([0.1, 0.2, 0.4, 0.3]).log()
    generator = torch.Generator().manual_seed(0)
    assert {draw(logits, Sampling(top_p=0.69), generator) for _ in range(300)} == {2, 3}
    assert {draw(logits, Sampling(top_p=0.01), generator) for _ in range(50)} == {2}
    assert {draw(logits, Sampling(top_k=1), generator) for _ in range(50)} == {2}


def test_a_draw_does_not_depend_on_the_batch() -> None:
    generator = torch.Generator().manual_seed(1)
    steps = [torch.randn(50, generator=generator) for _ in range(20)]
    alone, beside = make(0.9, seed=11, top_p=0.9), make(0.9, seed=11, top_p=0.9)
    other = make(1.3, seed=5)
    first = [sample(row.view(1, -1), [alone])[0].token for row in steps]
    second = [sample(torch.stack([torch.randn(50), row]), [other, beside])[1].token for row in steps]
    assert first == second
    assert len(set(first)) > 1


def test_logprobs_are_those_of_the_model() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.5]])
    (sampled,) = sample(logits, [make(0.0, logprobs=2)])
    total = math.log(sum(math.exp(x) for x in (1.0, 2.0, 0.5)))
    assert sampled.logprob is not None and abs(sampled.logprob - (2.0 - total)) < 1e-6
    assert sampled.top is not None and [index for index, _ in sampled.top] == [1, 0]


def test_penalties_are_those_of_transformers_and_of_the_openai_reference() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(50, generator=generator) * 3
    prompt, answer = [3, 7, 7, 20], [9, 9, 9, 3, 41]
    theirs = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([prompt + answer]), logits[None].clone())[0]
    assert torch.allclose(penalised(logits, Sampling(repetition=1.7), prompt, answer), theirs)
    ours = penalised(logits, Sampling(frequency=0.5, presence=-0.25, bias={1: 4.0, 9: -1.0}), prompt, answer)
    for token in range(50):  # mu[j] - c[j] * frequency - [c[j] > 0] * presence
        count = answer.count(token)
        expected = float(logits[token]) - 0.5 * count + 0.25 * (count > 0) + {1: 4.0, 9: -1.0}.get(token, 0.0)
        assert math.isclose(float(ours[token]), expected, abs_tol=1e-5)


def test_min_p_keeps_what_transformers_keeps() -> None:
    from transformers import MinPLogitsWarper

    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(40, generator=generator) * 2
    kept = MinPLogitsWarper(0.2)(torch.tensor([[0]]), logits[None].clone())[0]
    allowed = set(torch.nonzero(torch.isfinite(kept)).flatten().tolist())
    drawn = {draw(logits, Sampling(min_p=0.2), generator) for _ in range(600)}
    assert drawn <= allowed and len(allowed) < 15 and len(drawn) >= len(allowed) - 1


def test_a_steered_sequence_leaves_its_neighbours_alone() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [0.0, 3.0, 1.0]])
    steered = make(0.0)
    steered.sampling = Sampling(temperature=0.0, bias={2: 50.0})
    assert [s.token for s in sample(logits, [steered, make(0.0)])] == [2, 1]
