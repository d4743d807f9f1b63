"""A full disk stops acknowledgements, loses none, and ends when there is room again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import httpx

from traces.collector.process import CollectorProcess
from traces.records import pack_row
from traces.run import create_run
from traces.schema import TOKEN
from traces.segment import build, describe

ROWS = 2000


def segment(seq: int) -> bytes:
    """Rows that do not compress."""
    rows = (pack_row(TOKEN, (seq * ROWS + index, os.urandom(16).hex(), index, seq, 0)) for index in range(ROWS))
    return build("rank0", "00aa", seq, 1, describe([TOKEN]), b"".join(rows))


def test_a_full_disk_and_room_again(small_disk: Callable[[int], Path], collect: Callable[..., CollectorProcess]) -> None:
    disk = small_disk(24 << 20)
    run = create_run(root=disk)
    blocker = disk / "blocker"
    blocker.write_bytes(bytes(12 << 20))
    collector = collect(run)
    with httpx.Client(base_url=collector.address.url, headers=collector.address.headers, timeout=120, trust_env=False) as client:
        seq, status = 0, 200
        while status == 200:
            body = segment(seq)
            response = client.post("/v1/segments", content=body)
            status = response.status_code
            seq += status == 200
            assert seq < 2000
        assert status == 503 and float(response.headers["Retry-After"]) > 0
        assert seq > 0
        blocker.unlink()
        deadline = time.monotonic() + 120
        while client.post("/v1/segments", content=body).status_code != 200:
            assert time.monotonic() < deadline, "it did not recover"
            time.sleep(0.2)
        assert client.post("/v1/segments", content=segment(seq + 1)).status_code == 200
    acknowledged = seq + 2
    assert collector.stop() == 0
    with duckdb.connect(str(run.database), read_only=True) as file:
        found = file.execute("SELECT step, count(*), count(DISTINCT ts) FROM token GROUP BY step ORDER BY step").fetchall()
    assert found == [(number, ROWS, ROWS) for number in range(acknowledged)]
