"""Running one read-only statement with a row cap and a time limit. Used by the collector and on closed files alike."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from traces.errors import QueryError

MOST_ROWS = 5_000_000
MOST_BYTES = 512 << 20
TIMEOUT = 30.0
_BATCH = 16_384
_ALLOWED = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
_HINT = "one SELECT, WITH, FROM, DESCRIBE, SHOW, SUMMARIZE or EXPLAIN is allowed"

Params = Sequence[Any] | Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows of a statement. `truncated`: there were more than the limit."""

    table: pa.Table
    truncated: bool


def run(
    connection: duckdb.DuckDBPyConnection, sql: str, params: Params = None, limit: int | None = None, timeout: float = TIMEOUT
) -> Answer:
    """Runs a statement on a cursor of its own, in a read-only transaction. Raises QueryError."""
    most = MOST_ROWS if limit is None else max(0, min(limit, MOST_ROWS))
    cursor = connection.cursor()
    late = threading.Event()

    def stop() -> None:
        late.set()
        cursor.interrupt()

    timer = threading.Timer(timeout, stop)
    timer.daemon = True
    timer.start()
    try:
        check(cursor, sql)
        cursor.execute("BEGIN TRANSACTION READ ONLY")
        return _read(cursor, sql, params, most)
    except duckdb.FatalException:
        raise
    except (duckdb.Error, OSError, pa.ArrowException) as error:
        # An error in the middle of a stream of rows comes through Arrow.
        if late.is_set():
            hint = "narrow it: fewer steps, a shorter time window"
            raise QueryError(f"the query took longer than {timeout:g} s and was stopped", hint) from error
        raise QueryError(str(error), "`SHOW TABLES` lists tables and views, `DESCRIBE name` their columns") from error
    finally:
        timer.cancel()
        cursor.close()


def check(cursor: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Raises QueryError unless the text is exactly one reading statement."""
    statements = cursor.extract_statements(sql)
    if len(statements) != 1:
        raise QueryError(f"{len(statements)} statements given", _HINT)
    if statements[0].type not in _ALLOWED:
        raise QueryError(f"{statements[0].type.name} is not allowed: runs are read-only to queries", _HINT)


def _read(cursor: duckdb.DuckDBPyConnection, sql: str, params: Params, most: int) -> Answer:
    bound = dict(params) if isinstance(params, Mapping) else list(params) if params else None
    reader = cursor.sql(sql, params=bound).to_arrow_reader(_BATCH)
    batches, rows, size, truncated = [], 0, 0, False
    for batch in reader:
        if rows + batch.num_rows > most:
            batches.append(batch.slice(0, most - rows))
            truncated = True
            break
        batches.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if size > MOST_BYTES:
            raise QueryError(f"the answer is larger than {MOST_BYTES >> 20} MiB", "ask for fewer columns or rows")
    return Answer(_plain_integers(pa.Table.from_batches(batches, reader.schema)), truncated)


def _plain_integers(table: pa.Table) -> pa.Table:
    """sum() of integers is a 128-bit number in DuckDB and arrives as a decimal; it becomes an int64 where it fits."""
    for index, field in enumerate(table.schema):
        if pa.types.is_decimal128(field.type) and field.type.precision == 38 and field.type.scale == 0:
            try:
                values = pc.cast(table.column(index), pa.int64())
            except pa.ArrowInvalid:
                continue
            table = table.set_column(index, field.name, values)
    return table
