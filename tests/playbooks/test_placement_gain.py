"""Placements from counts: validity, optimality bounds, judgement on counts they were not made from."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from playbooks.attribution.placement_gain import gain, imbalance, keep_in_place, pack, rank_rows
from playbooks.expert_counts import ExpertCounts
from playbooks.tail_latency.move_experts import plan_move
from runtime.placement import BadPlacement


def best_possible(counts: np.ndarray, ranks: int) -> float:
    """Smallest possible largest rank, by trying every assignment of equal size."""
    size, best = len(counts) // ranks, np.inf
    for order in itertools.permutations(range(len(counts))):
        groups = np.array(order).reshape(ranks, size)
        best = min(best, counts[groups].sum(axis=1).max())
    return float(best)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 100), min_size=6, max_size=6))
def test_close_to_the_best_of_all_placements(counts: list[int]) -> None:
    rows = np.array(counts, dtype=float)
    made = rank_rows(rows, pack(rows, 3, 6), 3).max()
    assert made <= best_possible(rows, 3) * 4 / 3 + 1e-9  # Graham's bound for longest processing time


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=8, max_size=8), st.sampled_from([(2, 8), (4, 8), (4, 12), (2, 10)]))
def test_every_expert_has_a_slot(counts: list[int], shape: tuple[int, int]) -> None:
    ranks, slots = shape
    placed = pack(np.array(counts, dtype=float), ranks, slots)
    assert len(placed) == slots
    assert set(placed) == set(range(8))


def test_spare_slots_go_to_the_hottest_expert_on_different_ranks() -> None:
    placed = pack(np.array([100.0, 1, 1, 1, 1, 1]), 2, 8)
    assert placed.count(0) == 3
    assert 0 in placed[:4] and 0 in placed[4:]


def test_too_few_slots_are_refused() -> None:
    with pytest.raises(BadPlacement, match="6 experts cannot be placed in 4 slots"):
        pack(np.ones(6), 2, 4)


@settings(max_examples=30, deadline=None)
@given(st.permutations(list(range(12))), st.permutations(list(range(12))))
def test_keeping_experts_in_place_changes_names_not_loads(new: list[int], old: list[int]) -> None:
    rows = np.arange(12.0) ** 2
    kept = keep_in_place(tuple(new), tuple(old), 3)
    assert sorted(rank_rows(rows, kept, 3)) == pytest.approx(sorted(rank_rows(rows, tuple(new), 3)))
    assert sum(a != b for a, b in zip(kept, old, strict=True)) <= sum(a != b for a, b in zip(new, old, strict=True))


def test_nothing_moves_when_the_placement_is_the_same_up_to_names() -> None:
    assert keep_in_place((2, 3, 0, 1), (1, 0, 2, 3), 2) == (1, 0, 2, 3)


def test_lasting_skew_is_curable_and_changing_skew_is_not() -> None:
    rng = np.random.default_rng(0)
    hot = np.array([9.0, 8, 7, 1, 1, 1, 1, 1, 1, 1, 1, 1])
    lasting = rng.poisson(hot * 50, (20, 12)).astype(float)
    found = gain(lasting, tuple(range(12)), 3)
    assert found.now > 2.0
    assert found.recoverable > 0.9
    changing = np.array([rng.permutation(hot) * 50 for _ in range(20)])
    found = gain(changing, tuple(range(12)), 3)
    assert found.held_out
    assert found.recoverable < 0.4


def test_one_expert_that_has_everything_cannot_be_moved_away() -> None:
    counts = np.tile([1000.0, 1, 1, 1, 1, 1], (6, 1))
    assert gain(counts, tuple(range(6)), 3).recoverable < 0.05


def test_one_expert_that_has_everything_is_cured_by_spare_slots() -> None:
    """A server with two spare slots, filled with replicas of cold experts: the move gives them to the hot one."""
    counts = np.tile([900.0, 100, 100, 100, 100, 100], (6, 1))
    placed = (0, 1, 2, 5, 3, 4, 5, 4)
    assert gain(counts, tuple(range(6)), 2, 8).best < 1.2 < gain(counts, tuple(range(6)), 2).best
    move = plan_move(ExpertCounts(0, 2, {3: placed}, {3: counts}), [list(placed)])
    assert move.layers[0].count(0) >= 2 and set(move.layers[0]) == set(range(6))
    assert imbalance(rank_rows(counts, tuple(move.layers[0]), 2)) < 1.2 < imbalance(rank_rows(counts, placed, 2))


def test_imbalance_of_nothing_is_even() -> None:
    assert imbalance(np.zeros((3, 4))) == 1.0


def counts_of(rows: dict[int, np.ndarray], experts: int = 8, ranks: int = 4) -> ExpertCounts:
    return ExpertCounts(0, ranks, {layer: tuple(range(experts)) for layer in rows}, rows)


def test_a_move_touches_only_uneven_layers() -> None:
    uneven = np.tile([50.0, 50, 1, 1, 1, 1, 1, 1], (4, 1))
    move = plan_move(counts_of({0: np.ones((4, 8)), 3: uneven}), [list(range(8)), list(range(8))])
    assert move.changed == (3,)
    assert move.layers[0] == list(range(8))
    assert rank_rows(uneven.sum(axis=0), tuple(move.layers[1]), 4).max() < rank_rows(uneven.sum(axis=0), tuple(range(8)), 4).max()
    assert move.moved == sum(a != b for a, b in enumerate(move.layers[1]))


def test_a_server_with_other_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="1 layers were recorded, the server has 2"):
        plan_move(counts_of({0: np.ones((2, 8))}), [list(range(8)), list(range(8))])
