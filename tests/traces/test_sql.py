"""What a reader may ask, and what no reader can reach."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from traces import sql
from traces.database import insert, lock_down, memory
from traces.decode import arrow_rows
from traces.errors import QueryError
from traces.schema import TOKEN


@pytest.fixture
def store(tmp_path: Path) -> duckdb.DuckDBPyConnection:
    connection = memory(tmp_path / "traces.duckdb")
    insert(connection, "token", arrow_rows(TOKEN, [(index, "a", index, 0, 0) for index in range(100)]))
    lock_down(connection)
    return connection


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1", "WITH a AS (SELECT 1) FROM a", "FROM token", "TABLE token", "VALUES (1)", "EXPLAIN SELECT 1",
        "EXPLAIN ANALYZE FROM token",
        "DESCRIBE token", "SHOW TABLES", "SUMMARIZE token", "SELECT * FROM duckdb_columns()", "SELECT 1;", "-- a comment\nSELECT 1",
        "SELECT ';' AS semicolon",
    ],
)  # fmt: skip
def test_questions(store: duckdb.DuckDBPyConnection, statement: str) -> None:
    assert sql.run(store, statement).table.num_rows > 0


WRITES = [
    "INSERT INTO token VALUES (1, 'a', 0, 0, 0)", "UPDATE token SET step = 1", "DELETE FROM token", "DROP TABLE token", "TRUNCATE token",
    "CREATE TABLE t (a INT)", "CREATE TEMP TABLE t AS SELECT 1", "CREATE VIEW v AS SELECT 1", "ALTER TABLE token ADD COLUMN x INT",
    "WITH w AS (DELETE FROM token RETURNING *) SELECT * FROM w", "WITH w AS (INSERT INTO token FROM token RETURNING *) FROM w",
    "EXPLAIN ANALYZE DELETE FROM token", "EXPLAIN ANALYZE WITH w AS (DELETE FROM token RETURNING *) FROM w",
    "MERGE INTO token USING token AS t ON token.ts = t.ts WHEN MATCHED THEN DELETE", "CALL pragma_version()", "VACUUM", "CHECKPOINT",
]  # fmt: skip
REACHES = [
    "SELECT * FROM read_csv('/etc/passwd')", "SELECT * FROM read_text('/etc/passwd')", "SELECT * FROM read_blob('/etc/passwd')",
    "SELECT * FROM read_parquet('/etc/passwd')", "SELECT * FROM read_json('/etc/passwd')", "FROM '/etc/passwd'", "FROM glob('/*')",
    "SELECT * FROM sniff_csv('/etc/passwd')", "SELECT * FROM parquet_metadata('/etc/passwd')", "COPY token TO '/dev/null'",
    "COPY (FROM token) TO '/dev/null' (FORMAT parquet)", "EXPORT DATABASE '/dev/shm/never'", "ATTACH '/dev/shm/never.duckdb'",
    "ATTACH ':memory:' AS other", "INSTALL httpfs", "LOAD httpfs", "SET enable_external_access = true", "RESET enable_external_access",
    "SET lock_configuration = false", "PRAGMA database_list", "SELECT * FROM read_csv('http://127.0.0.1:1/')", "FROM secret_of_the_process",
    "USE memory", "PREPARE p AS SELECT 1", "BEGIN", "SELECT * FROM query('DELETE FROM token')",
]  # fmt: skip


@pytest.mark.parametrize("statement", [*WRITES, *REACHES])
def test_nothing_is_written_and_nothing_else_is_reached(store: duckdb.DuckDBPyConnection, statement: str) -> None:
    secret_of_the_process = __import__("pandas").DataFrame({"secret": [1]})
    assert len(secret_of_the_process) == 1
    with pytest.raises(QueryError) as refused:
        sql.run(store, statement)
    assert refused.value.message and refused.value.hint and refused.value.exit_code == 2
    assert sql.run(store, "SELECT count(*) AS n FROM token").table.to_pylist() == [{"n": 100}]


@pytest.mark.parametrize("statement", ["SELECT 1; SELECT 2", "SELECT 1; DELETE FROM token", "DELETE FROM token; SELECT 1", "", " -- no"])
def test_exactly_one_statement(store: duckdb.DuckDBPyConnection, statement: str) -> None:
    with pytest.raises(QueryError, match="statements given"):
        sql.run(store, statement)
    assert sql.run(store, "SELECT count(*) AS n FROM token").table.to_pylist() == [{"n": 100}]


def test_a_long_query_is_stopped_and_the_next_one_runs(store: duckdb.DuckDBPyConnection) -> None:
    endless = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"
    with pytest.raises(QueryError, match=r"longer than 0\.3 s"):
        sql.run(store, endless, timeout=0.3)
    assert sql.run(store, "SELECT 1 AS one").table.to_pylist() == [{"one": 1}]


def test_a_long_stream_of_rows_is_stopped_too(store: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "MOST_ROWS", 10**15)
    with pytest.raises(QueryError, match=r"longer than|larger than"):
        sql.run(store, "FROM range(100000000000)", timeout=0.5)


def test_rows_are_capped_and_it_is_said(store: duckdb.DuckDBPyConnection) -> None:
    exact = sql.run(store, "FROM token", limit=100)
    assert (exact.table.num_rows, exact.truncated) == (100, False)
    cut = sql.run(store, "FROM token ORDER BY index", limit=99)
    assert (cut.table.num_rows, cut.truncated) == (99, True)
    none = sql.run(store, "FROM token", limit=0)
    assert (none.table.num_rows, none.truncated, none.table.column_names) == (0, True, ["ts", "trace_id", "index", "step", "rank"])
    unbounded = sql.run(store, "FROM range(100000000000)", limit=10)
    assert (unbounded.table.num_rows, unbounded.truncated) == (10, True)


def test_an_answer_too_large_for_memory_is_refused(store: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "MOST_BYTES", 1 << 20)
    with pytest.raises(QueryError, match="larger than 1 MiB"):
        sql.run(store, "SELECT repeat('x', 1000) FROM range(100000)")


def test_parameters(store: duckdb.DuckDBPyConnection) -> None:
    assert sql.run(store, "SELECT count(*) AS n FROM token WHERE index < ?", [7]).table.to_pylist() == [{"n": 7}]
    assert sql.run(store, "SELECT count(*) AS n FROM token WHERE index < $most", {"most": 8}).table.to_pylist() == [{"n": 8}]
    assert sql.run(store, "SELECT count(*) AS n FROM token WHERE trace_id = ?", ["'; DROP TABLE token; --"]).table.to_pylist() == [{"n": 0}]
    within = sql.run(store, "SELECT count(*) AS n FROM token WHERE index IN (SELECT unnest($these))", {"these": [1, 2, 500]})
    assert within.table.to_pylist() == [{"n": 2}]
    with pytest.raises(QueryError):
        sql.run(store, "SELECT ?", [])


def test_integer_sums_are_integers(store: duckdb.DuckDBPyConnection) -> None:
    large = "sum(index::HUGEINT * 1000000000000000000000000000000::HUGEINT) AS large"
    (row,) = sql.run(store, f"SELECT sum(index) AS small, {large} FROM token").table.to_pylist()
    assert row["small"] == 4950 and isinstance(row["small"], int)
    assert row["large"] == 4950 * 10**30


def test_a_mistake_is_explained(store: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(QueryError, match="tokn") as wrong:
        sql.run(store, "SELECT * FROM tokn")
    assert "SHOW TABLES" in wrong.value.hint
