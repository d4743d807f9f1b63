"""Opening a run, whatever state it is in."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from traces.database import connect
from traces.errors import NotWritable, QueryError, SchemaTooNew, StoreBusy, UnknownRun
from traces.producer import Recorder
from traces.run import Run, create_run
from traces.schema import EVENT, TABLES, TOKEN, VERSION
from traces.store import FileStore, LiveStore, open_run, write_document, write_rows
from traces.views import VIEWS

COUNT = "SELECT count(*) AS n FROM token"


def record(run: Run, rows: int = 100, producer: str = "rank0") -> None:
    with Recorder.open(run, producer) as recorder:
        write = recorder.writer(TOKEN)
        for index in range(rows):
            write(index, "a", index, 0, 0)


@pytest.fixture
def closed(run: Run) -> Run:
    """A run with a file and nothing left over."""
    record(run)
    open_run(run).close()
    run.update(state="closed")
    return run


def test_a_run_of_spools_alone_is_read_and_becomes_a_file(run: Run) -> None:
    record(run)
    with open_run(run) as store:
        assert isinstance(store, FileStore) and not store.live and store.info.id == run.id
        assert store.rows(COUNT) == [{"n": 100}]
    assert run.database.exists()


def test_an_empty_run_has_all_tables_and_views(run: Run) -> None:
    with open_run(run) as store:
        for name in [*TABLES, *VIEWS]:
            assert store.query(f'SELECT * FROM "{name}"').num_rows == 0
    assert Run(run.path).info.id == run.id


def test_a_live_run_is_asked_through_its_collector(run: Run, served: Any) -> None:
    with Recorder.open(run, "rank0") as recorder:
        recorder.row(TOKEN, trace_id="a", index=0, step=1, rank=0)
        assert recorder.flush(60)
        with open_run(run) as store:
            assert isinstance(store, LiveStore) and store.live
            assert store.rows(COUNT) == [{"n": 1}]
            assert store.rows("SELECT $a + 1 AS b", {"a": 4}) == [{"b": 5}]
            assert store.rows("SELECT ?::VARCHAR AS b", ["x"]) == [{"b": "x"}]
            assert store.query("FROM range(1000)", limit=10).num_rows == 10
            with pytest.raises(QueryError) as wrong:
                store.query("DELETE FROM token")
            assert wrong.value.hint
            with pytest.raises(QueryError, match="longer than"):
                store.query("SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b", timeout=0.2)


def test_live_and_closed_answer_alike(run: Run, served: Any) -> None:
    question = "SELECT rank, count(*) AS n, sum(index) AS total, list(index ORDER BY index)[:3] AS first FROM token GROUP BY rank"
    record(run)
    with open_run(run) as store:
        live = store.query(question)
    served.close()
    with open_run(run) as store:
        assert not store.live
        closed = store.query(question)
    assert live.schema == closed.schema and live.equals(closed)
    assert closed.to_pylist() == [{"rank": 0, "n": 100, "total": 4950, "first": [0, 1, 2]}]


def test_an_answer_is_never_cut_silently(closed: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traces.sql.MOST_ROWS", 50)
    with open_run(closed) as store:
        with pytest.raises(QueryError, match="more than 50 rows"):
            store.query("FROM token")
        assert store.query("FROM token", limit=40).num_rows == 40


def test_many_threads_may_ask_one_store(closed: Run) -> None:
    found: list[int] = []
    with open_run(closed) as store:
        threads = [threading.Thread(target=lambda: found.append(store.rows(COUNT)[0]["n"])) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [100] * 8


def test_documents_are_kept_live_and_closed(run: Run, served: Any) -> None:
    write_document(run, "workbench.plan.v1", {"schema": "workbench.plan.v1", "fits": True})
    served.close()
    write_document(run, "workbench.plan.v1", {"schema": "workbench.plan.v1", "fits": False})
    with open_run(run) as store:
        bodies = [json.loads(row["body"])["fits"] for row in store.rows("SELECT body FROM document ORDER BY ts")]
    assert bodies == [True, False]
    write_rows(run, EVENT, [(1, 0, "cli", None, "config", {"a": 1}), (2, 0, "cli", None, "config", {})], producer="cli")
    with open_run(run) as store:
        assert store.rows("SELECT count(*) AS n FROM event") == [{"n": 2}]


def test_a_folder_that_cannot_be_written_is_read_from_a_copy_with_everything_in_it(run: Run, frozen: Callable[[Path], None]) -> None:
    record(run, 60)
    open_run(run).close()
    record(run, 40, "rank1")
    before = sorted(str(path) for path in run.path.rglob("*"))
    frozen(run.path)
    with open_run(Run(run.path)) as store:
        assert store.rows(COUNT) == [{"n": 100}]
        scratch = store._scratch  # type: ignore[attr-defined]
        assert scratch is not None and scratch.exists()
    assert not scratch.exists()
    assert sorted(str(path) for path in run.path.rglob("*")) == before
    with pytest.raises(NotWritable):
        write_document(Run(run.path), "x", {})


def test_a_file_of_a_newer_version_is_refused_with_a_remedy(closed: Run) -> None:
    with duckdb.connect(str(closed.database)) as file:
        file.execute(f"UPDATE workbench_schema SET version = {VERSION + 1}")
    with pytest.raises(SchemaTooNew) as newer:
        open_run(closed)
    assert "upgrade" in newer.value.hint and str(VERSION + 1) in newer.value.message
    with pytest.raises(SchemaTooNew):
        write_document(closed, "x", {})


def test_a_run_of_a_newer_version_is_refused_before_its_store_is_opened(closed: Run) -> None:
    file = closed.path / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "schema_version": VERSION + 1}))
    with pytest.raises(SchemaTooNew):
        open_run(str(closed.path))


def test_a_file_without_views_or_with_tables_missing_is_read_all_the_same(run: Run) -> None:
    """What an earlier version wrote, before a table was added."""
    with duckdb.connect(str(run.database)) as file:
        for name in ("token", "ledger"):
            file.execute(TABLES[name].ddl)
        file.execute("INSERT INTO token VALUES (1, 'a', 0, 0, 0)")
    with open_run(run) as store:
        assert store.rows(COUNT) == [{"n": 1}]
        assert store.rows("SELECT * FROM frontier") == [] and store.rows("SELECT * FROM stack") == []


def test_a_file_held_by_another_process_is_said_so(closed: Run) -> None:
    import subprocess
    import sys

    hold = "import duckdb, sys; held = duckdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
    other = subprocess.Popen([sys.executable, "-c", hold, str(closed.database)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None and other.stdout.readline().strip() == "held"
    try:
        with pytest.raises(StoreBusy, match="held by another process"):
            open_run(closed)
    finally:
        other.communicate("")
    with open_run(closed) as store:
        assert store.rows(COUNT) == [{"n": 100}]


def test_a_damaged_file_is_rebuilt_from_the_spools(closed: Run) -> None:
    content = bytearray(closed.database.read_bytes())
    content[:4096] = bytes(4096)
    closed.database.write_bytes(content)
    with open_run(closed) as store:
        assert store.rows(COUNT) == [{"n": 100}]
    assert len(list(closed.path.glob("traces.duckdb.damaged-*"))) == 1


def test_an_unknown_run_is_an_error_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path))
    run = create_run(model="alpha")
    with pytest.raises(UnknownRun) as unknown:
        open_run(run.id[:-4] + "zzzz")
    assert run.id in unknown.value.hint


def test_leftovers_of_a_damaged_segment_do_not_stop_the_others(run: Run) -> None:
    record(run, 10)
    record(run, 10, "rank1")
    victim = next((run.path / "spool" / "rank0").glob("*/*.segment"))
    victim.write_bytes(victim.read_bytes()[:-5])
    with open_run(run) as store:
        assert store.rows(COUNT) == [{"n": 10}]
    assert victim.exists()


def test_a_copy_of_a_run_elsewhere_is_a_run(closed: Run, tmp_path: Path) -> None:
    shutil.copytree(closed.path, tmp_path / "moved")
    with open_run(str(tmp_path / "moved")) as store:
        assert store.rows(COUNT) == [{"n": 100}]


def test_a_reader_does_not_keep_a_file_that_lacks_nothing_from_other_readers(closed: Run) -> None:
    with open_run(closed) as one, open_run(closed) as other:
        assert one.rows(COUNT) == other.rows(COUNT)
    connect(closed.database).close()
