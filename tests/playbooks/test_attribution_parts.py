"""Shapley over several causes, clock offsets, the wire: against cases whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from playbooks.attribution import clock_offsets, wire
from playbooks.attribution.layer_time import CAUSES, Segment, computing, evened
from playbooks.attribution.shapley import shares

positive = st.floats(1, 1e6)


@settings(max_examples=50, deadline=None)
@given(
    hnp.arrays(np.float64, (2, 5, 4), elements=positive),
    hnp.arrays(np.float64, (5, 4), elements=positive),
    hnp.arrays(np.float64, (5, 4), elements=st.floats(0, 1e5)),
    hnp.arrays(np.float64, 4, elements=st.floats(0.5, 3)),
)
def test_the_shares_add_up(taken: np.ndarray, work: np.ndarray, pause: np.ndarray, slowness: np.ndarray) -> None:
    segments = Segment(taken[0] + pause, pause, slowness), Segment(taken[1], np.zeros((5, 4)), slowness, work)
    found = shares(lambda present: computing(segments, present), CAUSES)
    whole = computing(segments, frozenset(CAUSES)) - computing(segments, frozenset())
    assert sum(share.value for share in found.values()) == pytest.approx(whole, rel=1e-9, abs=1e-3)


def test_a_cause_alone_gets_all_of_it() -> None:
    found = shares(lambda present: np.array([10.0 + 5.0 * ("speed" in present)]), CAUSES)
    assert (found["speed"].value[0], found["speed"].alone[0], found["speed"].last[0]) == pytest.approx((5.0, 5.0, 5.0))
    assert found["pause"].value[0] == 0.0


def test_the_glove_game() -> None:
    # Shapley 1953: one left glove, two right gloves: 2/3 for the left one, 1/6 for each right one
    def worth(present: frozenset[str]) -> np.ndarray:
        return np.array([float("left" in present and bool(present & {"right", "other"}))])

    found = shares(worth, ("left", "right", "other"))
    assert [found[name].value[0] for name in ("left", "right", "other")] == pytest.approx([2 / 3, 1 / 6, 1 / 6])


def test_a_hidden_cause_gains_nothing_alone() -> None:
    # two ranks late for two reasons at once: mending one leaves the other
    def time(present: frozenset[str]) -> np.ndarray:
        return np.array([max(30.0 * ("speed" in present), 30.0 * ("pause" in present))])

    found = shares(time, ("speed", "pause"))
    assert (found["speed"].alone[0], found["speed"].last[0], found["speed"].value[0]) == (0.0, 30.0, 15.0)


def test_an_idle_rank_gets_the_typical_pace() -> None:
    assert evened(np.array([[8.0, 4.0, 0.0, 4.0]]), np.array([[4.0, 2.0, 0.0, 2.0]])) == pytest.approx(np.full((1, 4), 4.0))


def collectives(offsets: np.ndarray, drift: float, slow_exit: float, n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Entries and exits of n tiny collectives on three clocks; `drift` ns per ns of rank 2; `slow_exit`: rank 1 leaves later."""
    rng = np.random.default_rng(5)
    at = np.cumsum(rng.exponential(0.2e9, n))
    enter = at[:, None] - rng.exponential(2e6, (n, 3))
    left = at[:, None] + 1e5 + rng.exponential(5e4, (n, 3))
    left[:, 1] += slow_exit
    skew = offsets[None, :] + drift * at[:, None] * np.array([0.0, 0.0, 1.0])
    return enter + skew, left + skew


def test_offsets_are_found_within_their_error() -> None:
    # the offsets of reference section 3.4
    enter, left = collectives(np.array([0.0, 37e6, -12.5e6]), 0.0, 0.0)
    found = clock_offsets.estimate(enter, left)
    assert np.median(found.offset, axis=0) == pytest.approx([0.0, 37e6, -12.5e6], abs=0.4e6)
    assert found.error.max() < 0.1e6
    assert found.violation < 1e6


def test_a_drifting_clock_is_followed() -> None:
    enter, left = collectives(np.array([0.0, 0.0, 4.2e6]), 50e-6, 0.0)
    found = clock_offsets.estimate(enter, left)
    at = left[:, 0]
    assert found.offset[:, 2] == pytest.approx(4.2e6 + 50e-6 * at, abs=0.5e6)


def test_payload_exits_would_put_the_clock_off() -> None:
    enter, left = collectives(np.zeros(3), 0.0, 20e6)  # the exit of a transfer over a slow link
    assert abs(np.median(clock_offsets.estimate(enter, left).offset[:, 1])) > 15e6


def test_a_clock_that_jumps_breaks_causality_and_is_told() -> None:
    enter, left = collectives(np.zeros(3), 0.0, 0.0)
    enter[200, 2] += 50e6  # this one seems to enter after the others have left
    left[200, 2] += 50e6
    assert clock_offsets.estimate(enter, left).violation > 40e6


def test_latency_is_not_bandwidth() -> None:
    rng = np.random.default_rng(3)
    rows = rng.integers(100, 400, 300).astype(float)
    tiny, late = np.full(300, 1e5), rng.random(300) < 0.3
    tiny = tiny + np.where(late, 4e6, 0.0)  # the host wakes late: tiny and payload alike
    payload = 2 * tiny + rows * 2e3
    found = wire.split(tiny, payload, rows, 0.8 * rows)
    assert found.bandwidth is not None
    assert found.host.sum() == pytest.approx(3 * 4e6 * late.sum())
    assert abs(found.bandwidth.sum()) < 0.02 * payload.sum()
    assert found.uneven.sum() == pytest.approx(0.2 * rows.sum() * 2e3, rel=0.05)


def test_a_link_that_is_slow_at_times_is_lost_bandwidth() -> None:
    rows = np.full(300, 200.0)
    payload = 2e5 + rows * np.where(np.arange(300) % 2, 2e3, 8e3)
    found = wire.split(np.full(300, 1e5), payload, rows, rows)
    assert found.bandwidth is not None
    assert found.bandwidth.sum() == pytest.approx(150 * 200 * 6e3)


def test_negative_bandwidth_is_undetermined() -> None:
    tiny = np.full(100, 1e6)
    found = wire.split(tiny, np.full(100, 0.5e6), np.full(100, 50.0), np.full(100, 50.0))
    assert found.bandwidth is None
    assert "undetermined" in found.reason
