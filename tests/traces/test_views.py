"""Views over rows written by hand; every expected number is worked out in a comment beside it."""

from __future__ import annotations

import json
from typing import Any

import duckdb
import pytest

from traces import schema
from traces.database import insert, memory
from traces.decode import arrow_rows
from traces.table import Column, Table
from traces.views import VIEWS

S = 1_000_000_000


@pytest.fixture
def db() -> duckdb.DuckDBPyConnection:
    return memory()


def put(db: duckdb.DuckDBPyConnection, table: Table, *rows: dict[str, Any]) -> None:
    """Rows by column; what is not given is null, or nothing of its kind."""
    empty = {"i64": 0, "i32": 0, "f64": 0.0, "bool": False, "str": "", "json": "{}"}

    def value(row: dict[str, Any], column: Column) -> Any:
        if column.name in row:
            given = row[column.name]
            return json.dumps(given) if column.base == "json" and isinstance(given, dict) else given
        return None if column.nullable else empty.get(column.base, [])

    for row in rows:
        assert set(row) <= {column.name for column in table.columns}
    insert(db, table.name, arrow_rows(table, [tuple(value(row, column) for column in table.columns) for row in rows]))


def ask(db: duckdb.DuckDBPyConnection, sql: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = db.sql(sql).to_arrow_table().to_pylist()
    return rows


def test_every_view_is_there_and_empty(db: duckdb.DuckDBPyConnection) -> None:
    for name in VIEWS:
        assert ask(db, f'SELECT * FROM "{name}"') == []


def test_frontier_telescopes(db: duckdb.DuckDBPyConnection) -> None:
    # Rank 0 starts at 100, rank 1 at 110. Ends of the segments:
    #            start  attention  router  exchange  dispatch  experts  combine
    #   rank 0    100      150       160      175       190      290      330
    #   rank 1    110      140       152      175       195      235      335
    #   frontier  110      150       160      175       195      290      335
    put(
        db, schema.LAYER,
        {"step": 7, "rank": 0, "layer": 3, "ts": 100, "attention": 50, "router": 10, "exchange": 15, "dispatch": 15, "experts": 100,
         "combine": 40, "tokens_routed": 30},
        {"step": 7, "rank": 1, "layer": 3, "ts": 110, "attention": 30, "router": 12, "exchange": 23, "dispatch": 20, "experts": 40,
         "combine": 100, "tokens_routed": 10},
    )  # fmt: skip
    (row,) = ask(db, "FROM frontier")
    assert [row[n] for n in ("attention", "router", "exchange", "dispatch", "experts", "combine")] == [40, 10, 15, 20, 95, 45]
    assert row["total"] == 335 - 110 == 40 + 10 + 15 + 20 + 95 + 45
    assert (row["t_start"], row["t_end"], row["ranks"]) == (110, 335, 2)
    assert (row["mean_experts"], row["max_experts"], row["argmax_experts_rank"]) == (70.0, 100, 0)
    assert (row["rows_mean"], row["rows_max"], row["rows_argmax_rank"], row["imbalance"]) == (20.0, 30, 0, 1.5)
    assert row["last_rank"] == 0  # 290 against 235


def test_frontier_keeps_steps_stages_and_micro_batches_apart_and_survives_no_rows(db: duckdb.DuckDBPyConnection) -> None:
    for step, stage, micro in ((1, 0, 0), (1, 0, 1), (1, 1, 0), (2, 0, 0)):
        put(db, schema.LAYER, {"step": step, "stage": stage, "micro_batch": micro, "layer": 0, "rank": 0, "ts": 5})
    rows = ask(db, "FROM frontier")
    assert len(rows) == 4 and {row["imbalance"] for row in rows} == {None} and {row["total"] for row in rows} == {0}


def test_ties_go_to_the_lowest_rank(db: duckdb.DuckDBPyConnection) -> None:
    put(db, schema.LAYER, *({"rank": rank, "ts": 1, "experts": 5, "tokens_routed": 2} for rank in (3, 1, 2)))
    (row,) = ask(db, "FROM frontier")
    assert (row["argmax_experts_rank"], row["rows_argmax_rank"], row["last_rank"]) == (1, 1, 1)


def test_rank_layer(db: duckdb.DuckDBPyConnection) -> None:
    put(db, schema.LAYER, {"rank": 0, "experts": 90_000, "tokens_routed": 30}, {"rank": 1, "experts": 5_000, "tokens_routed": 0})
    # 90 us over 30 rows = 3 us a row; without rows there is no time of a row.
    assert [row["us_per_row"] for row in ask(db, "FROM rank_layer ORDER BY rank")] == [3.0, None]


def test_waits(db: duckdb.DuckDBPyConnection) -> None:
    # dispatch 1: entries 100, 130, 110 -> the last is rank 1 at 130: rank 0 waits 30, rank 2 waits 20.
    # dispatch 2: entries 200, 190, 205 -> the last is rank 2 at 205: rank 0 waits 5, rank 1 waits 15.
    # combine  1: entries 300, 300 -> a tie, the lowest rank counts as last: rank 1 waits 0.
    put(
        db, schema.COLLECTIVE,
        *({"step": 1, "rank": rank, "group": "ep", "seq": 1, "layer": 0, "op": "dispatch", "enter": enter, "exit": 150 + rank,
           "sent": [1, 2, 3], "received": [10, 20]} for rank, enter in enumerate((100, 130, 110))),
        *({"step": 1, "rank": rank, "group": "ep", "seq": 2, "layer": 0, "op": "dispatch", "enter": enter, "exit": 230} for rank, enter in
          enumerate((200, 190, 205))),
        *({"step": 1, "rank": rank, "group": "ep", "seq": 3, "layer": 0, "op": "combine", "enter": 300, "exit": 310} for rank in (0, 1)),
    )  # fmt: skip
    waits = ask(db, "SELECT rank, wait, transfer, bytes_sent, bytes_received FROM collective_wait WHERE seq = 1 ORDER BY rank")
    assert waits == [
        {"rank": 0, "wait": 30, "transfer": 20, "bytes_sent": 6, "bytes_received": 30},
        {"rank": 1, "wait": 0, "transfer": 21, "bytes_sent": 6, "bytes_received": 30},
        {"rank": 2, "wait": 20, "transfer": 22, "bytes_sent": 6, "bytes_received": 30},
    ]
    assert [tuple(row.values()) for row in ask(db, "SELECT op, rank, on_rank, wait, n FROM wait_matrix ORDER BY ALL")] == [
        ("combine", 1, 0, 0, 1),
        ("dispatch", 0, 1, 30, 1),
        ("dispatch", 0, 2, 5, 1),
        ("dispatch", 1, 2, 15, 1),
        ("dispatch", 2, 1, 20, 1),
    ]


def test_the_same_sequence_number_in_another_group_is_another_collective(db: duckdb.DuckDBPyConnection) -> None:
    put(
        db, schema.COLLECTIVE,
        {"rank": 0, "group": "ep", "seq": 1, "op": "x", "enter": 10}, {"rank": 1, "group": "ep", "seq": 1, "op": "x", "enter": 20},
        {"rank": 0, "group": "world", "seq": 1, "op": "x", "enter": 500},
    )  # fmt: skip
    assert ask(db, "SELECT rank, on_rank, wait FROM wait_matrix") == [{"rank": 0, "on_rank": 1, "wait": 10}]


def test_experts(db: duckdb.DuckDBPyConnection) -> None:
    put(
        db, schema.EXPERT_LOAD,
        {"ts": 5 * S + 1, "rank": 0, "layer": 0, "placement": 0, "tokens": [1, 2, 3], "physical": [4, 2]},
        {"ts": 5 * S + 900, "rank": 1, "layer": 0, "placement": 0, "tokens": [10, 0, 0], "physical": [7, 3]},
        {"ts": 6 * S, "rank": 0, "layer": 0, "placement": 1, "tokens": [0, 0, 5], "physical": [5, 0]},
        {"ts": 6 * S, "rank": 0, "layer": 1, "placement": 1, "tokens": [9, 9, 9], "physical": [0, 1]},
    )  # fmt: skip
    assert ask(db, "SELECT expert, tokens FROM expert_heat WHERE layer = 0 ORDER BY expert") == [
        {"expert": 0, "tokens": 11}, {"expert": 1, "tokens": 2}, {"expert": 2, "tokens": 8},
    ]  # fmt: skip
    assert ask(db, "SELECT bucket, tokens FROM expert_heat_window WHERE layer = 0 AND expert = 2 ORDER BY bucket") == [
        {"bucket": 5 * S, "tokens": 3}, {"bucket": 6 * S, "tokens": 5},
    ]  # fmt: skip
    assert [tuple(r.values()) for r in ask(db, "SELECT placement, rank, slot, rows FROM slot_heat WHERE layer = 0 ORDER BY ALL")] == [
        (0, 0, 0, 4), (0, 0, 1, 2), (0, 1, 0, 7), (0, 1, 1, 3), (1, 0, 0, 5), (1, 0, 1, 0),
    ]  # fmt: skip


def test_requests(db: duckdb.DuckDBPyConnection) -> None:
    attrs = {"moe.rank": 2, "gen_ai.usage.input_tokens": 40, "gen_ai.usage.output_tokens": 3, "moe.image_tokens": 16}
    attrs |= {"moe.cached_tokens": 24, "moe.priority": -1, "moe.preemptions": 1}
    put(
        db, schema.SPAN,
        {"trace_id": "a", "span_id": "1", "ts": 1000, "dur": 900, "name": "request", "kind": "server", "status": "ok", "attrs": attrs},
        {"trace_id": "a", "span_id": "2", "parent_id": "1", "ts": 1000, "dur": 70, "name": "queue"},
        {"trace_id": "a", "span_id": "3", "parent_id": "1", "ts": 1070, "dur": 5, "name": "image.preprocess"},
        {"trace_id": "a", "span_id": "4", "parent_id": "1", "ts": 1075, "dur": 20, "name": "image.encode"},
        {"trace_id": "a", "span_id": "5", "parent_id": "1", "ts": 1100, "dur": 100, "name": "prefill"},
        {"trace_id": "a", "span_id": "6", "parent_id": "1", "ts": 1200, "dur": 60, "name": "prefill"},
        {"trace_id": "a", "span_id": "7", "parent_id": "1", "ts": 1300, "dur": 400, "name": "decode"},
        {"trace_id": "b", "span_id": "8", "ts": 2000, "dur": 10, "name": "request", "status": "cancelled"},
        {"trace_id": "a", "span_id": "9", "ts": 990, "dur": 950, "name": "client.request", "status": "ok",
         "attrs": {"ttft_ns": 320, "tpot_ns": 45.5, "workbench.kind": "image", "workbench.phase": "before"}},
    )  # fmt: skip
    # Tokens at 1310, 1390 and 1500: the first 310 after the start; (1500 - 1310) / 2 = 95 a token after it.
    put(db, schema.TOKEN, *({"trace_id": "a", "index": index, "ts": ts} for index, ts in enumerate((1310, 1390, 1500))))
    served, cancelled = ask(db, "SELECT * EXCLUDE (attrs) FROM request ORDER BY ts")
    assert served == {
        "trace_id": "a", "ts": 1000, "dur": 900, "status": "ok", "rank": 2, "input_tokens": 40, "output_tokens": 3, "image_tokens": 16,
        "queue": 70, "tokenize": 0, "image": 25, "prefill": 160, "decode": 400, "preempted": 0, "detokenize": 0, "send": 0,
        "ttft": 310, "tpot": 95.0, "cached_tokens": 24, "priority": -1, "preemptions": 1,
    }  # fmt: skip
    assert cancelled["status"] == "cancelled"
    assert {cancelled[name] for name in ("rank", "input_tokens", "queue", "ttft", "tpot")} == {None}  # not measured is not zero
    assert ask(db, "SELECT trace_id, dur, ttft, tpot, kind, phase FROM client_request") == [
        {"trace_id": "a", "dur": 950, "ttft": 320, "tpot": 45.5, "kind": "image", "phase": "before"}
    ]
    stages = {row["name"]: (row["n"], row["p50"], row["max"], row["total"]) for row in ask(db, "FROM stage_latency")}
    assert stages["prefill"] == (2, 80.0, 100, 160) and "request" not in stages


def test_attributes_of_the_wrong_kind_are_null(db: duckdb.DuckDBPyConnection) -> None:
    put(db, schema.SPAN, {"trace_id": "a", "name": "request", "attrs": {"moe.rank": "two", "gen_ai.usage.input_tokens": None}})
    (row,) = ask(db, "SELECT rank, input_tokens FROM request")
    assert row == {"rank": None, "input_tokens": None}


def test_throughput(db: duckdb.DuckDBPyConnection) -> None:
    # Second 5: steps 1 and 2 on two ranks. Decode 4+4 and 2+2 = 12, prefill 100 + 0; running (3+1) and (1+1): (4 + 2) / 2 steps = 3.
    # Step times 10, 20, 30, 60 ms: median 25.
    rows = [(1, 0, 100, 4, 3, 10), (1, 1, 0, 4, 1, 20), (2, 0, 0, 2, 1, 30), (2, 1, 0, 2, 1, 60)]
    put(
        db, schema.STEP,
        *({"ts": 5 * S + step, "step": step, "rank": rank, "prefill_tokens": prefill, "decode_tokens": decode, "running": running,
           "waiting": rank, "dur": ms * 1_000_000} for step, rank, prefill, decode, running, ms in rows),
        {"ts": 6 * S, "step": 3, "rank": 0, "decode_tokens": 9, "dur": 1_000_000},
    )  # fmt: skip
    first, second = ask(db, "FROM throughput ORDER BY bucket")
    assert first == {
        "bucket": 5 * S, "prefill_tokens": 100, "decode_tokens": 12, "steps": 2, "step_ms_p50": 25.0, "step_ms_max": 60.0,
        "running": 3.0, "waiting": 1.0,
    }  # fmt: skip
    assert (second["bucket"], second["decode_tokens"], second["steps"]) == (6 * S, 9, 1)


def test_tokens_of_later_pipeline_stages_are_not_counted_again(db: duckdb.DuckDBPyConnection) -> None:
    for stage in (0, 1):
        put(db, schema.STEP, {"ts": S, "step": 1, "rank": stage, "stage": stage, "decode_tokens": 8, "running": 2, "dur": 1})
    (row,) = ask(db, "FROM throughput")
    assert (row["decode_tokens"], row["running"]) == (8, 2.0)


def test_memory_by_phase(db: duckdb.DuckDBPyConnection) -> None:
    put(
        db, schema.MEMORY,
        {"rank": 0, "phase": "load", "rss_anon": 5, "rss_file": 9, "rss_shmem": 1, "hwm": 20, "cgroup_anon": 6, "cgroup_limit": 100},
        {"rank": 0, "phase": "load", "rss_anon": 8, "rss_file": 2, "rss_shmem": 1, "hwm": 21, "cgroup_anon": 4, "cgroup_limit": 90},
        {"rank": None, "phase": "serve", "rss_anon": 3},
    )  # fmt: skip
    api, rank = ask(db, "FROM memory_phase ORDER BY rank NULLS FIRST")
    assert rank == {
        "rank": 0, "phase": "load", "rss_anon": 8, "rss_file": 9, "rss_shmem": 1, "hwm": 21, "cgroup_anon": 6, "cgroup_limit": 90,
        "samples": 2,
    }  # fmt: skip
    assert (api["rank"], api["cgroup_limit"], api["samples"]) == (None, None, 1)


def test_losses(db: duckdb.DuckDBPyConnection) -> None:
    put(db, schema.DROP, {"ts": 9, "resource_id": "rank0", "table": "layer", "rows": 12, "reason": "ring"})
    # Of rank1's first life 0, 1 and 4 arrived: 2 and 3 are missing. Its second life began with 1: 0 is missing. rank2 is whole.
    entries = (("rank1", "a", 0), ("rank1", "a", 1), ("rank1", "a", 4), ("rank1", "b", 1), ("rank2", "c", 0), ("rank2", "c", 1))
    put(db, schema.LEDGER, *({"producer": producer, "boot": boot, "seq": seq, "recv_ts": 7} for producer, boot, seq in entries))
    columns = 'resource_id, kind, "table", rows, boot, first_seq, last_seq, reason'
    assert [tuple(row.values()) for row in ask(db, f"SELECT {columns} FROM loss ORDER BY resource_id, boot")] == [
        ("rank0", "drop", "layer", 12, None, None, None, "ring"),
        ("rank1", "gap", None, None, "a", 2, 3, "ledger"),
        ("rank1", "gap", None, None, "b", 0, 0, "ledger"),
    ]
