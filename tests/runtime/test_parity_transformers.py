"""Logits equal transformers' at 1, 2 and 4 ranks, however the prompts are batched, chunked or cached."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

FAMILIES = pytest.mark.parametrize("tiny", ["qwen3_moe", "qwen3_vl_moe"], indirect=True)
WORLDS = pytest.mark.parametrize("world", [1, 2, 4])
TOLERANCE = 1e-4


def distance(ours, theirs) -> float:
    """Relative L2."""
    return float((ours - theirs).norm() / theirs.norm())


def shares(values: list, world: int) -> list[list]:
    """What belongs to each rank."""
    return [values[rank::world] for rank in range(world)]


@FAMILIES
@WORLDS
def test_ragged_batch_equals_transformers(tiny, ranks, world):
    for out, expected in zip(ranks(tiny, world), shares(tiny.logits, world), strict=True):
        assert [distance(ours, theirs) < TOLERANCE for ours, theirs in zip(out["whole"], expected, strict=True)] == [True] * len(expected)


@pytest.mark.parametrize("world", [1, 4])
def test_shipped_model_equals_transformers(tiny_shapes_moe, ranks, world):
    """Real weights, real pictures through our own preprocessing, before and after placement switches."""
    outs = ranks(tiny_shapes_moe, world)
    for out, expected in zip(outs, shares(tiny_shapes_moe.logits, world), strict=True):
        for answers in (out["whole"], out["chunked"][7], *out["switched"]):
            assert [distance(ours, theirs) < TOLERANCE for ours, theirs in zip(answers, expected, strict=True)] == [True] * len(expected)


@FAMILIES
@WORLDS
def test_one_prompt_at_a_time_equals_the_batch(tiny, ranks, world):
    for out in ranks(tiny, world):
        for alone, whole in zip(out["alone"], out["whole"], strict=True):
            assert distance(alone, whole) < 1e-5


@FAMILIES
@WORLDS
@pytest.mark.parametrize("size", [7, 16])
def test_chunked_prefill_equals_unchunked(tiny, ranks, world, size):
    for out in ranks(tiny, world):
        for chunked, whole in zip(out["chunked"][size], out["whole"], strict=True):
            assert distance(chunked, whole) < 1e-5


@pytest.mark.parametrize("tiny", ["qwen3_moe"], indirect=True)
@WORLDS
def test_cached_decode_equals_recompute_by_transformers(tiny, ranks, world):
    """Every greedy step's logits, against a whole pass of transformers over the tokens so far."""
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoModelForCausalLM.from_pretrained(tiny.path).eval()
    for out in ranks(tiny, world):
        for tokens, cached in zip(out["greedy"], out["cached"], strict=True):
            with torch.no_grad():
                whole = reference(torch.tensor([tokens])).logits[0]
            assert distance(cached, whole[len(tokens) - 1 - len(cached) : -1]) < TOLERANCE


@pytest.mark.parametrize("tiny", ["qwen3_vl_moe"], indirect=True)
def test_cached_decode_after_an_image_equals_generate(tiny, ranks):
    """transformers' own cached generation, which continues the mrope positions by its rope deltas."""
    transformers = pytest.importorskip("transformers")
    reference = transformers.Qwen3VLMoeForConditionalGeneration.from_pretrained(tiny.path).eval()
    (out,) = ranks(tiny, 1)
    prompt, tokens = tiny.prompts[1], out["greedy"][1]
    ids = torch.tensor([prompt.tokens])
    generated = reference.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        pixel_values=torch.from_numpy(prompt.patches),
        image_grid_thw=torch.tensor(prompt.grids),
        mm_token_type_ids=(ids == 300).int(),
        max_new_tokens=4,
        do_sample=False,
        eos_token_id=None,
    )
    assert generated[0].tolist() == tokens


@FAMILIES
@WORLDS
def test_placement_does_not_change_the_answer(tiny, ranks, world):
    """Random permutations, with and without redundant slots."""
    for out in ranks(tiny, world):
        for switched in out["switched"]:
            for ours, whole in zip(switched, out["whole"], strict=True):
                assert distance(ours, whole) < 1e-5
