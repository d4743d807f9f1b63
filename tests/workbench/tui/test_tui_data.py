"""What the screens read, against numbers computed by hand from the story of the run."""

from __future__ import annotations

import numpy as np
import pytest

from traces.store import open_run
from workbench.tui.data import experts, logs, overview, ranks, requests
from workbench.tui.feed import RECORDED, Feed

SECOND, MS = 10**9, 10**6


@pytest.fixture
def store(shown):
    with open_run(shown) as opened:
        yield opened


def test_overview_of_the_whole_run(store):
    seen = overview.read(store, None, 0)
    assert seen.span.whole and not seen.span.live and seen.bar == SECOND
    assert len(seen.prefill) == 30
    assert set(seen.prefill) == {400.0}  # each rank 100 tokens in one step of ten
    assert set(seen.decode) == {320.0}  # 4 ranks x 8 x 10 steps
    assert (seen.running, seen.waiting, seen.dropped) == (32, 2, 12)
    assert [row.kv_used for row in seen.ranks] == [40, 50, 60, 70]
    assert [row.sync for row in seen.ranks] == [4 * MS, 4 * MS, 0, 4 * MS]
    assert [row.memory for row in seen.ranks] == [(300 + rank) << 20 for rank in range(4)]
    assert {latency.name: latency.n for latency in seen.latencies} == {"TTFT": 24, "TPOT": 24, "queue": 24, "end to end": 24}
    assert [event.kind for event in seen.events] == ["gc", "window", "config"]


def test_an_event_of_several_ranks_is_told_once():
    seen = overview._together(
        [overview.Event(9 * SECOND, (rank,), "rebalance", rank, "placement 1") for rank in (3, 1, 0)]
        + [overview.Event(9 * SECOND, (2,), "rebalance", 7, "placement 1"), overview.Event(1 * SECOND, (2,), "rebalance", 1, "placement 1")]
    )
    assert seen == (
        overview.Event(9 * SECOND, (0, 1, 2, 3), "rebalance", 7, "placement 1"),
        overview.Event(1 * SECOND, (2,), "rebalance", 1, "placement 1"),
    )


def test_overview_of_a_window_and_too_few_requests(store):
    seen = overview.read(store, 10 * SECOND, 0)
    assert not seen.span.whole and seen.span.length == 10 * SECOND
    assert [row.steps for row in seen.ranks] == [100] * 4
    ttft = seen.latencies[0]
    assert ttft.n == 4 and ttft.p50 == 100 * MS and ttft.p90 is None  # requests start at 0 ... 23 s of 29.98


def test_experts_and_who_serves_them(store):
    seen = experts.read(store, None, 0)
    even = np.arange(10, 26)
    assert seen.tokens[0].tolist() == (even * 4 * 30).tolist()  # 4 ranks, 30 windows
    assert seen.tokens[1, 9] == (10 + 9 + 100) * 4 * 30
    assert seen.rows.sum() == seen.tokens.sum()
    assert seen.slots == 4 and seen.slots_of(1, 9) == ((2, 1),)
    assert seen.rank_imbalance[1] == pytest.approx((18 + 119 + 20 + 21) / ((sum(range(10, 26)) + 100) / 4))
    assert seen.above_null.tolist() == pytest.approx([0.1, 0.9, 0.1, 0.1])
    assert experts.ratio(seen.tokens)[1, 9] == pytest.approx(119 / (380 / 16))
    assert np.isnan(experts.ratio(np.zeros((1, 4), dtype=np.int64))).all()


def test_ranks_wait_for_the_hot_one(store):
    seen = ranks.read(store, None, 0, None)
    assert seen.steps == 30
    assert [share.segments[4] for share in seen.shares] == [4 * MS, 4 * MS, 12 * MS, 4 * MS]
    assert {share.per_row for share in seen.shares} == {250_000.0}  # equal cost per row: it is the load, not the rank
    (combine,) = seen.waits
    assert combine.n == 120 and combine.last == (0.0, 0.0, 1.0, 0.0)
    assert combine.mean[:, 2].tolist() == [8 * MS, 8 * MS, 0, 8 * MS]
    assert combine.mean[:, [0, 1, 3]].sum() == 0
    assert ranks.read(store, None, 0, 3).waits[0].n == 30


def test_requests_newest_first_and_one_taken_apart(store):
    seen = requests.read(store, None)
    assert [row.trace for row in seen.rows] == [f"{i:032x}" for i in range(24, 0, -1)]
    assert seen.detail.trace == f"{24:032x}"
    chosen = requests.read(store, f"{2:032x}").detail
    assert [(stage.name, stage.bars) for stage in chosen.stages] == [
        ("queue", ((0, 20 * MS),)), ("tokenize", ((20 * MS, 25 * MS),)), ("prefill", ((25 * MS, 100 * MS),)),
        ("decode", ((100 * MS, 550 * MS),)), ("send", ((550 * MS, 560 * MS),)),
    ]  # fmt: skip
    assert chosen.tokens == tuple((100 + 50 * i) * MS for i in range(9))


def test_the_bounded_questions_agree_with_the_view(store):
    viewed = {row["trace_id"]: row for row in store.rows("SELECT * FROM request")}
    seen = requests.read(store, None).rows
    assert len(seen) == len(viewed) == 24
    for row in seen:
        same = viewed[row.trace]
        assert (row.ts, row.total, row.rank, row.status) == (same["ts"], same["dur"], same["rank"], same["status"])
        assert (row.ttft, row.tpot, row.queue) == (same["ttft"], same["tpot"], same["queue"])
        assert (row.input_tokens, row.output_tokens) == (same["input_tokens"], same["output_tokens"])
    asked = {"TTFT": "ttft", "TPOT": "tpot", "queue": "queue", "end to end": "dur"}
    for latency in overview.read(store, None, 0).latencies:
        column = asked[latency.name]
        expected = store.rows(f"SELECT count({column}) AS n, quantile_cont({column}, 0.5) AS p50, max({column}) AS worst FROM request")[0]
        assert (latency.n, latency.p50, latency.worst) == (expected["n"], expected["p50"], expected["worst"])


def test_attributes_as_words():
    assert overview.describe('{"a": 1, "b": null, "plan": {"mix": "text", "rate": null}, "none": {}, "l": []}') == "a 1  plan mix text"
    assert overview.describe(None) == "" and overview.describe('"x"') == "x"


def test_log_lines(store):
    assert [(line.level, line.source, line.message) for line in logs.read(store)] == [("WARNING", "rank1", "a log line of rank 1")]


def test_an_empty_run_is_not_an_error(tmp_path):
    from traces.run import create_run

    run = create_run(engine="workbench", model="empty", root=tmp_path, world_size=1)
    with open_run(run) as opened:
        assert overview.read(opened, None, 5 * SECOND).ranks == ()
        assert experts.read(opened, None, 5 * SECOND) is None
        assert ranks.read(opened, None, 5 * SECOND, None).waits == ()
        assert requests.read(opened, None).detail is None


def test_a_recorded_file_is_let_go_after_each_reading(shown):
    feed = Feed(lambda: open_run(shown))
    reading = feed.read(lambda store: store.rows("SELECT count(*) AS n FROM step")[0]["n"])
    assert (reading.value, reading.facts.state, reading.facts.layout) == (1200, RECORDED, "dp4 ep4")
    import duckdb

    duckdb.connect(str(shown.database)).close()  # a writer gets in
