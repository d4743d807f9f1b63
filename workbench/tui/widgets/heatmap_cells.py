"""The text of one cell of a heatmap on one of its lines: a colour with a number in it, or, without colours, a bar."""

from __future__ import annotations

from workbench.tui import palette

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def number(value: float, size: int) -> str:
    """A ratio in a cell of `size` columns: two decimals where they fit with a mark around."""
    return f"{value:.2f}" if size >= 6 else f"{value:.1f}"


def filled(value: float, size: int, middle: bool, marked: bool) -> str:
    """A line of a cell whose colour says how hot it is; `marked` is under the cursor, `middle` the line of the number."""
    if value < 0:
        return ("·" if middle else " ").center(size)
    if not middle:
        return " " * size
    if size < 4:
        return "[ ]" if marked and size == 3 else "›" * marked + " " * (size - marked) if size > 1 else " "
    words = number(value, size)
    if not marked:
        return words.center(size)
    return f"[{words}]".center(size) if size > len(words) + 1 else f"›{words}".center(size)[:size]


def bars(value: float, top: float, size: int, line: int, lines: int, marked: bool) -> str:
    """A line of a cell drawn as a bar `lines` high, line 0 on top; where there is room the number stands above the bar."""
    numbered = size >= 4 and lines >= 2
    if value < 0:
        return ("·" if line == lines - 1 else " ").center(size)
    if numbered and line == 0:
        words = number(value, size)
        return (f"[{words}]" if marked and size > len(words) + 1 else f"›{words}" if marked else words).center(size)[:size]
    height = lines - numbered
    if height == 1 and not numbered:
        fill = palette.glyph(value, top)
    else:
        eighths = max(round(min(value / top, 1.0) * height * 8), 1 if value > 0 else 0) - (lines - 1 - line) * 8
        fill = _EIGHTHS[max(0, min(eighths, 8))]
    return fill * size if size < 3 else fill * (size - 1) + " "
