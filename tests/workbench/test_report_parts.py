"""Units, reductions and escaping of the report."""

from __future__ import annotations

import json

import pytest

from workbench.report.popularity import relative
from workbench.report.reduce import spread, worst
from workbench.report.section import script_safe
from workbench.report.units import count, duration, number, size


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (None, "not measured"), (0, "0 ns"), (830, "830 ns"), (12_400, "12.4 µs"), (3_100_000, "3.1 ms"), (412_000_000, "412 ms"),
        (2_410_000_000, "2.41 s"), (200_000_000_000, "3 min 20 s"), (7_260_000_000_000, "2 h 1 min"),
    ],
)  # fmt: skip
def test_duration(ns: int | None, text: str) -> None:
    assert duration(ns) == text


def test_sizes_and_counts() -> None:
    assert [size(1023), size(1536), size(5 << 20), size(3 << 40), size(None)] == ["1023 B", "1.5 KiB", "5.0 MiB", "3.0 TiB", "not measured"]
    assert count(12345.4) == "12,345"
    assert [number(None), number(True), number("x"), number(1234567), number(0.123456)] == ["–", "True", "x", "1,234,567", "0.1235"]


def test_worst_keeps_the_extremes_in_their_order() -> None:
    assert worst({"a": 1, "b": 9, "c": 5, "d": 7}, 2, float) == ["b", "d"]
    assert worst({"a": 1}, 5, float) == ["a"]


def test_spread_keeps_both_ends() -> None:
    assert spread(list(range(10)), 4) == [0, 3, 6, 9]
    assert spread([1, 2], 4) == [1, 2]
    assert spread([1, 2, 3], 1) == [3]


def test_popularity_is_relative_to_an_even_share() -> None:
    rows = [{"layer": 3, "expert": 0, "tokens": 30.0}, {"layer": 3, "expert": 1, "tokens": 10.0}, {"layer": 3, "expert": 0, "tokens": 0.0}]
    assert relative(rows, [3, 5], 4) == [[3.0, 1.0, 0.0, 0.0], [None] * 4]


def test_json_cannot_end_its_script() -> None:
    text = json.dumps({"name": "</script><!-- <b>"})
    safe = script_safe(text)
    assert "<" not in safe
    assert json.loads(safe) == json.loads(text)
