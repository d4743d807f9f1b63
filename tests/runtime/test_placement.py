"""Placements: checks, balance, JSON, and the imbalance null."""

from __future__ import annotations

import pytest

from runtime.load_window import uniform_router_p99
from runtime.placement import BadPlacement, Placement


def test_contiguous_splits_evenly_in_order():
    placement = Placement.contiguous(2, 8, 4)
    assert placement.local(1, 2) == (4, 5) and placement.slots_per_rank == 2
    with pytest.raises(BadPlacement, match=r"8 slots .* 3 ranks"):
        Placement.contiguous(1, 8, 3)


@pytest.mark.parametrize(
    ("layers", "says"),
    [
        ([[0, 1, 2, 2]], r"layer 0 leaves experts \[3\]"),
        ([[0, 1, 2, 3], [0, 1, 2, 9]], r"layer 1 names experts \[9\]"),
        ([[0, 1, 2, 3], [0, 1, 2, 3, 0, 1]], "layer 1 has 6 slots"),
        ([["a"]], "no placement"),
        ([[0, 1, 2, 3, 0]], "5 slots cannot be split evenly over 2 ranks"),
        ([[0, 1, 1, 2, 2, 1]], r"leaves experts \[3\] without a slot"),
    ],
)
def test_bad_placements_are_named(layers, says):
    with pytest.raises(BadPlacement, match=says):
        Placement.from_json({"version": 3, "layers": layers}, experts=4, ranks=2)


def test_json_round_trip():
    placement = Placement.from_json({"version": 5, "layers": [[3, 2, 1, 0, 0, 1]], "source": "control", "reason": "drill"}, 4, 2)
    assert Placement.from_json(placement.to_json(), 4, 2) == placement
    assert placement.moved(Placement(6, ((3, 2, 0, 1, 0, 1),), 2)) == [2]


def test_null_of_a_uniform_router_agrees_with_simulation():
    import numpy as np

    rng = np.random.default_rng(3)
    for rows, ranks in ((400, 4), (2000, 8)):
        draws = rng.multinomial(rows, [1 / ranks] * ranks, size=20_000)
        simulated = np.quantile(draws.max(1) * ranks / rows, 0.99)
        assert abs(uniform_router_p99(rows, ranks) - simulated) < 0.02
    assert uniform_router_p99(0, 4) == uniform_router_p99(10, 1) == 1.0
