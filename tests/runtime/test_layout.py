"""Ranks, stages, lanes and micro-batches: every part belongs to exactly one, and nothing is left over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.layout import BadLayout, Layout, split
from runtime.micro_batch import cut
from runtime.scheduler import Chunk

SIZES = st.integers(1, 5)


@given(SIZES, SIZES, SIZES)
def test_places_and_ranks_are_one_to_one(pp: int, dp: int, tp: int) -> None:
    layout = Layout(pp, dp, tp)
    places = [layout.place(rank) for rank in range(layout.world)]
    assert [layout.rank(at.pp, at.dp, at.tp) for at in places] == list(range(layout.world))
    assert len({(at.pp, at.ep) for at in places}) == layout.world and max(at.ep for at in places) == layout.ep - 1
    assert sorted(rank for stage in range(pp) for rank in layout.stage_ranks(stage)) == list(range(layout.world))
    assert {layout.leader(rank) for rank in range(layout.world)} == set(layout.leaders)


@given(SIZES, st.integers(1, 40))
def test_stages_hold_every_layer_once(pp: int, layers: int) -> None:
    layout = Layout(pp=pp)
    stages = [layout.layers(stage, layers) for stage in range(pp)]
    assert [layer for stage in stages for layer in stage] == list(range(layers))
    assert max(map(len, stages)) - min(map(len, stages)) <= 1


@given(st.integers(0, 50), st.integers(1, 9))
def test_lanes_split_everything_once(count: int, lanes: int) -> None:
    parts = [split(count, lane, lanes) for lane in range(lanes)]
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(count))


@given(st.integers(1, 4), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4, 8]))
def test_a_lane_holds_the_key_heads_of_its_queries(groups: int, kv_heads: int, lanes: int) -> None:
    heads = 8 * groups
    layout = Layout(tp=lanes)
    for rank in range(lanes):
        share = layout.share(rank, 1)
        queries, keys = share.split(heads), share.kv_heads(kv_heads)
        wanted = {query * kv_heads // heads for query in range(queries.start, queries.stop)}
        assert wanted == set(range(keys.start, keys.stop))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 30)), max_size=8), st.integers(1, 6))
def test_micro_batches_hold_every_token_once_in_order(chunks: list[tuple[int, int]], count: int) -> None:
    sequences: list[Any] = [SimpleNamespace(number=i) for i in range(len(chunks))]
    given_ = [Chunk(sequence, start, length) for sequence, (start, length) in zip(sequences, chunks, strict=True)]
    parts = cut(given_, count)
    assert len(parts) == count

    def tokens(many: list[Chunk]) -> list[tuple[int, int]]:
        return [(c.sequence.number, i) for c in many for i in range(c.start, c.start + c.length)]  # type: ignore[attr-defined]

    assert [token for part in parts for token in tokens(part)] == tokens(given_)
    sizes = [len(tokens(part)) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    for part in parts:
        assert len({id(c.sequence) for c in part}) == len(part)


@pytest.mark.parametrize(
    ("asked", "sizes"),
    [
        ((1, 1, None, None), (1, 1, 1, 1)),
        ((1, 1, None, 4), (1, 1, 4, 4)),
        ((2, 1, None, 4), (2, 1, 2, 4)),
        ((2, 2, None, None), (2, 2, 1, 2)),
        ((2, 2, 2, 4), (2, 2, 2, 4)),
        ((1, 1, 3, None), (1, 1, 3, 3)),
    ],
)
def test_what_is_left_out_follows(asked: tuple[Any, ...], sizes: tuple[int, ...]) -> None:
    assert tuple(Layout.of(*asked).sizes().values()) == sizes


@pytest.mark.parametrize("asked", [(2, 1, None, 3), (1, 1, 2, 4), (0, 1, None, None), (1, 2, None, None, [1])])
def test_contradictions_are_refused(asked: tuple[Any, ...]) -> None:
    with pytest.raises(BadLayout):
        Layout.of(*asked)
