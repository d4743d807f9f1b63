"""A named paragraph whose further lines stand under its first."""

from __future__ import annotations

import textwrap

from textual.content import Content


def paragraph(name: str, words: str, width: int, style: str = "", label: int = 9) -> Content:
    """`name` in a column of `label`, the words beside it within `width` columns."""
    first, *rest = textwrap.wrap(words, max(width - label, 20)) or [""]
    lines = [Content.assemble((f"{name:<{label}}", "$muted"), (first, style))]
    lines += [Content.assemble(" " * label, (line, style)) for line in rest]
    return Content("\n").join(lines)
