"""Bars, waterfall, gauge and stack: the same numbers as glyphs, with colours and without."""

from __future__ import annotations

import asyncio

import pytest
from rich.text import Text
from textual.app import App
from textual.widgets import DataTable

from workbench.tui.widgets.gauge import bar, gauge
from workbench.tui.widgets.sparkbars import SparkBars, reduce_columns
from workbench.tui.widgets.stack import stack
from workbench.tui.widgets.table import Column, sync
from workbench.tui.widgets.waterfall import Lane, Waterfall

MS = 1_000_000


def render(make, show, size=(60, 8)):
    """Lines of a widget in an application of its own, after a whole screenshot has gone through the application's filters."""

    class Alone(App[None]):
        CSS = "SparkBars { height: 4; }"

        def compose(self):
            yield make()

    async def lines():
        app = Alone()
        async with app.run_test(size=size) as pilot:
            widget = app.screen.children[0]
            show(widget)
            await pilot.pause()
            app.export_screenshot()
            return [widget.render_line(y) for y in range(widget.size.height)]

    return asyncio.run(lines())


@pytest.fixture(params=["colour", "NO_COLOR"])
def colours(request, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    if request.param == "NO_COLOR":
        monkeypatch.setenv("NO_COLOR", "1")


def test_bars_rise_with_the_value_and_a_gap_is_not_a_zero(colours):
    values = [0.0, 12.0, 24.0, None, 1.0]
    lines = render(lambda: SparkBars("decode", "#4cc9b0"), lambda w: w.show(values, 5.0), size=(30, 4))
    text = [line.text for line in lines]
    assert text[0].startswith("decode 5") and text[0].endswith("peak 24")
    assert text[1] == " " * 12 + "█" * 6 + " " * 12  # three lines of eight eighths: only 24 of 24 reaches the top
    assert text[3] == " " * 6 + "█" * 12 + "·" * 6 + "▁" * 6
    assert all(part.style is not None for line in lines for part in line)


def test_more_values_than_columns_become_means_counted_from_the_newest():
    assert reduce_columns([1, 2, 3, 4, 5, 6], 3) == [1.5, 3.5, 5.5]
    assert reduce_columns([9, 1, 2, 3, 4, 5, 6], 3) == [1.5, 3.5, 5.5]
    assert reduce_columns([9, 1, None, 3, None, None, 6], 3) == [1.0, 3.0, 6.0]
    assert reduce_columns([1, 2], 4) == [1, 1, 2, 2]
    assert reduce_columns([], 4) == []


def test_waterfall_bars_begin_and_end_within_an_eighth_of_a_column(colours):
    room = 60 - 17 - 9  # 34 columns for 34 ms
    lanes = [
        Lane("prefill", "#e6a23c", ((0, 8 * MS),)),
        Lane("decode", "#4cc9b0", ((8 * MS + MS // 2, 34 * MS),)),
        Lane("tokens", "#4cc9b0", marks=(0, 17 * MS)),
    ]
    lines = render(lambda: Waterfall(), lambda w: w.show(lanes, 34 * MS))
    text = [line.text for line in lines]
    assert text[0][17 : 17 + room] == "█" * 8 + " " * 26
    assert text[1][17 : 17 + room] == " " * 8 + "▌" + "█" * 25  # a left block in reverse: the right half of the column
    assert [i for i, char in enumerate(text[2][17:]) if char == "╵"] == [0, 17]
    assert text[0].rstrip().endswith("8.00 ms") and text[1].rstrip().endswith("25.5 ms")
    assert text[3].split() == ["0", "17.0", "ms", "34.0", "ms"]
    reverse = [part for part in lines[1] if part.text == "▌"]
    assert reverse[0].style.reverse
    assert all(part.style is not None for line in lines for part in line)


def test_gauge_and_bar_are_exact_to_an_eighth():
    assert gauge(25, 100, 8).plain == "██······  25 %"
    assert gauge(97, 100, 8).plain == "███████▊  97 %"
    assert gauge(0, 0, 8).plain == "–"
    assert bar(1, 1000, 10) == "▏"  # never blank
    assert bar(0, 10, 10) == ""


def test_a_stack_keeps_the_whole_width_and_its_letters():
    drawn = stack([("a", "#56b4e9", 10), ("E", "#e69f00", 30)], 80, 40)
    assert drawn.plain == "a".center(5) + "E".center(15) + " " * 20


def test_a_table_touches_only_what_changed():
    columns = (Column("rank", 4), Column("ms", 6))

    class Alone(App[None]):
        def compose(self):
            yield DataTable()

    async def scenario():
        app = Alone()
        async with app.run_test():
            table = app.query_one(DataTable)
            sync(table, columns, {"0": (Text("0"), Text("1.0")), "1": (Text("1"), Text("2.0"))})
            table.move_cursor(row=1)
            touched = []
            update = table.update_cell
            table.update_cell = lambda row, column, value, **rest: (touched.append((row, column)), update(row, column, value, **rest))
            sync(table, columns, {"0": (Text("0"), Text("1.0")), "1": (Text("1"), Text("3.0"))})
            assert touched == [("1", "ms")]
            sync(table, columns, {"2": (Text("2"), Text("9.0")), "0": (Text("0"), Text("1.0")), "1": (Text("1"), Text("3.0"))})
            assert table.cursor_row == 2  # still on rank 1
            assert [str(cell) for cell in table.get_row_at(0)] == ["2", "9.0"]

    asyncio.run(scenario())
