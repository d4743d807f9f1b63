from __future__ import annotations

import gc
import json
import math
import os
import signal
import sys
import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces import schema
from traces.decode import Unreadable, conform, decode
from traces.layout import layout_of
from traces.records import pack_row, record_writer
from traces.ring import Ring
from traces.schema import TABLES
from traces.segment import Segment, build, describe, parse
from traces.table import Column, Table

KINDS: dict[str, st.SearchStrategy[Any]] = {
    "i64": st.integers(-(2**63) + 1, 2**63 - 1),
    "i32": st.integers(-(2**31) + 1, 2**31 - 1),
    "f64": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "str": st.text(max_size=40),
    "json": st.dictionaries(st.text(max_size=5), st.integers(-(2**53), 2**53) | st.text(max_size=5), max_size=3),
    "u32[]": st.lists(st.integers(0, 2**32 - 1), max_size=9),
    "i64[]": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9),
    "f64[]": st.lists(st.floats(allow_nan=False), max_size=9),
    "str[]": st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=9), max_size=5),
}


def rows_of(table: Table) -> st.SearchStrategy[tuple[Any, ...]]:
    def values(column: Column) -> st.SearchStrategy[Any]:
        plain = KINDS[column.base]
        return st.none() | plain if column.nullable else plain

    return st.tuples(*(values(column) for column in table.columns))


def through(ring: Ring, tables: list[Table]) -> dict[str, list[dict[str, Any]]]:
    (segment,) = parse(build("p", "b", 0, 1, describe(tables), ring.take()[0]))
    return {name: rows.to_pylist() for name, rows in decode(segment).tables.items()}


def expected(table: Table, row: tuple[Any, ...]) -> dict[str, Any]:
    def value(column: Column, given_value: Any) -> Any:
        return json.loads(json.dumps(given_value)) if column.base == "json" and given_value is not None else given_value

    return {column.name: value(column, v) for column, v in zip(table.columns, row, strict=True)}


def parsed(table: Table, row: dict[str, Any]) -> dict[str, Any]:
    return {c.name: json.loads(row[c.name]) if c.base == "json" and row[c.name] is not None else row[c.name] for c in table.columns}


@pytest.mark.parametrize("name", list(TABLES))
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_rows_come_back_as_they_went_in(name: str, data: st.DataObject) -> None:
    table = TABLES[name]
    rows = data.draw(st.lists(rows_of(table), min_size=1, max_size=20))
    ring = Ring(None, 1 << 20)
    write = record_writer(ring, table)
    for row in rows:
        write(*row)
    assert not ring.drops
    assert ring.take()[0] == b"".join(pack_row(table, row) for row in rows)
    found = through(ring, [table])[name]
    assert [parsed(table, row) for row in found] == [expected(table, row) for row in rows]


def test_arrow_types_are_the_schema_s() -> None:
    ring = Ring(None, 1 << 20)
    record_writer(ring, schema.EXPERT_LOAD)(1, 2, 3, 0, 4, 0, 7, 100, [1, 2], np.array([3, 4], np.uint32), 0, 0, None, 1.5, float("nan"))
    (segment,) = parse(build("p", "b", 0, 1, describe([schema.EXPERT_LOAD]), ring.take()[0]))
    table = decode(segment).tables["expert_load"]
    assert table.schema == schema.EXPERT_LOAD.arrow
    (row,) = table.to_pylist()
    assert (row["tokens"], row["physical"], row["imbalance_p50"], row["imbalance_p99"]) == ([1, 2], [3, 4], None, 1.5)
    assert math.isnan(row["above_null"])  # a NaN that was measured is not a null


def test_tables_mixed_in_one_ring_are_told_apart() -> None:
    ring = Ring(None, 1 << 20)
    token, event, link = (record_writer(ring, TABLES[name]) for name in ("token", "event", "link"))
    for index in range(10):
        token(index, "t" * index, index, 1, 0)
        event(index, 0, "rank0", None, "gc", {"n": index})
        link(index, 0, 1, 8, index % 2 == 0, None, 1e9)
    rows = through(ring, [schema.TOKEN, schema.EVENT, schema.LINK])
    assert [row["trace_id"] for row in rows["token"]] == ["t" * index for index in range(10)]
    assert [json.loads(row["attrs"])["n"] for row in rows["event"]] == list(range(10))
    assert [row["concurrent"] for row in rows["link"]] == [True, False] * 5


def test_a_value_that_does_not_fit_is_counted_and_the_next_row_is_fine() -> None:
    ring = Ring(None, 1 << 20)
    token, link = record_writer(ring, schema.TOKEN), record_writer(ring, schema.LINK)
    token(1, "a", 2**40, 1, 0)
    token(1, None, 0, 1, 0)
    token("now", "a", 0, 1, 0)
    link(1, 0, 1, 8, True, "fast", None)
    token(2, "b", 0, 1, 0)
    link(2, 0, 1, 8, False, 0.5, None)
    assert ring.take_drops() == {("token", "invalid"): 3, ("link", "invalid"): 1}
    assert len(ring.take_errors()) == 4
    (segment,) = parse(build("p", "b", 0, 1, describe([schema.TOKEN, schema.LINK]), ring.take()[0]))
    decoded = decode(segment)
    assert [row["trace_id"] for row in decoded.tables["token"].to_pylist()] == ["b"]
    assert [row["latency"] for row in decoded.tables["link"].to_pylist()] == [0.5]


def test_text_no_encoding_can_carry_is_replaced() -> None:
    ring = Ring(None, 1 << 20)
    record_writer(ring, schema.LOG)(1, "r", "INFO", "l", "half \ud83d pair", None, {"a": "\ud83d"})
    record_writer(ring, schema.STACK)(1, "r", 0, "main", ["f\0g", "\ud83dx"])
    rows = through(ring, [schema.LOG, schema.STACK])
    assert rows["log"][0]["message"] == "half ? pair"
    assert rows["stack"][0]["frames"] == ["f\u2400g", "?x"]


def test_numbers_may_be_numpy_s() -> None:
    ring = Ring(None, 1 << 20)
    record_writer(ring, schema.TOKEN)(np.int64(5), "a", np.int32(1), np.uint8(2), np.int64(3))
    record_writer(ring, schema.TAP)(1, None, None, 0, 1, "x", (2, 3), "f32", np.float32(0.5), 1, 0, np.array([1, 2], np.float32))
    assert not ring.drops
    rows = through(ring, [schema.TOKEN, schema.TAP])
    assert rows["token"][0] == {"ts": 5, "trace_id": "a", "index": 1, "step": 2, "rank": 3}
    assert (rows["tap"][0]["shape"], rows["tap"][0]["rms"], rows["tap"][0]["sketch"]) == ([2, 3], 0.5, [1.0, 2.0])


def test_threads_signals_and_garbage_collection_in_the_middle_of_a_row() -> None:
    """Writers take no lock; whoever interrupts one writes whole rows of its own."""
    ring = Ring(None, 48 << 20)
    token, event = record_writer(ring, schema.TOKEN), record_writer(ring, schema.EVENT)
    extra = [0, 0]

    def on_signal(number: int, frame: object) -> None:
        extra[0] += 1
        event(extra[0], 0, "signal", None, "signal", {})

    def on_gc(phase: str, info: dict[str, int]) -> None:
        extra[1] += 1
        event(extra[1], 0, "gc", None, "gc", {"phase": phase, "list": [1, 2, 3]})

    def fill(thread: int) -> None:
        for index in range(8000):
            token(index, f"{thread}", index, 0, thread)

    previous = signal.signal(signal.SIGALRM, on_signal)
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.callbacks.append(on_gc)
    gc.set_threshold(20)
    sys.setswitchinterval(1e-5)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    try:
        threads = [threading.Thread(target=fill, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        fill(6)
        for thread in threads:
            thread.join()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        gc.callbacks.remove(on_gc)
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)
    assert not ring.drops
    rows = through(ring, [schema.TOKEN, schema.EVENT])
    for number in range(7):
        assert [row["index"] for row in rows["token"] if row["rank"] == number] == list(range(8000))
    assert len(rows["event"]) == sum(extra) and min(extra) > 0


def test_a_full_ring_counts_what_it_drops() -> None:
    ring = Ring(None, 1 << 16)
    layer, token = record_writer(ring, schema.LAYER), record_writer(ring, schema.TOKEN)
    for index in range(2000):
        layer(1, 2, 3, 4, index, 10**18, 1, 2, 3, 4, 5, 6, None, 8, 9, 10, 11, "host", None)
    dropped = ring.take_drops()
    for _ in range(100):
        token(1, "a", 0, 1, 0)
    assert not ring.drops  # detail left room for the rest
    rows = through(ring, [schema.LAYER, schema.TOKEN])
    assert dropped == {("layer", "ring"): 2000 - len(rows["layer"])} and len(rows["token"]) == 100


def segment_of(records: bytes, table: Table = schema.TOKEN) -> Segment:
    (segment,) = parse(build("p", "b", 0, 1, describe([table]), records))
    return segment


def test_a_torn_record_is_counted_not_stored() -> None:
    whole = pack_row(schema.TOKEN, (1, "abc", 0, 1, 0))
    torn = whole[:-1] + b"\0"
    rows = decode(segment_of(whole + torn + whole))
    assert rows.tables["token"].num_rows == 2 and rows.lost == {"token": 1}


def test_records_that_lie_about_their_length_are_refused() -> None:
    whole = bytearray(pack_row(schema.TOKEN, (1, "abc", 0, 1, 0)))
    layout = layout_of(schema.TOKEN)
    at = layout.dtype.fields["trace_id"][1]  # type: ignore[index]
    whole[at : at + 4] = (10_000).to_bytes(4, "little")
    with pytest.raises(Unreadable):
        decode(segment_of(bytes(whole)))


def test_text_that_is_not_utf8_is_refused() -> None:
    whole = bytearray(pack_row(schema.TOKEN, (1, "abc", 0, 1, 0)))
    whole[whole.index(b"abc")] = 0xFF
    with pytest.raises(Unreadable):
        decode(segment_of(bytes(whole)))


def test_tables_of_an_earlier_or_later_workbench() -> None:
    """Columns a later version added are null in what an earlier one wrote; columns it does not know are left out."""
    older = Table("nic", 12, "", tuple(c for c in schema.NIC.columns))
    newer = Table("token", 3, "", (*schema.TOKEN.columns, Column("colour", "str", "")))
    ring = Ring(None, 1 << 16)
    record_writer(ring, newer)(1, "abc", 0, 1, 0, "red")
    assert decode(segment_of(ring.take()[0], newer)).tables["token"].column_names == [c.name for c in schema.TOKEN.columns]
    fewer = Table("resource", 1, "", tuple(c for c in schema.RESOURCE.columns if c.name != "ep"))
    ring = Ring(None, 1 << 16)
    record_writer(ring, fewer)("rank0", 1, "h", 0, 0, 0, 0, 5, "rank", "cpu", {})
    assert decode(segment_of(ring.take()[0], fewer)).tables["resource"].to_pylist()[0]["ep"] is None
    assert older.arrow == schema.NIC.arrow
    without = pa.table({"ts": [1], "trace_id": ["a"]})
    with pytest.raises(Unreadable, match="index"):
        conform(without, "token")


def test_a_forked_child_does_not_touch_its_parent_s_ring(run: Any) -> None:
    from traces.producer import Recorder

    with Recorder.open(run, "rank0", ship=False) as recorder:
        write = recorder.writer(schema.TOKEN)
        write(1, "parent", 0, 0, 0)
        child = os.fork()
        if child == 0:
            write(2, "child", 0, 0, 0)
            recorder.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        write(3, "parent", 0, 0, 0)
    files = list((run.path / "spool" / "rank0").glob("*/*.segment"))
    rows = [row for file in files for row in decode(next(parse(file.read_bytes()))).tables["token"].to_pylist()]
    assert [row["ts"] for row in sorted(rows, key=lambda row: row["ts"])] == [1, 3]
