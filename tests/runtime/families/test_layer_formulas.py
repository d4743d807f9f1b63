"""Parts that have no reference model: against their formulas, one token at a time in plain Python floats."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from runtime.arch import Activation, RouterSpec  # noqa: E402
from runtime.layers.experts import gated  # noqa: E402
from runtime.layers.residual import ResidualQuery, Streams  # noqa: E402
from runtime.layers.router import choose  # noqa: E402
from runtime.layers.sinks import attend_with_sinks  # noqa: E402
from runtime.weights import ExpertBank, ExpertWeights  # noqa: E402


def rand(*shape: int, seed: int = 0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_attention_residual_of_one_token():
    """probabilities = softmax over rows of (v . (w p)) / rms(v); the mix is of the rows as they are."""
    hidden, eps = 24, 1e-5
    rows = [rand(1, hidden, seed=n) * (n + 1) for n in range(3)]
    norm, proj = 1 + rand(hidden, seed=7) * 0.3, rand(1, hidden, seed=8)
    query = ResidualQuery.of({"at.norm": norm, "at.proj": proj}, "at", eps)
    assert query is not None
    mixed = query.mix(rows[:2], rows[2])[0].tolist()

    values = [row[0].tolist() for row in rows]
    scores = []
    for value in values:
        rms = math.sqrt(sum(x * x for x in value) / hidden + eps)
        scores.append(sum(x / rms * w * p for x, w, p in zip(value, norm.tolist(), proj[0].tolist(), strict=True)))
    shares = [math.exp(score) / sum(math.exp(other) for other in scores) for score in scores]
    expected = [sum(share * value[d] for share, value in zip(shares, values, strict=True)) for d in range(hidden)]
    assert mixed == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert max(shares) < 0.99 and min(shares) > 1e-4, "a mix of one row proves nothing"


def test_nothing_frozen_is_nothing_mixed():
    query = ResidualQuery(rand(8), 1e-5)
    running = rand(5, 8, seed=1)
    assert Streams().read(query, running) is running
    assert Streams([running]).read(None, running) is running
    assert ResidualQuery.of({}, "layers.0.attention_residual", 1e-5) is None


def test_situ_and_clamped_swiglu():
    inner = rand(6, 10) * 4
    situ, clamped = gated(inner, Activation("situ", 4.0, 25.0)), gated(inner, Activation("clamped_swiglu", 1.702, 3.0))
    for row in range(6):
        for column in range(5):
            gate, up = float(inner[row, column]), float(inner[row, column + 5])
            sigmoid = 1 / (1 + math.exp(-gate))
            assert float(situ[row, column]) == pytest.approx(4 * math.tanh(gate / 4) * sigmoid * 25 * math.tanh(up / 25), rel=1e-5)
            low, middle = min(gate, 3.0), max(-3.0, min(3.0, up))
            assert float(clamped[row, column]) == pytest.approx(low / (1 + math.exp(-1.702 * low)) * (middle + 1), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(("groups", "top_groups"), [(1, 1), (4, 2), (2, 1)])
def test_group_limited_sigmoid_routing(groups, top_groups):
    experts, top_k, scale = 16, 3, 2.5
    spec = RouterSpec(top_k, True, "sigmoid", selection_bias=True, groups=groups, top_groups=top_groups, scale=scale)
    router, select = rand(experts, 8), rand(experts, seed=2) * 0.5
    weights = ExpertWeights(router, ExpertBank(torch.zeros(1, 2, 8), torch.zeros(1, 8, 1)), select=select)
    hidden = rand(20, 8, seed=3)
    shares, chosen = choose(hidden, weights, spec)
    size = experts // groups
    differs = 0
    for token in range(20):
        scores = [1 / (1 + math.exp(-float(hidden[token] @ router[e]))) for e in range(experts)]
        wanted = [s + float(b) for s, b in zip(scores, select, strict=True)]
        best = sorted(range(groups), key=lambda g: -sum(sorted(wanted[g * size : (g + 1) * size])[-2:]))[:top_groups]
        allowed = [e for e in range(experts) if e // size in best]
        top = sorted(allowed, key=lambda e: -wanted[e])[:top_k]
        differs += set(top) != set(sorted(range(experts), key=lambda e: -scores[e])[:top_k])
        assert sorted(chosen[token].tolist()) == sorted(top)
        total = sum(scores[e] for e in top)
        for share, expert in zip(shares[token].tolist(), chosen[token].tolist(), strict=True):
            assert share == pytest.approx(scores[expert] / total * scale, rel=1e-5)
    assert differs > 5, "the bias must have decided something"


def test_a_sink_takes_its_share():
    query, key, value = rand(2, 2, 3, 8), rand(2, 1, 5, 8, seed=1), rand(2, 1, 5, 8, seed=2)
    sinks = rand(2, 2, 1, 1, seed=3)
    mask = torch.tensor([[True] * 3 + [False] * 2, [True] * 4 + [False], [True] * 5])
    out = attend_with_sinks(query, key, value, mask, sinks)
    for a in range(2):
        for b in range(2):
            for n in range(3):
                seen = [c for c in range(5) if mask[n, c]]
                logits = [float(query[a, b, n] @ key[a, 0, c]) / math.sqrt(8) for c in seen]
                total = sum(map(math.exp, logits)) + math.exp(float(sinks[a, b, 0, 0]))
                expected = sum(math.exp(x) / total * value[a, 0, c] for x, c in zip(logits, seen, strict=True))
                assert torch.allclose(out[a, b, n], expected, atol=1e-6)
