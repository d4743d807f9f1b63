"""`workbench query`: asks a run in SQL."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from workbench.cli.context import Command, json_option, run_option
from workbench.cli.output import answer, answer_json, note, table

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = "workbench.query.v1"
LIMIT = 1000


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  workbench query "SELECT layer, expert, tokens FROM expert_heat ORDER BY tokens DESC LIMIT 5"
  workbench query "SELECT * FROM stage_latency" --format csv > stages.csv
  workbench query "SHOW TABLES"
""",
)
@click.argument("sql")
@run_option()
@click.option(
    "--format", "form", type=click.Choice(["table", "json", "csv"]), default="table", show_default=True, help="Form of the answer."
)
@click.option("-n", "--limit", type=click.IntRange(min=1), default=LIMIT, show_default=True, help="Rows at most.")
@json_option()
def query(sql: str, run_name: str, form: str, limit: int, as_json: bool) -> None:
    """Ask a run in SQL (one read-only DuckDB statement over its tables and views). SQL "-" reads the statement from stdin."""
    from traces.run import find_run
    from traces.store import open_run

    statement = sys.stdin.read() if sql == "-" else sql
    with open_run(find_run(run_name)) as store:
        found = store.query(statement, limit=limit + 1)  # one more than is shown tells that there are more
    shown = found.slice(0, limit)
    if as_json or form == "json":
        answer_json(
            {
                "schema": SCHEMA,
                "run": store.info.id,
                "columns": _columns(shown),
                "rows": [_plain(row) for row in shown.to_pylist()],
                "truncated": found.num_rows > limit,
            }
        )
    elif form == "csv":
        _write_csv(shown)
    else:
        answer(table(shown.column_names, _rows(shown)))
        note(f"{shown.num_rows} row{'' if shown.num_rows == 1 else 's'}")
    if found.num_rows > limit:
        note(f"more rows were left out: --limit {limit}")


def _columns(found: pa.Table) -> list[dict[str, str]]:
    return [{"name": field.name, "type": str(field.type)} for field in found.schema]


def _rows(found: pa.Table) -> list[tuple[Any, ...]]:
    """Rows by position: two columns of an answer may share a name."""
    return list(zip(*(column.to_pylist() for column in found.columns), strict=True))


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Values that JSON has; the rest as text (dates, decimals, blobs)."""
    return {name: value if isinstance(value, str | int | float | bool | list | dict | None) else str(value) for name, value in row.items()}


def _write_csv(found: pa.Table) -> None:
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(found.column_names)
    writer.writerows(["" if value is None else value for value in row] for row in _rows(found))
