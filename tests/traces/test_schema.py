from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from traces import schema_docs
from traces.database import connect, is_current, memory
from traces.schema import BY_NUMBER, TABLES, VERSION
from traces.table import Table
from traces.views import VIEWS


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_ddl_and_arrow_schema_say_the_same(table: Table) -> None:
    with duckdb.connect() as connection:
        connection.execute(table.ddl)
        stored = connection.sql(f'FROM "{table.name}"').to_arrow_table().schema
        described = connection.execute(f'DESCRIBE "{table.name}"').fetchall()
    assert [field.name for field in stored] == [column.name for column in table.columns]
    for field, column, (_, _, nullable, *_) in zip(stored, table.columns, described, strict=True):
        assert field.type == column.arrow or (pa.types.is_list(field.type) and field.type.value_type == column.arrow.value_type)
        assert (nullable == "YES") == column.nullable
        assert column.doc.strip()


def test_numbers_are_stable_codes() -> None:
    """They are in the rings and segments of runs that exist: a number is never given to another table."""
    assert VERSION == 1
    names = (
        "resource span token step layer collective expert_load placement memory load device nic host link metric log event tap stack "
        "rollup ledger drop clock_offset document"
    )
    assert [BY_NUMBER[number].name for number in range(1, 25)] == names.split()
    assert {table.name for table in TABLES.values() if table.detail} == {"layer", "collective", "tap"}


def test_the_page_names_everything() -> None:
    page = schema_docs.page()
    for table in TABLES.values():
        assert f"### `{table.name}`" in page and table.doc in page
        for column in table.columns:
            assert f"| `{column.name}` | {column.duckdb}" in page
    for view in VIEWS.values():
        assert f"### `{view.name}`" in page
    assert "`us_per_row` DOUBLE" in page
    assert all(line.count(" | ") == 2 for line in page.splitlines() if line.startswith("| `"))


def test_a_new_store_is_of_this_version() -> None:
    with memory() as connection:
        assert is_current(connection)
        connection.execute("UPDATE workbench_schema SET shape = 'another'")
        assert not is_current(connection)


def test_a_store_that_is_older_than_a_column_gets_it(tmp_path: Path) -> None:
    """Its rows have null there, and new ones are written beside them."""
    file = tmp_path / "traces.duckdb"
    with memory(file) as connection:
        for column in ("cached_tokens", "kv_kept", "long_tokens"):
            connection.execute(f"ALTER TABLE step DROP COLUMN {column}")
        names = [name for name, *_ in connection.execute("DESCRIBE step").fetchall()]
        connection.execute(f"INSERT INTO step VALUES ({', '.join('[]' if name == 'requests' else '1' for name in names)})")
        connection.execute("UPDATE workbench_schema SET shape = 'older'")
    with connect(file) as connection:
        assert is_current(connection)
        assert [name for name, *_ in connection.execute("DESCRIBE step").fetchall()] == [c.name for c in TABLES["step"].columns]
        assert connection.execute("SELECT running, kv_kept FROM step").fetchall() == [(1, None)]
