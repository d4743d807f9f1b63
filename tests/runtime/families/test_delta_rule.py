"""Delta attention: chunks equal single tokens and transformers' functions, with states carried over, whatever the decay."""

from __future__ import annotations

import importlib.util
from itertools import pairwise
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers.models.kimi_linear.modeling_kimi_linear import recurrent_kimi_delta_attention  # noqa: E402

from runtime.layers.delta_rule import Steps, delta_chunks, delta_step  # noqa: E402

HEADS, DIM = 3, 16
# Mean log decay a token: hardly any, Kimi K3's steepest, and far beyond what exp can undo within a chunk.
DECAYS = [0.01, 1.0, 5.0, 60.0]


def random_steps(count: int, decay: float) -> Steps:
    generator = torch.Generator().manual_seed(count)

    def rand(*shape: int):
        return torch.randn(shape, generator=generator)

    query, key, value = (rand(count, HEADS, DIM) for _ in range(3))
    query, key = query / query.norm(dim=-1, keepdim=True) * DIM**-0.5, key / key.norm(dim=-1, keepdim=True)
    decays = -decay * torch.rand(count, HEADS, DIM, generator=generator) * 2
    decays[::3] = 0.0  # some tokens forget nothing
    return Steps(query, key, value, decays, torch.rand(count, HEADS, generator=generator))


def by_transformers(steps: Steps, memory):
    """Its recurrence, one token at a time. It scales queries itself."""
    inputs = (steps.query * DIM**0.5, steps.key, steps.value, steps.decay, steps.strength)
    out, state = recurrent_kimi_delta_attention(*(x[None] for x in inputs), memory[None], True)
    return out[0], state[0]


def close(ours, theirs) -> bool:
    return torch.allclose(ours, theirs, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("count", [2, 15, 16, 17, 50])
def test_chunks_equal_the_recurrence(count, decay):
    steps, memory = random_steps(count, decay), torch.randn(HEADS, DIM, DIM, generator=torch.Generator().manual_seed(0))
    out, state = delta_chunks(steps, memory)
    expected, behind = by_transformers(steps, memory)
    assert close(out, expected) and close(state, behind)


@pytest.mark.parametrize("decay", DECAYS)
def test_single_tokens_of_many_sequences(decay):
    memory = torch.randn(4, HEADS, DIM, DIM, generator=torch.Generator().manual_seed(0))
    steps = random_steps(4, decay)
    moved = memory.clone()
    out = delta_step(steps, moved)
    for n in range(4):
        expected, behind = by_transformers(steps.part(slice(n, n + 1)), memory[n])
        assert close(out[n], expected[0]) and close(moved[n], behind)


@pytest.mark.parametrize("cuts", [(0, 50), (0, 1, 50), (0, 7, 23, 50), tuple(range(51))])
def test_states_carry_over_any_cuts(cuts):
    steps, memory = random_steps(50, 1.0), torch.zeros(HEADS, DIM, DIM)
    expected, behind = by_transformers(steps, memory)
    parts = []
    for start, stop in pairwise(cuts):
        out, memory = delta_chunks(steps.part(slice(start, stop)), memory)
        parts.append(out)
    assert close(torch.cat(parts), expected) and close(memory, behind)


def test_equals_fla_core():
    """fla-core's naive recurrence, where it is installed; its file is loaded alone, because the package wants triton."""
    found = importlib.util.find_spec("fla")
    if found is None or found.submodule_search_locations is None:
        pytest.skip("fla-core is not installed")
    pytest.importorskip("einops", reason="fla-core's file needs einops")
    file = Path(found.submodule_search_locations[0]) / "ops/kda/naive.py"
    spec = importlib.util.spec_from_file_location("fla_naive_kda", file)
    naive = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(naive)
    steps, memory = random_steps(40, 2.0), torch.randn(HEADS, DIM, DIM, generator=torch.Generator().manual_seed(0))
    inputs = (steps.query, steps.key, steps.value, steps.decay, steps.strength)
    out, state = naive.naive_recurrent_kda(*(x[None] for x in inputs), scale=1.0, initial_state=memory[None], output_final_state=True)
    ours, behind = delta_chunks(steps, memory)
    assert close(ours, out[0]) and close(behind, state[0])
