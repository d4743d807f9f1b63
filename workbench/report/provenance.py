"""What the page rests on: how many rows there are, and what is known to be missing."""

from __future__ import annotations

from traces.schema import TABLES
from traces.store import Store
from workbench.report.scope import Scope
from workbench.report.section import Section, Table
from workbench.report.units import count

LEAD = "Every number on this page is a query over the run. `workbench query` asks the same tables and views."


def section(store: Store, scope: Scope) -> Section:
    counts = " UNION ALL ".join(f"SELECT '{name}' AS name, count(*) AS n FROM \"{name}\"" for name in TABLES)
    rows = [(row["name"], count(row["n"]), TABLES[row["name"]].doc) for row in store.rows(counts) if row["n"]]
    lost = store.query("SELECT * FROM loss LIMIT 200")
    columns = tuple(lost.column_names)
    body = tuple(tuple(row[name] for name in columns) for row in lost.to_pylist())
    losses = (
        Table("Known losses", columns, body) if body else Table("Known losses", ("",), (("none: no gap in the ledger, no row dropped",),))
    )
    return Section(
        "data", "What this rests on", LEAD, (Table("Rows recorded", ("table", "rows", "one row is"), tuple(rows), ("rows",)), losses)
    )
