"""Digests of KV blocks: equal exactly where keys and values are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runtime.prefix_digest import SIZE, ImageMark, block_digests, image_digest, packed, unpacked

TOKENS = st.lists(st.integers(0, 3), min_size=0, max_size=30)


@given(TOKENS, TOKENS)
def test_digests_agree_as_far_as_tokens_do(one: list[int], other: list[int]) -> None:
    alike = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    pairs = list(zip(block_digests(one, 4), block_digests(other, 4), strict=False))
    assert [a == b for a, b in pairs] == [index < alike // 4 for index in range(len(pairs))]


@given(TOKENS, st.integers(0, 30))
def test_they_can_be_continued(tokens: list[int], cut: int) -> None:
    whole = block_digests(tokens, 4)
    assert block_digests(tokens, 4, known=block_digests(tokens[:cut], 4)) == whole
    assert len(whole) == len(tokens) // 4 and unpacked(packed(whole)) == whole and {len(d) for d in whole} <= {SIZE}


def test_another_image_is_another_prompt_from_its_first_token_on() -> None:
    red, blue = (image_digest(data, (1, 4, 4)) for data in (b"red", b"blue"))
    tokens = [5] * 4 + [9] * 8 + [5] * 4
    with_red, with_blue = (block_digests(tokens, 4, [ImageMark(4, 8, digest)]) for digest in (red, blue))
    assert [a == b for a, b in zip(with_red, with_blue, strict=True)] == [True, False, False, False]
    assert image_digest(b"red", (1, 2, 8)) != red, "the same values in another grid are another image"


def test_the_same_image_a_token_later_is_another_prompt() -> None:
    """Image tokens are all alike: only the mark tells where in the image a block begins."""
    mark = image_digest(b"red", (1, 4, 4))
    assert block_digests([9] * 8, 4, [ImageMark(0, 8, mark)]) != block_digests([9] * 8, 4, [ImageMark(1, 8, mark)])


def test_salted_prompts_meet_only_prompts_of_the_same_salt() -> None:
    tokens = list(range(8))
    plain, mine = block_digests(tokens, 4), block_digests(tokens, 4, salt="mine")
    assert not set(plain) & set(mine) and mine == block_digests(tokens, 4, salt="mine")
