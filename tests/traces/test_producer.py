"""The recorder as a process uses it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from traces.decode import decode
from traces.errors import NotWritable
from traces.layout import layout_of
from traces.producer import NullRecorder, Recorder
from traces.run import Run
from traces.schema import EVENT, LAYER, MEMORY, RESOURCE, SPAN, TOKEN
from traces.segment import parse
from traces.spool import STORED, QuotaExceeded, Spool, numbers
from traces.store import open_run

Wait = Callable[..., None]


def in_spool(run: Run, producer: str = "rank0") -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for file in sorted((run.path / "spool" / producer).glob("*/*.segment")):
        for segment in parse(file.read_bytes()):
            for name, rows in decode(segment).tables.items():
                found.setdefault(name, []).extend(rows.to_pylist())
    return found


def test_rows_by_name_get_what_is_not_said(run: Run) -> None:
    with Recorder.open(run, "rank0", ship=False) as recorder:
        recorder.row(MEMORY, rank=0, phase="load", rss_anon=1, rss_file=2, rss_shmem=3, hwm=4, device_free=5)
        recorder.row(SPAN, ts=7, dur=1, trace_id="t", span_id="s", name="request", kind="server", status="ok", attrs={"a": [1, None]})
        recorder.event("gc", dur=50, generation=2)
        recorder.event("oom", rank=3)
        with pytest.raises(TypeError, match=r"token\.step is missing"):
            recorder.row(TOKEN, trace_id="a", index=0, rank=0)
        with pytest.raises(TypeError, match="no column colour"):
            recorder.row(TOKEN, trace_id="a", index=0, rank=0, step=0, colour="red")
    rows = in_spool(run)
    (memory,) = rows["memory"]
    assert memory["resource_id"] == "rank0" and memory["ts"] > 0
    assert (memory["cgroup_limit"], memory["device_free"]) == (None, 5)
    assert (rows["span"][0]["parent_id"], json.loads(rows["span"][0]["attrs"])) == (None, {"a": [1, None]})
    collected, oom = rows["event"]
    assert (collected["kind"], collected["dur"], json.loads(collected["attrs"])) == ("gc", 50, {"generation": 2})
    assert (oom["rank"], oom["attrs"]) == (3, "{}")
    assert run.database.exists() is False


def test_registering_again_writes_nothing_new(run: Run) -> None:
    with Recorder.open(run, "rank0", ship=False) as recorder:
        for _ in range(3):
            recorder.register("rank", "cpu", rank=0, dp=0, model="shapes")
        recorder.register("rank", "cuda:0", rank=0, dp=0, model="shapes")
    rows = in_spool(run)["resource"]
    assert [(row["device"], row["rank"], row["tp"], json.loads(row["attrs"])) for row in rows] == [
        ("cpu", 0, None, {"model": "shapes"}), ("cuda:0", 0, None, {"model": "shapes"}),
    ]  # fmt: skip


def test_a_closed_recorder_leaves_no_ring_and_takes_no_more(run: Run) -> None:
    recorder = Recorder.open(run, "rank0", ship=False)
    write = recorder.writer(TOKEN)
    write(1, "a", 0, 0, 0)
    recorder.close()
    write(2, "a", 0, 0, 0)
    recorder.event("late")
    recorder.close()
    assert not recorder.flush()
    assert list((run.path / "spool" / "rank0").glob("*.ring")) == []
    assert len(in_spool(run)["token"]) == 1


AT_EXIT = """
import sys
from pathlib import Path
from traces.producer import Recorder
from traces.run import Run
from traces.schema import TOKEN
recorder = Recorder.open(Run(Path(sys.argv[1])), "rank0", ship=False, interval=3600)
recorder.writer(TOKEN)(1, "a", 0, 0, 0)
"""


def test_a_process_that_forgets_to_close_loses_nothing(run: Run) -> None:
    subprocess.run([sys.executable, "-c", AT_EXIT, str(run.path)], check=True)
    assert len(in_spool(run)["token"]) == 1
    assert list((run.path / "spool" / "rank0").glob("*.ring")) == []


def test_every_life_of_a_producer_numbers_its_own(run: Run, served: Any) -> None:
    for life in range(3):
        with Recorder.open(run, "rank0") as recorder:
            recorder.row(TOKEN, trace_id=str(life), index=0, step=0, rank=0)
            assert recorder.flush(60)
    with open_run(run) as store:
        assert store.rows("SELECT count(DISTINCT boot) AS lives, count(*) AS n FROM ledger WHERE seq = 0") == [{"lives": 3, "n": 3}]
        assert store.rows("SELECT * FROM loss") == []


def test_what_an_earlier_life_could_not_ship_is_brought_in(run: Run, collect: Callable[..., Any], eventually: Wait) -> None:
    with Recorder.open(run, "rank0", ship=False) as recorder:
        recorder.row(TOKEN, trace_id="first", index=0, step=0, rank=0)
    collector = collect(run)
    with Recorder.open(run, "rank0") as recorder, open_run(run) as store:
        recorder.row(TOKEN, trace_id="second", index=0, step=0, rank=0)
        assert recorder.flush(60)
        eventually(lambda: store.rows("SELECT count(*) AS n FROM token") == [{"n": 2}])
        assert [row["trace_id"] for row in store.rows("SELECT trace_id FROM token ORDER BY ts")] == ["first", "second"]
    collector.stop()
    assert len(list(run.path.glob(f"spool/rank0/*/{STORED}"))) == 2


def test_names_that_would_leave_the_folder_are_refused(run: Run) -> None:
    for name in ("", "..", "a/b", ".hidden", "a b", "x" * 200, "ä"):
        with pytest.raises(ValueError, match="producer name"):
            Recorder.open(run, name)


def test_a_run_that_cannot_be_written_is_said_at_once(tmp_path: Path, run: Run) -> None:
    (run.path / "spool").rmdir()
    (run.path / "spool").write_text("in the way")
    with pytest.raises((NotWritable, FileExistsError)):
        Recorder.open(run, "rank0")


def test_a_disk_without_room_costs_rows_and_never_the_process(run: Run, small_disk: Callable[[int], Path], eventually: Wait) -> None:
    disk = small_disk(3 << 20)
    folder = run.path / "spool" / "rank0"
    folder.symlink_to(disk, target_is_directory=True)
    recorder = Recorder.open(run, "rank0", ship=False, ring_bytes=1 << 20, interval=0.02)
    write = recorder.writer(TOKEN)
    while recorder.dropped == 0:
        for index in range(500):
            write(index, "a" * 64, index, 0, 0)
    lost = sum(recorder.ring.drops.values())
    assert lost > 0
    recorder.close()
    assert recorder.ring.durable


def test_room_on_the_disk_again_brings_everything_and_the_count_of_what_was_lost(
    run: Run, small_disk: Callable[[int], Path], eventually: Wait
) -> None:
    disk = small_disk(4 << 20)
    (run.path / "spool" / "rank0").symlink_to(disk, target_is_directory=True)
    recorder = Recorder.open(run, "rank0", ship=False, ring_bytes=1 << 20, interval=0.02)
    blocker = disk / "blocker"
    blocker.write_bytes(bytes(2900 << 10))
    write = recorder.writer(TOKEN)
    written = 0
    while recorder.dropped == 0:
        for _ in range(500):
            write(written, "a" * 64, written % 1000, 0, 0)
            written += 1
    blocker.unlink()
    eventually(lambda: recorder.dropped == 0)
    recorder.close()
    rows = in_spool(run)
    lost = sum(row["rows"] for row in rows["drop"])
    assert {(row["table"], row["reason"]) for row in rows["drop"]} == {("token", "ring")}
    assert len(rows["token"]) + lost == written
    kept = [row["ts"] for row in rows["token"]]
    assert kept == sorted(set(kept))


def test_a_ring_that_does_not_fit_on_the_disk_lives_in_memory(run: Run, small_disk: Callable[[int], Path]) -> None:
    (run.path / "spool" / "rank0").symlink_to(small_disk(1 << 20), target_is_directory=True)
    with Recorder.open(run, "rank0", ship=False, ring_bytes=8 << 20) as recorder:
        assert not recorder.ring.durable
        recorder.row(TOKEN, trace_id="a", index=0, step=0, rank=0)
    assert len(in_spool(run)["token"]) == 1


def test_the_quota_drops_detail_first_and_counts_it(run: Run, eventually: Wait) -> None:
    recorder = Recorder.open(run, "rank0", ship=False, interval=0.02, quota=200_000)
    layer, token = recorder.writer(LAYER), recorder.writer(TOKEN)
    written = {"layer": 0, "token": 0}
    while not any(reason == "quota" for _, reason in recorder.ring.drops):
        for index in range(50):
            layer(1, 0, 0, 0, index, 1, 1, 2, 3, 4, 5, 6, None, None, 1, 2, 3, "host", None)
            token(1, "a", index, 0, 0)
        written = {name: count + 50 for name, count in written.items()}
        recorder.flush(5)  # segments stay small, so that one without detail still fits
    recorder.close()
    rows = in_spool(run)
    lost = {name: sum(count for (table, _), count in recorder.ring.drops.items() if table == name) for name in written}
    lost = {name: count + sum(row["rows"] for row in rows.get("drop", []) if row["table"] == name) for name, count in lost.items()}
    over_quota = {name: recorder.ring.drops.get((name, "quota"), 0) for name in written}
    for row in rows.get("drop", []):
        over_quota[row["table"]] += row["rows"] if row["reason"] == "quota" else 0
    assert over_quota["layer"] > over_quota["token"]
    assert {name: len(rows.get(name, [])) + lost[name] for name in written} == written
    assert sum(file.stat().st_size for file in run.path.glob("spool/rank0/*/*.segment")) <= 200_000


def test_acknowledged_segments_make_room_for_new_ones(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "p", "00aa", quota=1000)
    for seq in range(3):
        spool.acknowledge(spool.write(seq, bytes(300)))
    spool.write(3, bytes(300))
    assert numbers(tmp_path / "p" / "00aa") == [1, 2, 3]
    spool.write(4, bytes(700))
    assert numbers(tmp_path / "p" / "00aa") == [3, 4]
    with pytest.raises(QuotaExceeded):
        spool.write(5, bytes(10))
    assert numbers(tmp_path / "p" / "00aa") == [3, 4]


def test_what_an_earlier_life_left_makes_room_once_it_is_stored(tmp_path: Path) -> None:
    Spool(tmp_path / "p", "00aa", quota=1000).write(0, bytes(900))
    with pytest.raises(QuotaExceeded):
        Spool(tmp_path / "p", "00bb", quota=1000).write(0, bytes(200))
    (tmp_path / "p" / "00aa" / STORED).touch()
    Spool(tmp_path / "p", "00cc", quota=1000).write(0, bytes(200))
    assert (numbers(tmp_path / "p" / "00aa"), numbers(tmp_path / "p" / "00cc")) == ([], [0])


def test_losses_reach_the_store(run: Run, served: Any) -> None:
    with Recorder.open(run, "rank0", ring_bytes=1 << 16, interval=3600) as recorder:
        recorder.writer(TOKEN)("x", "y", "z", None, None)
        for index in range(3000):
            recorder.writer(TOKEN)(index, "a" * 32, index, 0, 0)
        assert recorder.flush(60)
        with open_run(run) as store:
            (stored,) = store.rows("SELECT count(*) AS n FROM token")
            losses = store.rows('SELECT kind, "table", rows, reason FROM loss ORDER BY reason')
    assert losses == [
        {"kind": "drop", "table": "token", "rows": 1, "reason": "invalid"},
        {"kind": "drop", "table": "token", "rows": 3000 - stored["n"], "reason": "ring"},
    ]


def test_a_segment_the_collector_cannot_read_is_set_aside_and_counted(run: Run, served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a collector is older than its producer."""
    with Recorder.open(run, "rank0", interval=3600) as recorder:
        recorder.row(TOKEN, trace_id="a", index=0, step=0, rank=0)
        monkeypatch.setattr("traces.decode.VERSION", 0)
        recorder.flush(3)
        monkeypatch.undo()
        recorder.row(TOKEN, trace_id="b", index=0, step=0, rank=0)
        assert recorder.flush(60)
        with open_run(run) as store:
            assert [row["trace_id"] for row in store.rows("SELECT trace_id FROM token")] == ["b"]
            assert store.rows("SELECT reason FROM loss WHERE kind = 'drop'") == [{"reason": "rejected"}]


def test_clock_offsets_of_one_host_are_nothing(run: Run, served: Any, monkeypatch: pytest.MonkeyPatch, eventually: Wait) -> None:
    monkeypatch.setattr("traces.clock.WINDOW_NS", 0)
    with Recorder.open(run, "rank0", interval=0.05) as recorder, open_run(run) as store:
        recorder.event("tick")
        eventually(lambda: store.rows("SELECT count(*) AS n FROM clock_offset")[0]["n"] > 2)
        rows = store.rows("SELECT * FROM clock_offset")
    assert all(abs(row["offset"]) <= row["error"] for row in rows)


def test_telemetry_off_has_the_same_surface() -> None:
    recorder = NullRecorder()
    with recorder:
        recorder.writer(EVENT)(1, 2, 3)
        recorder.row(RESOURCE, nothing=1)
        recorder.event("x")
        recorder.register("rank")
        assert recorder.flush()
    assert {name for name in vars(Recorder) if not name.startswith("_")} - {"open"} <= set(dir(NullRecorder))


def test_layouts_leave_no_holes() -> None:
    for table in (TOKEN, LAYER, SPAN):
        layout = layout_of(table)
        assert layout.packer((layout.fixed + 8) >> 3).size % 8 == 0
