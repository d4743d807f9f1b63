"""The collector's HTTP surface, asked by a plain HTTP client."""

from __future__ import annotations

import gzip
import io
import stat
import threading
import zlib
from collections.abc import Callable
from typing import Any

import httpx
import psutil
import pyarrow as pa
import pytest

from traces import schema
from traces.collector.process import CollectorProcess, start
from traces.collector.writer import MOST_QUEUED, Overloaded, Unavailable, Writer
from traces.database import Entry
from traces.decode import decode
from traces.errors import Unreachable, UsageError
from traces.records import pack_row
from traces.run import Run
from traces.segment import build, describe, parse
from traces.store import open_run
from traces.table import Table

Wait = Callable[..., None]


def tokens(count: int, first: int = 0) -> bytes:
    return b"".join(pack_row(schema.TOKEN, (index, "a" * 32, index, 0, 0)) for index in range(first, first + count))


def segment(seq: int, records: bytes, producer: str = "rank0", boot: str = "00aa", table: Table = schema.TOKEN) -> bytes:
    return build(producer, boot, seq, 1, describe([table]), records)


def count(client: httpx.Client, table: str = "token") -> int:
    return int(ask(client, f'SELECT count(*) AS n FROM "{table}"')[0]["n"])


def ask(client: httpx.Client, sql: str, **more: Any) -> list[dict[str, Any]]:
    response = client.post("/v1/sql", json={"sql": sql, **more})
    assert response.status_code == 200, response.text
    rows: list[dict[str, Any]] = pa.ipc.open_stream(io.BytesIO(response.content)).read_all().to_pylist()
    return rows


def test_it_listens_on_loopback_alone_and_says_where(run: Run, collector: CollectorProcess) -> None:
    address = run.collector()
    assert address == collector.address
    listening = [c.laddr for c in psutil.Process(collector.pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert [(where.ip, where.port) for where in listening] == [("127.0.0.1", address.port)]
    token = run.path / "collector.token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600 and len(token.read_text()) >= 40


@pytest.mark.parametrize("path", ["/v1/segments", "/v1/arrow", "/v1/sql"])
@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic abc"}, {"Authorization": "Bearer"}])
def test_without_the_token_nothing_is_answered(client: httpx.Client, path: str, header: dict[str, str]) -> None:
    del client.headers["Authorization"]
    assert client.post(path, content=b"{}", headers=header).status_code == 401


def test_health_is_open_and_says_little(client: httpx.Client) -> None:
    del client.headers["Authorization"]
    assert client.get("/healthz").json() == {"status": "ok", "rows": 0, "commits": 0}
    assert client.get("/v1/sql").status_code == 405
    assert client.get("/../etc/passwd").status_code == 404


def test_rows_are_there_when_the_answer_is(client: httpx.Client) -> None:
    answer = client.post("/v1/segments", content=segment(0, tokens(100)))
    assert answer.status_code == 200 and answer.json()["rejected"] == []
    assert 0 < answer.json()["received"] <= answer.json()["answered"]
    assert count(client) == 100
    assert ask(client, "SELECT producer, boot, seq, rows FROM ledger") == [{"producer": "rank0", "boot": "00aa", "seq": 0, "rows": 100}]


def test_a_duplicate_changes_nothing(client: httpx.Client) -> None:
    body = segment(0, tokens(10)) + segment(1, tokens(10, 10))
    for content in (body, body, body + body, segment(1, tokens(10, 10)), segment(0, tokens(99))):
        assert client.post("/v1/segments", content=content).status_code == 200
    assert count(client) == 20 and count(client, "ledger") == 2
    assert client.post("/v1/segments", content=segment(0, tokens(5), boot="00bb")).status_code == 200
    assert count(client) == 25  # another life of the producer numbers anew


def test_the_same_segment_from_many_at_once_is_stored_once(served: Any, client: httpx.Client) -> None:
    statuses: list[int] = []

    def post() -> None:
        with httpx.Client(headers=served.address.headers, timeout=60, trust_env=False) as own:
            statuses.append(own.post(f"{served.address.url}/v1/segments", content=segment(0, tokens(50))).status_code)

    threads = [threading.Thread(target=post) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 12 and count(client) == 50


def test_a_body_that_is_torn_or_too_large_is_refused(client: httpx.Client) -> None:
    whole = segment(0, tokens(10))
    for content in (whole[:-1], whole + b"x", b"hello", whole[:40] + b"\0" + whole[41:]):
        assert client.post("/v1/segments", content=content).status_code == 400
    assert client.post("/v1/segments", content=bytes(65 << 20)).status_code == 413
    assert client.post("/v1/sql", content=bytes(5 << 20)).status_code == 413
    assert count(client) == 0 and client.get("/healthz").status_code == 200


def test_a_gzip_body_that_claims_to_be_huge_is_refused(client: httpx.Client) -> None:
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(300)) + packer.flush()
    assert len(bomb) < 1 << 20
    headers = {"Content-Encoding": "gzip"}
    assert client.post("/v1/segments", content=bomb, headers=headers).status_code == 413
    assert client.post("/v1/segments", content=b"not gzip", headers=headers).status_code == 400
    assert client.post("/v1/segments", content=segment(0, b""), headers={"Content-Encoding": "br"}).status_code == 415
    assert client.post("/v1/segments", content=gzip.compress(segment(0, tokens(3))), headers=headers).status_code == 200
    assert count(client) == 3


def test_one_unreadable_segment_does_not_hold_up_the_others(client: httpx.Client) -> None:
    damaged = pack_row(schema.TOKEN, (1, "abc", 0, 1, 0)).replace(b"abc", b"\xff\xfe\xfd")
    answer = client.post("/v1/segments", content=segment(0, tokens(5)) + segment(1, damaged) + segment(2, tokens(5, 5)))
    assert answer.json()["rejected"] == [1]
    assert count(client) == 10


def test_text_in_a_json_column_that_is_not_json_is_kept_as_text(client: httpx.Client) -> None:
    rows = [(1, 0, "rank0", None, "config", attrs) for attrs in ('{"a": 1}', "{a: oops", "plain")]
    records = b"".join(pack_row(schema.EVENT, row) for row in rows)
    body = segment(0, records, table=schema.EVENT) + segment(1, tokens(5))
    assert client.post("/v1/segments", content=body).json()["rejected"] == []
    assert {row["attrs"] for row in ask(client, "SELECT attrs FROM event")} == {'{"a": 1}', '"{a: oops"', '"plain"'}
    assert count(client) == 5


def test_a_gap_is_reported_until_it_is_filled(client: httpx.Client, eventually: Wait) -> None:
    for seq in (0, 3, 4):
        client.post("/v1/segments", content=segment(seq, tokens(1, seq)))
    gap = "SELECT resource_id, kind, boot, first_seq, last_seq FROM loss"
    assert ask(client, gap) == [{"resource_id": "rank0", "kind": "gap", "boot": "00aa", "first_seq": 1, "last_seq": 2}]
    eventually(lambda: count(client, "event") == 1)
    assert ask(client, "SELECT resource_id, kind, attrs FROM event") == [
        {"resource_id": "rank0", "kind": "gap", "attrs": '{"boot":"00aa","first":1,"last":2}'}
    ]
    for seq in (1, 2):
        client.post("/v1/segments", content=segment(seq, tokens(1, seq)))
    assert ask(client, gap) == [] and count(client) == 5


def arrow(table: Table, rows: list[dict[str, Any]], drop: tuple[str, ...] = ()) -> bytes:
    fields = [field for field in table.arrow if field.name not in drop]
    wanted = pa.schema(fields, metadata={"table": table.name})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, wanted) as writer:
        writer.write_table(pa.Table.from_pylist(rows, schema=wanted))
    return sink.getvalue()


def test_arrow_streams_are_taken_with_their_number(client: httpx.Client) -> None:
    token = {"ts": 1, "trace_id": "a", "index": 0, "step": 0, "rank": 3}
    link = {"ts": 1, "src": 0, "dst": 1, "size": 8, "concurrent": False}
    body = arrow(schema.TOKEN, [token, token]) + arrow(schema.LINK, [link], drop=("latency", "bandwidth"))
    headers = {"X-Producer": "importer", "X-Boot": "0001", "X-Seq": "0"}
    for _ in range(2):
        assert client.post("/v1/arrow", content=body, headers=headers).status_code == 200
    assert ask(client, "SELECT * FROM link") == [{**link, "latency": None, "bandwidth": None}]
    assert count(client) == 2
    assert client.post("/v1/arrow", content=body).status_code == 400
    again = {**headers, "X-Seq": "1"}
    assert client.post("/v1/arrow", content=b"junk", headers=again).status_code == 422
    assert client.post("/v1/arrow", content=arrow(schema.TOKEN, [], drop=("step",)), headers=again).status_code == 422


def test_questions_that_cannot_be_answered_say_why(client: httpx.Client) -> None:
    for body in (b"", b"{}", b'{"sql": 5}', b"[1]"):
        assert client.post("/v1/sql", content=body).status_code == 400
    wrong = client.post("/v1/sql", json={"sql": "SELECT nothing FROM token"})
    assert wrong.status_code == 400 and "nothing" in wrong.json()["message"] and wrong.json()["hint"]


def test_a_long_question_does_not_keep_others_from_being_answered(served: Any, client: httpx.Client) -> None:
    endless = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"
    answered: list[int] = []

    def long_one() -> None:
        with httpx.Client(headers=served.address.headers, timeout=120, trust_env=False) as own:
            answered.append(own.post(f"{served.address.url}/v1/sql", json={"sql": endless, "timeout": 4}).status_code)

    thread = threading.Thread(target=long_one)
    thread.start()
    assert client.post("/v1/segments", content=segment(0, tokens(10))).status_code == 200
    assert count(client) == 10
    thread.join()
    assert answered == [400]


def test_patient_rows_share_a_commit_and_whoever_hurries_takes_them_along(served: Any, client: httpx.Client) -> None:
    def post(seq: int, headers: dict[str, str]) -> None:
        assert client.post("/v1/segments", content=segment(seq, tokens(5, seq * 5)), headers=headers).status_code == 200

    post(0, {})
    threads = [threading.Thread(target=post, args=(seq, {"X-Patient": "1"})) for seq in range(1, 6)]
    before = served.writer.commits
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert served.writer.commits - before < 5
    assert count(client) == 30


def test_it_ends_cleanly_and_the_file_is_then_an_ordinary_one(run: Run, collector: CollectorProcess) -> None:
    at = collector.address
    posted = httpx.post(f"{at.url}/v1/segments", content=segment(0, tokens(7)), headers=at.headers, timeout=120)
    assert posted.status_code == 200
    assert run.info.state == "running" and run.state == "running"
    assert collector.stop() == 0
    assert run.collector() is None and run.info.state == "closed"
    assert not (run.path / "collector.json").exists() and not (run.path / "traces.duckdb.wal").exists()
    with open_run(run) as store:
        assert store.rows("SELECT count(*) AS n FROM token") == [{"n": 7}]


def test_two_collectors_of_one_run(run: Run, collector: CollectorProcess) -> None:
    with pytest.raises(Unreachable, match="held by another process"):
        start(run)
    assert run.collector() == collector.address


def test_a_port_that_is_taken_is_said(run: Run, collector: CollectorProcess, tmp_path: Any) -> None:
    from traces.run import create_run

    with pytest.raises(Unreachable, match="cannot listen"):
        start(create_run(root=tmp_path / "others"), port=collector.address.port)
    assert issubclass(UsageError, Exception)


def entry(seq: int, rows: int) -> Entry:
    (parsed,) = parse(segment(seq, tokens(rows)))
    return Entry(parsed.key, decode(parsed).tables)


def test_more_than_it_may_hold_is_refused_until_there_is_room(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traces.collector.writer.MOST_QUEUED", entry(0, 1000).size * 2)
    writer = Writer(run.database)
    hold, go = threading.Event(), threading.Event()

    def slow(*given: Any) -> None:
        hold.set()
        go.wait(60)

    monkeypatch.setattr("traces.collector.writer.write", slow)
    first = writer.submit(entry(0, 1000))
    hold.wait(60)
    second = writer.submit(entry(1, 1000))
    with pytest.raises(Overloaded):
        writer.submit(entry(2, 1000))
    go.set()
    assert first.result(60) and second.result(60)
    assert writer.submit(entry(2, 1000)).result(60)
    writer.close()
    with pytest.raises(Unavailable):
        writer.submit(entry(3, 1))
    assert MOST_QUEUED > 64 << 20
