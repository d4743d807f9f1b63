import numpy as np
import pytest

from probes.traffic.quantile import needed, quantiles


def test_estimates_are_numpys():
    samples = list(np.random.default_rng(5).gamma(2.0, 50.0, 4000))
    found = quantiles(samples)
    for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        assert found[name].value == pytest.approx(np.quantile(samples, q))
        assert found[name].low <= found[name].value <= found[name].high


def test_an_interval_covers_the_true_median_about_as_often_as_it_says():
    """Exponential samples, whose median is ln 2; 95 % of 200 intervals is 190, and 176 is five standard deviations below."""
    covered = 0
    for seed in range(200):
        found = quantiles(list(np.random.default_rng(seed).exponential(1.0, 80)), (0.5,), seed)["p50"]
        covered += found.low <= np.log(2) <= found.high
    assert covered >= 174


def test_neighbours_that_go_together_widen_the_interval():
    rng = np.random.default_rng(1)
    together = np.repeat(rng.normal(100, 10, 100), 8)
    shuffled = rng.permutation(together)
    wide, narrow = quantiles(list(together), (0.5,))["p50"], quantiles(list(shuffled), (0.5,))["p50"]
    assert wide.high - wide.low > 1.4 * (narrow.high - narrow.low)


def test_no_p99_without_thirty_in_the_tail():
    assert needed(0.99) == 3000
    few = quantiles([float(n) for n in range(2999)])
    assert few["p99"].value is None and few["p99"].low is None
    assert "2999 measured, 3000 needed" in few["p99"].reason
    assert few["p90"].value is not None
    assert quantiles([float(n) for n in range(3000)])["p99"].value is not None


@pytest.mark.parametrize(("q", "least"), [(0.5, 5), (0.9, 29)])
def test_the_least_number_of_samples_that_bounds_a_quantile(q, least):
    assert q**least <= 0.05 < q ** (least - 1)
    assert needed(q) == least


def test_nothing_measured_is_undetermined():
    assert all(found.value is None and found.n == 0 and found.reason for found in quantiles([]).values())


def test_the_same_seed_gives_the_same_interval():
    samples = list(np.random.default_rng(2).exponential(1.0, 100))
    assert quantiles(samples, seed=7) == quantiles(samples, seed=7)
