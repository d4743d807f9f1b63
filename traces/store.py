"""Reading a run, whether it is live, closed, crashed, or only its spools are left."""

from __future__ import annotations

import io
import os
import secrets
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import httpx
import msgspec
import pyarrow as pa

from traces import recovery, sql
from traces.address import CollectorAddress
from traces.database import Entry, connect, is_current, lock_down, read_ledger, write
from traces.decode import decode
from traces.errors import NotWritable, QueryError, StoreBusy, Unreachable
from traces.folder import writable
from traces.post import Poster
from traces.records import pack_row
from traces.run import Run, RunInfo, find_run
from traces.schema import DOCUMENT
from traces.segment import build, describe, parse
from traces.sql import Params
from traces.table import Table

_IMPORT_ROWS = 200_000
_LOG = "its log is logs/collector.log in the run folder"


class Store(ABC):
    """A run, open for questions. A context manager; safe to use from several threads."""

    live: bool

    def __init__(self, run: Run) -> None:
        self.run = run

    @property
    def info(self) -> RunInfo:
        return self.run.info

    def query(self, statement: str, params: Params = None, limit: int | None = None, timeout: float = sql.TIMEOUT) -> pa.Table:
        """Rows of one read-only statement. `params`: a list for ?, a mapping for $name. Raises QueryError, Unreachable.

        With a limit the answer is cut there; without one an answer of more than 5 M rows is an error, never cut silently.
        """
        answer = self._ask(statement, params, limit, timeout)
        if answer.truncated and limit is None:
            raise QueryError(f"the answer has more than {sql.MOST_ROWS} rows", "add LIMIT, or ask for less")
        return answer.table

    def rows(self, statement: str, params: Params = None, limit: int | None = None) -> list[dict[str, Any]]:
        """The same as a list of dictionaries."""
        found: list[dict[str, Any]] = self.query(statement, params, limit).to_pylist()
        return found

    @abstractmethod
    def _ask(self, statement: str, params: Params, limit: int | None, timeout: float) -> sql.Answer: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class LiveStore(Store):
    """Asks the run's collector."""

    live = True

    def __init__(self, run: Run, address: CollectorAddress) -> None:
        super().__init__(run)
        self._client = httpx.Client(base_url=address.url, headers=address.headers, trust_env=False)

    def _ask(self, statement: str, params: Params, limit: int | None, timeout: float) -> sql.Answer:
        bound = dict(params) if isinstance(params, Mapping) else list(params) if params else None
        body = msgspec.json.encode({"sql": statement, "params": bound, "limit": limit, "timeout": timeout}, enc_hook=_plain)
        try:
            response = self._client.post("/v1/sql", content=body, timeout=timeout + 10)
        except httpx.HTTPError as error:
            hint = "open the run again: what is recorded stays"
            raise Unreachable(f"the collector of {self.run.id} does not answer: {error}", hint) from error
        if response.status_code == 400:
            told = response.json()
            raise QueryError(told["message"], told["hint"])
        if response.status_code != 200:
            raise Unreachable(f"the collector of {self.run.id} answers {response.status_code}: {response.text[:200]}", _LOG)
        with pa.ipc.open_stream(io.BytesIO(response.content)) as reader:
            return sql.Answer(reader.read_all(), response.headers.get("X-Truncated") == "1")

    def close(self) -> None:
        self._client.close()


class FileStore(Store):
    """Reads the run's file, or a copy of it made for this store."""

    live = False

    def __init__(self, run: Run, connection: duckdb.DuckDBPyConnection, scratch: Path | None = None) -> None:
        super().__init__(run)
        lock_down(connection)
        self._connection, self._scratch = connection, scratch

    def _ask(self, statement: str, params: Params, limit: int | None, timeout: float) -> sql.Answer:
        return sql.run(self._connection, statement, params, limit, timeout)

    def close(self) -> None:
        self._connection.close()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)


def open_run(run: Run | str) -> Store:
    """Opens a run by whichever way there is. Raises UnknownRun, SchemaTooNew, StoreBusy.

    A live run is asked through its collector. Otherwise what its producers left in spools and rings is brought into the file first, or,
    where the folder cannot be written, into a temporary copy of it.
    """
    if isinstance(run, str):
        run = find_run(run)
    run.info  # noqa: B018 - raises SchemaTooNew before anything is opened
    for _ in range(3):
        address = run.collector()
        if address is not None and answers(address):
            return LiveStore(run, address)
        try:
            return _open_file(run)
        except StoreBusy:
            # A collector that is just starting or ending, or another reader bringing leftovers in.
            time.sleep(0.3)
    return _open_file(run)


def answers(address: CollectorAddress) -> bool:
    """Whether a collector answers there."""
    try:
        return httpx.get(f"{address.url}/healthz", timeout=2.0, trust_env=False).status_code in (200, 503)
    except httpx.HTTPError:
        return False


def write_document(run: Run, kind: str, body: Mapping[str, Any] | msgspec.Struct) -> None:
    """Keeps a JSON result with its run, live or closed. Raises NotWritable, StoreBusy, Unreachable."""
    write_rows(run, DOCUMENT, [(time.time_ns(), kind, msgspec.json.encode(body))], producer="documents")


def write_rows(run: Run, table: Table, rows: Iterable[tuple[Any, ...]], producer: str) -> None:
    """Adds rows (values in column order) to a run, live or closed. Raises NotWritable, StoreBusy, Unreachable."""
    records = b"".join(pack_row(table, row) for row in rows)
    boot = f"{time.time_ns():016x}{secrets.token_hex(2)}"
    segment = build(producer, boot, 0, time.time_ns(), describe([table]), records)
    address = run.collector()
    if address is not None and answers(address):
        poster = Poster(address)
        reply = poster.post(segment)
        poster.close()
        if reply.status != 200 or (reply.answer and reply.answer.rejected):
            raise Unreachable(f"the collector of {run.id} did not take the rows (status {reply.status})", _LOG)
        return
    parsed = next(parse(segment))
    with writable(run.path):
        _require_write(run.path)
        connection = connect(run.database, patience=5.0)
        try:
            write(connection, [Entry(parsed.key, decode(parsed).tables)])
        finally:
            connection.close()


def _open_file(run: Run) -> FileStore:
    spool = run.path / "spool"
    if run.database.exists():
        whole = _open_whole(run, spool)
        if whole is not None:
            return whole
    try:
        _require_write(run.path)
        connection = connect(run.database, patience=1.0)
        try:
            _bring_in(connection, spool, tidy=True)
        finally:
            connection.close()
        return FileStore(run, connect(run.database, read_only=True, patience=1.0))
    except (NotWritable, OSError, duckdb.IOException, duckdb.ConnectionException):
        # ConnectionException: this process already has the file open for reading.
        return _open_copy(run, spool)


def _open_whole(run: Run, spool: Path) -> FileStore | None:
    """The file as it is, when it opens, is of this version and lacks nothing."""
    try:
        connection = connect(run.database, read_only=True, patience=1.0)
    except duckdb.Error:
        return None
    if not is_current(connection) or recovery.lacking(recovery.Search(spool), read_ledger(connection)):
        connection.close()
        return None
    return FileStore(run, connection)


def _open_copy(run: Run, spool: Path) -> FileStore:
    scratch = Path(tempfile.mkdtemp(prefix="workbench-"))
    try:
        copy = scratch / run.database.name
        for name in (run.database.name, f"{run.database.name}.wal"):
            if (run.path / name).exists():
                shutil.copyfile(run.path / name, scratch / name)
        connection = connect(copy)
        _bring_in(connection, spool, tidy=False)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return FileStore(run, connection, scratch)


def _bring_in(connection: duckdb.DuckDBPyConnection, spool: Path, tidy: bool) -> None:
    """Writes all leftovers, in transactions of a bounded size."""
    ledger = read_ledger(connection)
    batch: list[Entry] = []
    rows = 0

    def commit() -> None:
        if batch:
            write(connection, batch)

    for entry, _ in recovery.entries(recovery.Search(spool, tidy=tidy), ledger):
        batch.append(entry)
        rows += entry.rows
        if rows > _IMPORT_ROWS:
            commit()
            batch, rows = [], 0
    commit()


def _require_write(path: Path) -> None:
    if not os.access(path, os.W_OK, effective_ids=True):
        raise NotWritable(f"cannot write {path}", "give write permission")


def _plain(value: Any) -> Any:
    """numpy scalars and arrays in query parameters."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


