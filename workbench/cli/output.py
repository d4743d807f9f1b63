"""Answers go to stdout, as a table or as JSON; everything that is said beside them goes to stderr."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from workbench.cli.context import session


def answer(text: str) -> None:
    """Writes text to stdout."""
    click.echo(text)


def answer_json(document: Any) -> None:
    """Writes a document (mapping or msgspec struct, with its schema key) to stdout as indented JSON."""
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def note(text: str = "") -> None:
    """Says something on stderr, unless quiet."""
    if not session().quiet:
        say(text)


def say(text: str) -> None:
    """Says something on stderr. For threads, which have no session."""
    click.echo(text, err=True)


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], right: Sequence[str] = ()) -> str:
    """An aligned text table: a header, a rule, the rows. Columns named in `right`, and numbers, are right-aligned."""
    cells = [[cell(value) for value in row] for row in rows]
    numeric = [
        name in right or (bool(rows) and all(isinstance(row[i], int | float) or row[i] is None for row in rows))
        for i, name in enumerate(columns)
    ]
    widths = [max([len(name), *(len(row[i]) for row in cells)]) for i, name in enumerate(columns)]

    def line(values: Sequence[str]) -> str:
        parts = [v.rjust(w) if r else v.ljust(w) for v, w, r in zip(values, widths, numeric, strict=True)]
        return "  ".join(parts).rstrip()

    return "\n".join([line(list(columns)), line(["─" * w for w in widths]), *map(line, cells)])


def cell(value: Any) -> str:
    """One value of a table on one line; null is an empty cell, a float keeps six significant digits."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    return " ".join(str(value).split())
