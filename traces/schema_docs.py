"""The schema page, written from the tables and views themselves."""

from __future__ import annotations

from traces.database import memory
from traces.schema import TABLES, VERSION
from traces.table import Table
from traces.views import VIEWS

_HEAD = f"""# Schema version {VERSION}

Times are int64 nanoseconds since the epoch on the producer's clock; durations are nanoseconds; sizes are bytes. Null means *not measured*.
Rows arrive in time order. Collectives join across ranks on (group, seq), steps on (stage, micro_batch, step), never on time.

## Tables
"""


def page() -> str:
    """Markdown of all tables and views with their columns."""
    return _HEAD + "".join(_table(table) for table in TABLES.values()) + "\n## Views\n" + _views()


def _table(table: Table) -> str:
    detail = " Detail: dropped first under pressure." if table.detail else ""
    rows = "".join(f"| `{c.name}` | {c.duckdb}{', may be null' if c.nullable else ''} | {_cell(c.doc)} |\n" for c in table.columns)
    return f"\n### `{table.name}`\n\n{table.doc}{detail}\n\n| column | type | meaning |\n|---|---|---|\n{rows}"


def _views() -> str:
    """Columns are asked of DuckDB, so that they cannot differ from the views."""
    parts = []
    with memory() as connection:
        for view in VIEWS.values():
            columns = connection.execute(f'DESCRIBE "{view.name}"').fetchall()
            described = ", ".join(f"`{name}` {kind}" for name, kind, *_ in columns)
            parts.append(f"\n### `{view.name}`\n\n{view.doc}\n\n{described}\n")
    return "".join(parts)


def _cell(text: str) -> str:
    return text.strip().replace("|", "\\|")
