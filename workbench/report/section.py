"""What a page is made of: sections that hold figures, tables, and honest gaps. Plain data; the template does the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import plotly.graph_objects as go


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot. `how` says in one sentence how to read it; `reduced` says what was left out, if anything was."""

    kind: ClassVar[str] = "figure"
    key: str
    title: str
    plot: go.Figure
    height: int = 360
    how: str = ""
    reduced: str = ""

    @property
    def spec(self) -> str:
        """The plot as JSON that may stand inside a script element."""
        return script_safe(str(self.plot.to_json()))


@dataclass(frozen=True, slots=True)
class Table:
    """A small table. Columns named in `right` hold numbers."""

    kind: ClassVar[str] = "table"
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    right: tuple[str, ...] = ()
    how: str = ""


@dataclass(frozen=True, slots=True)
class Missing:
    """Something that was not measured, and what would have measured it."""

    kind: ClassVar[str] = "missing"
    what: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    key: str
    title: str
    lead: str = ""
    items: tuple[Figure | Table | Missing, ...] = field(default_factory=tuple)


def script_safe(json: str) -> str:
    """JSON in which no `</script>` or `<!--` can appear: both need a `<`, which JSON strings may spell as an escape."""
    return json.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
