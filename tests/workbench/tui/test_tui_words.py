"""Numbers, filters and verdicts as words."""

from __future__ import annotations

import pytest

from workbench.tui import numbers
from workbench.tui.feed import layout
from workbench.tui.filtering import matches


@pytest.mark.parametrize(
    ("ns", "words"),
    [
        (None, "–"), (0, "0 µs"), (812_000, "812 µs"), (999_600, "1.00 ms"), (12_345_678, "12.3 ms"), (123_456_789, "123 ms"),
        (1_240_000_000, "1.24 s"), (42_000_000_000, "42.0 s"), (192_000_000_000, "3m 12s"),
    ],
)  # fmt: skip
def test_durations(ns, words):
    assert numbers.duration(ns) == words


def test_other_numbers():
    assert [numbers.count(n) for n in (None, 0, 99_999, 123_456, 4_560_000, 7.2e9)] == ["–", "0", "99,999", "123k", "4.6M", "7.2G"]
    assert [numbers.size(n) for n in (512, 1536, 300 << 20, 5 << 40)] == ["512 B", "1.5 KiB", "300 MiB", "5.0 TiB"]
    assert [numbers.percent(n) for n in (None, 0, 0.042, 0.0996, 1)] == ["–", "0 %", "4.2 %", "10 %", "100 %"]
    assert [numbers.span(n * 1e9) for n in (-3, 59, 61, 3720, 360_000)] == ["0s", "59s", "1m 01s", "1h 02m", "4d 04h"]


def test_only_what_is_parallel_is_named():
    assert layout({"tp": 1, "pp": 1, "dp": 4, "ep": 4}) == "dp4 ep4"


ROW = {"trace": "00ab", "rank": 2, "status": "error", "ttft": 240.0, "image": None}


@pytest.mark.parametrize(
    ("words", "holds"),
    [
        ("", True), ("rank=2", True), ("rank!=2", False), ("ttft>200 error", True), ("ttft<=200", False), ("00AB", True), ("!ok", True),
        ("!rank=2", False), ("image>1", False), ("status=error", True), ("status>3", False), ("bogus=2", False), ("!", False),
    ],
)  # fmt: skip
def test_filters(words, holds):
    assert matches(words, ROW) is holds
