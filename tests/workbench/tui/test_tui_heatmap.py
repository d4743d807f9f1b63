"""The heatmap: where cells lie, what a bin shows, and that it is read without colours."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from textual.app import App

from workbench.tui import palette
from workbench.tui.widgets.heatmap import Heat, Heatmap
from workbench.tui.widgets.heatmap_layout import columns, rows


def heat(values, groups=("",)):
    values = np.asarray(values, dtype=float)
    return Heat(values, tuple(f"L{i}" for i in range(values.shape[0])), tuple(str(i) for i in range(values.shape[1])), groups)


def draw(values, size, monkeypatch, no_color=False, groups=(""), cursor=None, plain=None):
    """Lines of text of a heatmap of a size, in an application of its own."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("NO_COLOR", "1") if no_color else monkeypatch.delenv("NO_COLOR", raising=False)

    class Alone(App[None]):
        def compose(self):
            yield Heatmap()

    async def lines():
        app = Alone()
        if plain is not None:
            app.plain = plain
        async with app.run_test(size=size) as pilot:
            widget = app.query_one(Heatmap)
            widget.show(heat(values, groups or ("",)))
            widget.focus()
            if cursor:
                widget.place(*cursor)
            await pilot.pause()
            app.export_screenshot()  # every filter of the application runs over every line
            return [widget.render_line(y) for y in range(size[1])]

    return asyncio.run(lines())


@pytest.mark.parametrize(
    ("cells", "width", "size", "bins"), [(16, 80, 5, 16), (256, 270, 1, 256), (256, 140, 1, 128), (256, 74, 1, 64), (3, 200, 9, 3)]
)
def test_columns_fill_the_width_or_share_it(cells, width, size, bins):
    axis = columns(cells, width)
    assert (axis.size, len(axis.bins)) == (size, bins)
    assert axis.bins[0][0] == 0 and axis.bins[-1][1] == cells
    assert axis.length <= width


def test_groups_of_columns_stand_apart_and_no_bin_crosses_them():
    axis = columns(256, 74, groups=16)
    assert axis.length <= 74
    assert all(first // 16 == (end - 1) // 16 for first, end in axis.bins)
    gaps = [b - a - axis.size for a, b in zip(axis.starts, axis.starts[1:], strict=False)]
    assert gaps.count(1) == 15 and set(gaps) == {0, 1}


def test_rows_of_a_big_model_take_half_a_line_and_of_a_small_one_several():
    assert rows(61, 31).size == 1 and len(rows(61, 31).bins) == 61
    assert rows(4, 12).size == 6
    assert len(rows(61, 12).bins) == 21  # 24 half lines: three layers share one
    assert rows(61, 12, half=False).size == 2


def test_one_hot_expert_never_disappears(monkeypatch):
    values = np.full((61, 256), 1.0)
    values[37, 201] = 9.0
    lines = draw(values, (80, 24), monkeypatch, cursor=(0, 0))
    hottest = palette.DARK[-1]
    seen = [y for y, line in enumerate(lines) for part in line if hottest in (_hex(part.style.color), _hex(part.style.bgcolor))]
    assert [y for y in seen if y <= 16] == [1 + 37 // 2 // 2]  # two layers share a half line: 31 of them, 16 lines


def _hex(color):
    return color.get_truecolor().hex if color else None


@pytest.mark.parametrize("size", [(80, 24), (100, 30), (40, 10), (300, 70)])
@pytest.mark.parametrize("shape", [(1, 1), (4, 16), (61, 256), (93, 896)])
def test_every_size_of_model_is_drawn_in_every_size_of_terminal_without_colour(monkeypatch, size, shape):
    values = np.random.default_rng(3).gamma(2.0, 0.5, shape)
    values[0, 0] = np.nan
    for line in draw(values, size, monkeypatch, no_color=True):
        assert line.cell_length == size[0]
        assert all(part.style is not None for part in line)


def test_without_colours_height_says_how_hot(monkeypatch):
    lines = draw([[1.0, 0.5, 2.0, 0.0]], (60, 20), monkeypatch, no_color=True, cursor=(0, 2))
    text = [line.text for line in lines]
    assert "1.00" in text[1] and "[2.00]" in text[1]
    bottom = text[max(y for y, line in enumerate(text) if "█" in line and "×" not in line)]
    assert bottom.count("█") == 3 * 8  # the cell of 0 has no bar
    assert text[2].count("█") == 8  # only the hottest reaches up


def test_cursor_is_marked_and_moves_with_the_keys(monkeypatch):
    lines = draw([[1.0, 1.5], [0.5, 1.0]], (60, 20), monkeypatch, cursor=(0, 1))
    assert any("[1.50]" in line.text for line in lines)


def test_levels_are_monotone_in_luminance():
    def luminance(stop):
        return sum(w * int(stop[i : i + 2], 16) for w, i in ((0.2126, 1), (0.7152, 3), (0.0722, 5)))

    dark = [luminance(stop) for stop in palette.DARK]
    light = [luminance(stop) for stop in palette.LIGHT]
    assert dark == sorted(dark) and light == sorted(light, reverse=True)
    assert len(palette.DARK) == len(palette.LIGHT) == palette.LEVELS
    assert [palette.level(v, 2.0) for v in (0, 0.1249, 0.126, 1.0, 2.0, 99)] == [0, 0, 1, 8, 15, 15]
