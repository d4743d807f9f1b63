"""Sizes, rates and counts as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.budget.units import human, parse_count, parse_rate, parse_size
from traces.errors import UsageError


@pytest.mark.parametrize(
    ("text", "value"), [("141GiB", 141 << 30), ("80GB", 80 * 10**9), ("1024", 1024), ("1.5 TiB", 3 << 39), ("64MiB", 64 << 20)]
)
def test_sizes(text: str, value: int) -> None:
    assert parse_size(text) == value


@pytest.mark.parametrize(("text", "value"), [("900GB/s", 9e11), ("4.8TB/s", 4.8e12), ("400Gb/s", 5e10), ("1e", None), ("50GB", 5e10)])
def test_rates(text: str, value: float | None) -> None:
    if value is None:
        with pytest.raises(UsageError):
            parse_rate(text)
    else:
        assert parse_rate(text) == pytest.approx(value)


@pytest.mark.parametrize(("text", "value"), [("131072", 131072), ("128k", 131072), ("1M", 1 << 20)])
def test_counts(text: str, value: int) -> None:
    assert parse_count(text) == value


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "0", "141GiB/s", "8Gb", "many"])
def test_nonsense_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_size(text)


@given(st.integers(min_value=1, max_value=1 << 50))
def test_what_is_written_can_be_read(nbytes: int) -> None:
    assert parse_size(human(nbytes)) == pytest.approx(nbytes, rel=0.005)
