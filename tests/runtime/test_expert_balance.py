"""Placements with redundant experts: the published worked example, and what holds for every load."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.expert_balance import balanced, rebalance_experts
from runtime.placement import BadPlacement, Placement

# The worked example of the README of deepseek-ai/EPLB (commit d52c72d): two layers of twelve experts, four redundant, on two nodes.
EXAMPLE = [[90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86], [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27]]
PUBLISHED = [[5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1], [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1]]

LOADS = st.lists(st.integers(0, 1000), min_size=24, max_size=24).map(lambda flat: np.array(flat, dtype=float).reshape(2, 12))
SHAPES = st.sampled_from([(16, 4, 2, 8), (12, 4, 2, 4), (12, 1, 1, 6), (16, 1, 2, 8), (24, 3, 2, 4), (20, 12, 4, 4), (18, 1, 3, 6)])


def rank_loads(placed: np.ndarray, weight: np.ndarray, ranks: int) -> np.ndarray:
    """[S], [E] -> [R], an expert's load split evenly over its slots."""
    share = weight / np.bincount(placed, minlength=len(weight))
    return share[placed].reshape(ranks, -1).sum(axis=1)


def test_the_published_example() -> None:
    phy2log, log2phy, logcnt = rebalance_experts(EXAMPLE, num_replicas=16, num_groups=4, num_nodes=2, num_gpus=8)
    assert phy2log.tolist() == PUBLISHED
    assert logcnt.sum(axis=1).tolist() == [16, 16] and log2phy.shape == (2, 12, 2)


@settings(max_examples=80, deadline=None)
@given(LOADS, SHAPES)
def test_the_three_maps_agree(weight: np.ndarray, shape: tuple[int, int, int, int]) -> None:
    slots = shape[0]
    found = rebalance_experts(weight, *shape)
    assert (found.logcnt >= 1).all() and found.logcnt.sum(axis=1).tolist() == [slots, slots]
    for layer in range(2):
        for expert in range(12):
            homes = [slot for slot in found.log2phy[layer, expert] if slot >= 0]
            assert homes == np.flatnonzero(found.phy2log[layer] == expert).tolist()
            assert len(homes) == found.logcnt[layer, expert]
        Placement(0, (tuple(found.phy2log[layer].tolist()),), shape[3]).checked(12)


@settings(max_examples=60, deadline=None)
@given(LOADS, st.sampled_from([(16, 4, 2, 8), (24, 6, 2, 4), (24, 12, 4, 8)]))
def test_a_group_stays_on_one_node(weight: np.ndarray, shape: tuple[int, int, int, int]) -> None:
    slots, groups, nodes, _ = shape
    for layer in rebalance_experts(weight, *shape).phy2log:
        node = np.arange(slots) * nodes // slots
        per_group = [set(node[layer * groups // 12 == group].tolist()) for group in range(groups)]
        assert [len(found) for found in per_group] == [1] * groups


@settings(max_examples=60, deadline=None)
@given(LOADS, st.sampled_from([1, 2]))
def test_replicas_stand_on_different_gpus(weight: np.ndarray, nodes: int) -> None:
    for layer in rebalance_experts(weight, 16, 1, nodes, 8).phy2log:
        for expert in range(12):
            slots = np.flatnonzero(layer == expert)
            assert len(set((slots // 2).tolist())) == len(slots)


def test_without_groups_replicas_stand_on_different_nodes() -> None:
    for layer, count in zip(*rebalance_experts(EXAMPLE, 16, 1, 2, 8)[::2], strict=True):
        replicated = np.flatnonzero(count == 2)
        assert len(replicated) == 4
        assert all(set((np.flatnonzero(layer == expert) // 8).tolist()) == {0, 1} for expert in replicated)


def test_replicas_split_what_no_placement_can() -> None:
    hot = np.array([[900.0, 300, 40, 30, 20, 10, 5, 5]])
    alone, spare = (rebalance_experts(hot, slots, 1, 1, 4).phy2log[0] for slots in (8, 12))
    assert rank_loads(alone, hot[0], 4).max() >= 900
    assert rank_loads(spare, hot[0], 4).max() < 1.2 * hot.sum() / 4


def test_no_load_is_an_even_load() -> None:
    quiet, even = (rebalance_experts(weight, 10, 1, 1, 2) for weight in (np.zeros((1, 8)), np.ones((1, 8))))
    assert quiet.phy2log.tolist() == even.phy2log.tolist()
    assert quiet.logcnt.max() == 2  # the two spare slots go to two experts


@pytest.mark.parametrize(
    ("weight", "shape", "says"),
    [
        (EXAMPLE, (11, 1, 1, 1), "12 experts cannot be placed in 11 slots"),
        (EXAMPLE, (16, 4, 2, 6), "16 slots cannot be split evenly over 6 GPUs"),
        (EXAMPLE, (16, 4, 3, 8), "8 GPUs cannot be split evenly over 3 nodes"),
        (EXAMPLE, (16, 5, 1, 8), "12 experts cannot be split evenly into 5 groups"),
        (EXAMPLE, (16, 4, 0, 8), "0 nodes"),
        ([[1.0, -1.0]], (2, 1, 1, 1), "no table"),
        ([[1.0, float("nan")]], (2, 1, 1, 1), "no table"),
        ([1.0, 2.0], (2, 1, 1, 1), "no table"),
    ],
)
def test_impossible_shapes_are_named(weight: object, shape: tuple[int, int, int, int], says: str) -> None:
    with pytest.raises(BadPlacement, match=says):
        rebalance_experts(weight, *shape)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=12, max_size=12), st.sampled_from([2, 3, 4, 6]))
def test_balanced_is_a_permutation_no_worse_than_the_heaviest_expert_allows(counts: list[int], ranks: int) -> None:
    placement = balanced([counts], ranks)
    assert sorted(placement.physical_to_logical[0]) == list(range(12))
    loads = [sum(counts[e] for e in placement.local(0, rank)) for rank in range(ranks)]
    # Greedy: when the last expert joined the heaviest rank with room, that rank was the lightest with room.
    assert max(loads) - min(loads) <= 12 // ranks * max(counts)
    assert max(loads) >= max(counts)


def test_balanced_undoes_a_stale_placement() -> None:
    counts = [[100, 90, 80, 70, 1, 1, 1, 1]]
    loads = [sum(counts[0][e] for e in balanced(counts, 4).local(0, rank)) for rank in range(4)]
    assert sorted(loads) == [71, 81, 91, 101]
