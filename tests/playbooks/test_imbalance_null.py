"""The null of a uniform router, against published measurements, exact enumeration and brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from playbooks.attribution.imbalance_null import ImbalanceNull, SlotMap, simulate


@pytest.mark.parametrize(
    ("tokens", "ranks", "mean", "p99"),
    [(512, 16, 1.11, 1.18), (2048, 64, 1.15, 1.22), (4096, 16, 1.04, 1.07)],
)
def test_agrees_with_the_measured_null_of_the_reference(tokens: int, ranks: int, mean: float, p99: float) -> None:
    # reference/causes_latency_network_hang_load.md, section 2: E=256, k=8
    drawn = simulate(SlotMap.of(list(range(256)), ranks), 8, tokens)
    assert drawn.mean() == pytest.approx(mean, abs=0.015)
    assert np.quantile(drawn, 0.99) == pytest.approx(p99, abs=0.02)


def test_one_token_is_enumerated_exactly() -> None:
    # 2 distinct experts of 4 on 2 ranks: of the 6 pairs, 2 fall on one rank (max/mean 2), 4 on both (max/mean 1)
    pairs = list(itertools.combinations(range(4), 2))
    expected = sum(2.0 if a // 2 == b // 2 else 1.0 for a, b in pairs) / len(pairs)
    assert simulate(SlotMap.of([0, 1, 2, 3], 2), 2, 1, draws=20_000).mean() == pytest.approx(expected, abs=0.02)


def test_the_normal_limit_joins_the_exact_simulation() -> None:
    slots = SlotMap.of(list(range(16)), 4)
    exact, limit = simulate(slots, 2, 48, draws=20_000), simulate(slots, 2, 49, draws=20_000)
    assert limit.mean() == pytest.approx(exact.mean(), abs=0.01)
    assert np.quantile(limit, 0.99) == pytest.approx(np.quantile(exact, 0.99), abs=0.04)


def test_against_brute_force_with_replicas() -> None:
    slots = SlotMap.of([0, 1, 2, 0, 3, 4, 5, 1], 4)  # experts 0 and 1 have two slots
    rng = np.random.default_rng(5)
    rows = np.zeros((1500, 4))
    for draw in rows:
        for _ in range(60):
            draw += slots.matrix[:, rng.choice(6, 2, replace=False)].sum(axis=1)
    expected = (rows.max(axis=1) / rows.mean(axis=1)).mean()
    assert simulate(slots, 2, 60).mean() == pytest.approx(expected, abs=0.015)


def test_a_uniform_router_exceeds_the_threshold_about_once_in_a_hundred() -> None:
    slots = SlotMap.of(list(range(32)), 8)
    null = ImbalanceNull(slots, 4)
    sizes = np.array([3, 10, 40, 150, 700, 3000])
    thresholds = null.threshold(sizes)
    for size, threshold in zip(sizes, thresholds, strict=True):
        fresh = simulate(slots, 4, int(size), draws=20_000, seed=99)
        assert 0.0 <= float(np.mean(fresh > threshold)) <= 0.02
    assert np.all(np.diff(thresholds) < 0)


def test_an_empty_batch_is_never_uneven() -> None:
    null = ImbalanceNull(SlotMap.of([0, 1, 2, 3], 2), 1)
    assert null.threshold(np.array([0]))[0] == np.inf
    assert null.mean(np.array([0]))[0] == 1.0


def test_slots_that_do_not_split_are_refused() -> None:
    with pytest.raises(ValueError, match="3 slots"):
        SlotMap.of([0, 1, 2], 2)
