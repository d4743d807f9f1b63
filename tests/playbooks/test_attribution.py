"""Frontier, Shapley split, cost fits, bootstrap, queue replay, tail: against hand-made cases whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from playbooks.attribution import bootstrap, rates, tail
from playbooks.attribution.expert_split import split
from playbooks.attribution.frontier import frontier, waits
from playbooks.attribution.queue_replay import effective_service, induced, lindley

durations = hnp.arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 5), st.just(6)), elements=st.floats(0, 1e7))


@settings(max_examples=50, deadline=None)
@given(durations)
def test_increments_telescope_to_the_layer_time(segments: np.ndarray) -> None:
    start = np.zeros(segments.shape[:2])
    assert frontier(start, segments).total == pytest.approx(segments.sum(axis=2).max(axis=1), abs=1e-3)


def test_a_slow_link_is_not_lost_in_the_residual() -> None:
    # reference section 3.1: ranks leave the dispatch 0/18/33/40 ms apart; the shortest rank's duration says 0, the frontier says 40
    segments = np.zeros((1, 4, 6))
    segments[0, :, 3] = [0.0, 18e6, 33e6, 40e6]
    found = frontier(np.zeros((1, 4)), segments)
    assert found.of("dispatch")[0] == 40e6
    assert found.total[0] == 40e6
    assert found.last[0] == 3


def test_ranks_without_a_common_clock_are_aligned_on_the_exchange() -> None:
    segments = np.tile([1e6, 0.5e6, 0.1e6, 2e6, 3e6, 1e6], (1, 2, 1))
    segments[0, 1, 4] = 5e6
    skewed = frontier(np.array([[0.0, 37e6]]), segments, one_clock=False)
    assert skewed.of("experts")[0] == pytest.approx(5e6)
    assert skewed.last[0] == 1


def test_a_rank_without_a_row_is_left_out() -> None:
    segments = np.ones((1, 3, 6))
    segments[0, 1] = np.nan
    assert frontier(np.array([[0.0, np.nan, 0.0]]), segments).total[0] == pytest.approx(6.0)


def test_the_rank_that_waits_least_is_the_slow_one() -> None:
    assert np.argmin(waits(np.array([[1.0, 9.0, 2.0]]))[0]) == 1


@settings(max_examples=50, deadline=None)
@given(
    hnp.arrays(np.float64, (3, 4), elements=st.floats(1, 1e6)),
    hnp.arrays(np.float64, 4, elements=st.floats(0.5, 4)),
)
def test_the_shares_add_up_to_the_excess(work: np.ndarray, slowness: np.ndarray) -> None:
    parts = split(work, slowness)
    assert parts.ideal + parts.imbalance + parts.speed == pytest.approx((work * slowness).max(axis=1))


def test_one_cause_alone_gets_everything() -> None:
    uneven = split(np.array([[4.0, 1.0, 1.0, 2.0]]), np.ones(4))
    assert (uneven.imbalance[0], uneven.speed[0]) == (2.0, 0.0)
    slow = split(np.full((1, 4), 2.0), np.array([1.0, 1.0, 2.5, 1.0]))
    assert (slow.imbalance[0], slow.speed[0]) == (0.0, 3.0)


def test_a_masked_cause_gains_less_alone_than_last() -> None:
    # rank 0 has the rows, rank 1 is slow: mending either leaves the other
    parts = split(np.array([[4.0, 2.0, 1.0, 1.0]]), np.array([1.0, 2.0, 1.0, 1.0]))
    assert parts.imbalance_alone[0] < parts.imbalance_last[0]


def costs(slowness: np.ndarray, rows: np.ndarray, active: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return slowness * (50.0 + 9.0 * rows + 40.0 * active) * np.exp(rng.normal(0, 0.05, rows.shape))


def test_rates_are_found_whatever_the_work() -> None:
    rng = np.random.default_rng(1)
    rows = rng.integers(1, 400, (300, 4)).astype(float) * np.array([3.0, 1.0, 1.0, 1.0])  # rank 0 has three times the rows
    active = rng.integers(1, 5, (300, 4)).astype(float)
    truth = np.array([1.0, 1.0, 1.6, 1.0])
    model = rates.fit(costs(truth, rows, active, rng), (rows, active))
    assert model.slowness == pytest.approx(truth, rel=0.03)
    assert model.coefficients[1] == pytest.approx(9.0, rel=0.05)
    assert model.work((rows, active))[rows == rows.max()][0] == pytest.approx(
        50 + 9 * rows.max() + 40 * active[rows == rows.max()][0], rel=0.05
    )


def test_pauses_do_not_move_the_rates() -> None:
    rng = np.random.default_rng(2)
    rows = rng.integers(50, 400, (200, 4)).astype(float)
    active = np.full((200, 4), 4.0)
    cost = costs(np.ones(4), rows, active, rng)
    cost[::25, 1] += 120_000.0
    model = rates.fit(cost, (rows, active))
    assert model.slowness == pytest.approx(np.ones(4), rel=0.03)
    assert rates.mean_slowness(cost, model.work((rows, active)))[1] > 2.0


def test_a_sample_with_an_unknown_feature_is_left_out_and_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    rows = np.arange(1.0, 81.0).reshape(20, 4)
    active = np.where(rows % 5 == 0, np.nan, 1.0 + rows % 3)
    model = rates.fit(rows * 7.0 + np.nan_to_num(active) * 2.0 + 3.0, (rows, active))
    assert model.coefficients == pytest.approx([3.0, 7.0, 2.0])
    assert capfd.readouterr().out == ""  # LAPACK complains on stdout, where answers in JSON go


def test_a_rank_without_work_has_no_rate() -> None:
    rows = np.array([[10.0, 0.0], [20.0, 0.0], [30.0, 0.0], [5.0, 0.0], [9.0, 0.0], [12.0, 0.0]])
    model = rates.fit(rows * 7.0 + 3.0, (rows,))
    assert model.slowness[0] == pytest.approx(1.0)
    assert np.isnan(model.slowness[1])
    assert model.work((rows,))[0, 1] == 0.0


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for trial in range(60):
        numerator = rng.gamma(4.0, 1.0, 120)
        found = bootstrap.ratio(numerator, np.full(120, 2.0), seed=trial)
        hits += found.low <= 2.0 <= found.high
    assert hits / 60 == pytest.approx(0.90, abs=0.10)


def test_change_compares_two_periods() -> None:
    rng = np.random.default_rng(4)
    before = (rng.gamma(50, 2.0, 100), np.ones(100))
    after = (rng.gamma(50, 1.0, 100), np.ones(100))
    found = bootstrap.change(before, after)
    assert found.value == pytest.approx(-0.5, abs=0.03)
    assert found.low < found.value < found.high < -0.4


def test_nothing_to_resample_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing"):
        bootstrap.block_weights(0)


def test_waits_match_the_pollaczek_khinchine_mean() -> None:
    # M/D/1 at utilisation 0.8: mean wait = rho / (2 (1 - rho)) service times = 2
    arrivals = np.cumsum(np.random.default_rng(7).exponential(1 / 0.8, 200_000))
    assert lindley(arrivals, np.ones(200_000)).mean() == pytest.approx(2.0, rel=0.05)


def test_recorded_waits_are_given_back_exactly() -> None:
    rng = np.random.default_rng(8)
    arrivals = np.cumsum(rng.exponential(1.0, 2000))
    recorded = lindley(arrivals, rng.gamma(4.0, 0.9 / 4, 2000))
    assert lindley(arrivals, effective_service(arrivals, recorded)) == pytest.approx(recorded)


def test_the_wait_without_a_cause_is_the_wait_of_a_server_without_it() -> None:
    rng = np.random.default_rng(9)
    arrivals = np.cumsum(rng.exponential(1.0, 20_000))
    service = rng.gamma(4.0, 0.92 / 4, 20_000)
    truth = lindley(arrivals, service * 0.85).mean()
    found = induced(arrivals, lindley(arrivals, service), share=0.15, step=0.0)
    assert found.induced_share > 0.6
    assert found.intrinsic.mean() == pytest.approx(truth, rel=0.15)


def test_waiting_for_the_running_step_is_no_queue() -> None:
    found = induced(np.arange(10.0) * 100, np.full(10, 4.0), share=0.5, step=5.0)
    assert found.measured.sum() == 0.0 and found.induced_share == 0.0


def test_fewer_than_thirty_in_the_tail_is_undetermined() -> None:
    assert tail.tail_quantile(np.arange(2999.0)) is None
    assert tail.tail_quantile(np.arange(3000.0)) == pytest.approx(2969.01)


def test_the_tail_is_explained_by_the_part_that_makes_it() -> None:
    rng = np.random.default_rng(9)
    base = rng.normal(100.0, 5.0, 1000)
    stall = np.where(rng.random(1000) < 0.05, 80.0, 0.0)
    found = tail.compare(base + stall, {"base": base, "stall": stall})
    assert found.determined
    assert found.share("stall") > 0.85
    assert found.parts["stall"].low > 40.0
