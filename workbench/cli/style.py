"""Colour and glyphs of plain terminal output. Colour never carries meaning alone."""

from __future__ import annotations

import os
import sys
from typing import Literal

import click

Role = Literal["good", "bad", "warn", "dim", "bold"]

_STYLES: dict[str, dict[str, object]] = {
    "good": {"fg": "green"},
    "bad": {"fg": "red", "bold": True},
    "warn": {"fg": "yellow"},
    "dim": {"dim": True},
    "bold": {"bold": True},
}


def coloured(err: bool = False) -> bool:
    """Whether a stream gets colour: a terminal, NO_COLOR unset or empty (no-color.org), not a dumb terminal."""
    stream = sys.stderr if err else sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, role: Role, *, err: bool = False) -> str:
    """The text in the role's style when its stream is coloured, else unchanged."""
    return click.style(text, **_STYLES[role]) if coloured(err) else text  # type: ignore[arg-type]
