"""The promise, on the real thing: nothing acknowledged is lost, nothing is there twice, and every loss is counted."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest

from traces.collector.process import CollectorProcess
from traces.producer import Recorder
from traces.run import Run
from traces.schema import TOKEN
from traces.store import open_run

SCRIPT = Path(__file__).with_name("load_producer.py")
Wait = Callable[..., None]
Collect = Callable[..., CollectorProcess]
Produce = Callable[..., "Producer"]


class Producer:
    """A load_producer process and what it has said so far."""

    def __init__(self, run: Run, name: str, limit: int | None = None) -> None:
        arguments = [str(run.path), name, *([str(limit)] if limit else [])]
        self.process = subprocess.Popen([sys.executable, str(SCRIPT), *arguments], stdout=subprocess.PIPE, text=True)
        self.said = {"acked": 0, "wrote": 0}
        self._reader = threading.Thread(target=self._listen)
        self._reader.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            word, _, number = line.partition(" ")
            if number.endswith("\n"):
                self.said[word] = int(number)

    def kill(self) -> None:
        self.process.kill()
        self.finish()

    def finish(self) -> int:
        code = self.process.wait(120)
        self._reader.join()
        return code


@pytest.fixture
def produce(run: Run) -> Iterator[Callable[..., Producer]]:
    started: list[Producer] = []

    def begin(name: str, limit: int | None = None) -> Producer:
        started.append(Producer(run, name, limit))
        return started[-1]

    yield begin
    for producer in started:
        if producer.process.poll() is None:
            producer.kill()


PER_RANK = "SELECT rank, count(*), count(DISTINCT index), min(index), max(index) FROM token GROUP BY rank ORDER BY rank"


def in_file(run: Run) -> dict[int, tuple[int, int, int, int]]:
    """Rows, distinct rows, first and last index per rank, read from the file alone: no spool, no ring."""
    with duckdb.connect(str(run.database), read_only=True) as file:
        return {row[0]: row[1:] for row in file.execute(PER_RANK).fetchall()}


def test_kill_9_of_the_collector_under_load(run: Run, collect: Collect, produce: Produce, eventually: Wait) -> None:
    collector = collect(run)
    producers = [produce(f"rank{rank}") for rank in range(4)]
    for _ in range(3):
        eventually(lambda: all(p.said["acked"] > 0 for p in producers))
        before = [p.said["acked"] for p in producers]
        eventually(lambda before=before: all(p.said["acked"] > b + 2000 for p, b in zip(producers, before, strict=True)))
        acknowledged = [p.said["acked"] for p in producers]
        collector.kill()
        found = in_file(run)
        for rank, low in enumerate(acknowledged):
            rows, distinct, first, last = found[rank]
            assert rows == distinct == last + 1 - first, "a row is there twice, or missing"
            assert first == 0 and rows >= low
        collector = collect(run)
    for producer in producers:
        producer.kill()
    last_words = [(p.said["acked"], p.said["wrote"]) for p in producers]
    assert collector.stop() == 0
    with open_run(run) as store:
        assert not store.live
        rows = store.query(PER_RANK).to_pylist()
        for row, (acked, wrote) in zip(rows, last_words, strict=True):
            count, distinct, first, last = list(row.values())[1:]
            assert count == distinct == last + 1 and first == 0 and count >= max(acked, wrote)
        assert store.rows("SELECT * FROM loss") == []
        assert store.rows("SELECT 1 FROM ledger GROUP BY producer, boot, seq HAVING count(*) > 1") == []


def test_a_restarted_collector_gets_what_waited_for_it(run: Run, collect: Collect, produce: Produce, eventually: Wait) -> None:
    first = collect(run)
    producer = produce("rank0", 12_000)
    eventually(lambda: producer.said["acked"] > 0)
    first.kill()
    eventually(lambda: len(list((run.path / "spool" / "rank0").glob("*/*.segment"))) > 2)
    second = collect(run)
    assert second.address.port != 0
    assert producer.finish() == 0
    assert producer.said["acked"] == 12_000
    with open_run(run) as store:
        assert store.live
        assert store.rows("SELECT count(*) AS n, count(DISTINCT index) AS d FROM token") == [{"n": 12_000, "d": 12_000}]


def test_kill_9_of_a_producer_without_a_collector(run: Run, produce: Produce, eventually: Wait) -> None:
    """Its last rows are in ring and spool; opening the run finds them, and opening it again finds them once."""
    producer = produce("rank0")
    eventually(lambda: producer.said["wrote"] > 4000)
    producer.kill()
    for _ in range(2):
        with open_run(run) as store:
            (row,) = store.rows("SELECT count(*) AS n, count(DISTINCT index) AS d, max(index) AS last FROM token")
            assert row["n"] == row["d"] == row["last"] + 1 and row["n"] >= producer.said["wrote"]
    assert list((run.path / "spool").glob("*/*.ring")) == []


def test_kill_9_of_a_producer_while_the_collector_lives(
    run: Run, collector: CollectorProcess, produce: Produce, eventually: Wait
) -> None:
    producer = produce("rank0")
    eventually(lambda: producer.said["acked"] > 0)
    producer.kill()
    with open_run(run) as store:
        assert store.live
        eventually(lambda: store.rows("SELECT coalesce(max(index), -1) + 1 AS n FROM token")[0]["n"] >= producer.said["wrote"])
        eventually(lambda: list((run.path / "spool").glob("*/*.ring")) == [])
        (row,) = store.rows("SELECT count(*) AS n, max(index) AS last FROM token")
        assert row["n"] == row["last"] + 1


def test_a_lost_store_is_rebuilt_from_the_spools(run: Run, collector: CollectorProcess) -> None:
    with Recorder.open(run, "rank0") as recorder:
        for index in range(500):
            recorder.writer(TOKEN)(index, "a", index, 0, 0)
        assert recorder.flush(30)
    collector.kill()
    for file in run.path.glob("traces.duckdb*"):
        file.unlink()
    with open_run(run) as store:
        assert store.rows("SELECT count(*) AS n FROM token") == [{"n": 500}]


def test_a_wal_that_lost_its_end_is_completed_from_the_spool(run: Run, collector: CollectorProcess) -> None:
    """Everything before the damage stays, everything after it comes back from the spool."""
    with Recorder.open(run, "rank0") as recorder:
        for batch in range(5):
            for index in range(100):
                recorder.writer(TOKEN)(index, "a", batch * 100 + index, 0, 0)
            assert recorder.flush(30)
    collector.kill()
    wal = run.path / "traces.duckdb.wal"
    content = bytearray(wal.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = bytes(64)
    wal.write_bytes(content)
    with open_run(run) as store:
        assert store.rows("SELECT count(*) AS n, count(DISTINCT index) AS d FROM token") == [{"n": 500, "d": 500}]


def test_a_missing_segment_is_reported(run: Run, collect: Collect, eventually: Wait) -> None:
    recorder = Recorder.open(run, "rank0")
    for index in range(3):
        recorder.writer(TOKEN)(index, "a", index, 0, 0)
        assert not recorder.flush(0.2)  # nobody to acknowledge: a segment a time
    segments = sorted((run.path / "spool" / "rank0").glob("*/*.segment"))
    assert len(segments) == 3
    segments[1].unlink()
    collector = collect(run)
    assert recorder.flush(30)
    with open_run(run) as store:
        (gap,) = store.rows("SELECT resource_id, kind, first_seq, last_seq, reason FROM loss")
        assert gap == {"resource_id": "rank0", "kind": "gap", "first_seq": 1, "last_seq": 1, "reason": "ledger"}
        eventually(lambda: store.rows("SELECT count(*) AS n FROM event WHERE kind = 'gap' AND resource_id = 'rank0'")[0]["n"] == 1)
    recorder.close()
    collector.stop()
    assert "missing" in (run.path / "logs" / "collector.log").read_text()
