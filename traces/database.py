"""The DuckDB file of a run: opening it in one of three ways, and writing segments with their ledger entries in one transaction."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import msgspec
import pyarrow as pa

from traces.decode import arrow_rows
from traces.errors import SchemaTooNew, StoreBusy
from traces.ledger import Ledger
from traces.repair import set_aside
from traces.schema import LEDGER, TABLES, VERSION
from traces.views import VIEWS, create_views

_FEW = 32
_VERSION_TABLE = "workbench_schema"
# A checkpoint stalls the writer for up to a second at the 16 MB default (store measurements, section 2): large, and explicit when idle.
CHECKPOINT_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """Rows of one segment. `key` is (producer, boot, seq), or None for rows that have no ledger (OTLP).

    `patient` rows may wait for others before they are committed.
    """

    key: tuple[str, str, int] | None
    tables: dict[str, pa.Table]
    patient: bool = False

    @property
    def rows(self) -> int:
        return sum(table.num_rows for table in self.tables.values())

    @property
    def size(self) -> int:
        """Bytes of the rows in memory."""
        return int(sum(table.nbytes for table in self.tables.values()))


_LOCKS = ("python_enable_replacements=false", "max_temp_directory_size='4GB'", "enable_external_access=false", "lock_configuration=true")


def connect(path: Path, *, read_only: bool = False, patience: float = 0.0) -> duckdb.DuckDBPyConnection:
    """Opens a store, and brings its tables and views up to date unless read-only. Raises StoreBusy, SchemaTooNew, duckdb.Error.

    `patience`: seconds to wait for another process to let go of the file. A damaged file is set aside unless opened read-only.
    """
    config: dict[str, str | bool | int | float | list[str]] = {
        "checkpoint_threshold": f"{CHECKPOINT_BYTES}B", "threads": 2, "memory_limit": f"{_memory_share()}B",
    }  # fmt: skip
    deadline = time.monotonic() + patience
    while True:
        try:
            connection = duckdb.connect(str(path), read_only=read_only, config=config)
            break
        except duckdb.Error as error:
            if "lock" in str(error).lower():
                if time.monotonic() >= deadline:
                    raise StoreBusy(f"{path.name} is held by another process: {error}", "end that process, or wait for it") from error
                time.sleep(0.1)
            elif read_only or not set_aside(path, error):
                raise
    try:
        _check_version(connection, path)
        if not read_only:
            _prepare(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _memory_share() -> int:
    """A quarter of the machine's memory, 1 to 8 GiB: the rest belongs to what is being watched."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(8 << 30, max(1 << 30, total // 4))


def memory(path: Path | None = None) -> duckdb.DuckDBPyConnection:
    """An empty store: in memory, or in a new file."""
    connection = duckdb.connect(str(path) if path else ":memory:")
    _prepare(connection)
    return connection


def lock_down(connection: duckdb.DuckDBPyConnection) -> None:
    """From here on no SQL of this database reaches a file, an extension, a Python variable, or a setting."""
    locked = connection.execute("SELECT current_setting('lock_configuration')").fetchone()
    if locked and locked[0]:
        # Another connection of this process to the same file has done it.
        return
    for setting in _LOCKS:
        connection.execute(f"SET {setting}")


def _check_version(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    try:
        found = connection.execute(f"SELECT version FROM {_VERSION_TABLE}").fetchone()
    except (duckdb.CatalogException, duckdb.BinderException):
        return
    if found and found[0] is not None and found[0] > VERSION:
        raise SchemaTooNew(
            f"{path.parent.name}/{path.name} was written with schema version {found[0]}; this workbench reads up to {VERSION}",
            "upgrade the workbench (pip install --upgrade workbench-moe) and open the run again",
        )


def is_current(connection: duckdb.DuckDBPyConnection) -> bool:
    """Whether the tables and views in a store are those of this version."""
    try:
        found = connection.execute(f"SELECT shape FROM {_VERSION_TABLE}").fetchone()
    except (duckdb.CatalogException, duckdb.BinderException):
        return False
    return found is not None and found[0] == _shape()


def _shape() -> str:
    """Fingerprint of all definitions."""
    definitions = [table.ddl for table in TABLES.values()] + [view.ddl for view in VIEWS.values()]
    return hashlib.sha256("\n".join(definitions).encode()).hexdigest()


def _prepare(connection: duckdb.DuckDBPyConnection) -> None:
    """Tables and views as of this version."""
    if is_current(connection):
        return
    connection.execute("BEGIN")
    for table in TABLES.values():
        connection.execute(table.ddl)
    _add_columns(connection)
    create_views(connection)
    connection.execute(f"CREATE OR REPLACE TABLE {_VERSION_TABLE} AS SELECT {VERSION} AS version, '{_shape()}' AS shape")
    connection.execute("COMMIT")


def _add_columns(connection: duckdb.DuckDBPyConnection) -> None:
    """Columns that are younger than the store: null in its rows."""
    there = connection.execute("SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal").fetchall()
    for table in TABLES.values():
        for column in table.columns:
            if column.nullable and (table.name, column.name) not in there:
                connection.execute(f'ALTER TABLE "{table.name}" ADD COLUMN "{column.name}" {column.duckdb}')


def read_ledger(connection: duckdb.DuckDBPyConnection) -> Ledger:
    """A long run has millions of entries, nearly all in unbroken lives: of those only the last number is read."""
    lives = connection.execute("SELECT producer, boot, max(seq), count(*) FROM ledger GROUP BY producer, boot").fetchall()
    whole = {(producer, boot): last + 1 for producer, boot, last, entries in lives if last + 1 == entries}
    ledger = Ledger(whole)
    if len(whole) < len(lives):
        broken = "SELECT producer, boot FROM ledger GROUP BY ALL HAVING max(seq) + 1 <> count(*)"
        rest = f"SELECT producer, boot, seq FROM ledger JOIN ({broken}) USING (producer, boot) ORDER BY ALL"
        for producer, boot, seq in connection.execute(rest).fetchall():
            ledger.add(producer, boot, seq)
    return ledger


def write(connection: duckdb.DuckDBPyConnection, entries: Sequence[Entry]) -> None:
    """Rows and ledger entries, all or nothing. Raises duckdb.Error."""
    now = time.time_ns()
    keys = [(*entry.key, entry.rows, now) for entry in entries if entry.key is not None]
    connection.execute("BEGIN")
    try:
        for name in TABLES:
            parts = [entry.tables[name] for entry in entries if name in entry.tables]
            if parts:
                insert(connection, name, pa.concat_tables(parts))
        if keys:
            _enter(connection, keys)
        connection.execute("COMMIT")
    except duckdb.Error:
        rollback(connection)
        raise


def insert(connection: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> None:
    """Appends Arrow rows, of the table's own columns in their order, inside the caller's transaction."""
    connection.from_arrow(rows).insert_into(name)


def _enter(connection: duckdb.DuckDBPyConnection, keys: list[tuple[str, str, int, int, int]]) -> None:
    """Ledger rows. A few are cheaper as values than as Arrow."""
    if len(keys) > _FEW:
        insert(connection, LEDGER.name, arrow_rows(LEDGER, keys))
    else:
        places = ", ".join(["(?, ?, ?, ?, ?)"] * len(keys))
        connection.execute(f"INSERT INTO ledger VALUES {places}", [value for key in keys for value in key])


def rollback(connection: duckdb.DuckDBPyConnection) -> None:
    """A connection whose database was invalidated cannot even roll back."""
    try:
        connection.execute("ROLLBACK")
    except duckdb.Error:
        return


def repaired(tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """The same rows, with text in JSON columns that is not JSON turned into a JSON string of itself."""
    def repair(text: str | None) -> str | None:
        if text is None:
            return None
        try:
            msgspec.json.decode(text)
        except msgspec.DecodeError:
            return msgspec.json.encode(text).decode()
        return text

    result = {}
    for name, table in tables.items():
        for index, column in enumerate(TABLES[name].columns):
            if column.base == "json":
                values: Iterable[str | None] = table.column(index).to_pylist()
                table = table.set_column(index, table.schema.field(index), pa.array([repair(v) for v in values], pa.string()))
        result[name] = table
    return result
