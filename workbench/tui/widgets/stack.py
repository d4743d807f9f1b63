"""Parts of a whole as one stacked bar; every part carries its letter where it is wide enough."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content


def stack(parts: Sequence[tuple[str, str, float]], top: float, width: int) -> Content:
    """`parts` are (letter, colour, amount); the sum of amounts equal to `top` fills `width` columns."""
    pieces: list[tuple[str, str]] = []
    done, drawn = 0.0, 0
    for letter, color, amount in parts:
        done += amount
        end = round(done / top * width) if top > 0 else 0
        room = end - drawn
        if room > 0:
            text = letter.center(room) if room < 3 else f"{letter:^{room}}"
            pieces.append((text, f"#101418 on {color}"))
            drawn = end
    return Content.assemble(*pieces, " " * max(width - drawn, 0))
