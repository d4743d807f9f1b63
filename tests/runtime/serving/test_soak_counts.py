"""What the soak counts, without a server."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import httpx
import pytest

BENCH = Path(__file__).parents[3] / "tests" / "benchmarks" / "soak_bench.py"


@pytest.fixture
def bench() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("soak_bench", BENCH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak_bench"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["soak_bench"]


@pytest.mark.parametrize(("code", "ends"), [(200, ["ok"]), (429, [])])
def test_a_client_that_means_to_leave_and_is_answered_first_asks_once(bench: ModuleType, code: int, ends: list[str]) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers["traceparent"])
        return httpx.Response(code, text="data: [DONE]\n\n")

    async def one(counts: object) -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://engine") as client:
            await bench.one_request(client, {}, "a" * 32, 0, 60.0, counts)

    counts = bench.Counts()
    asyncio.run(one(counts))
    assert len(asked) == 1
    assert dict(counts.statuses) == {code: 1}
    assert list(counts.seen.values()) == ends


def test_spans_are_held_to_what_clients_saw(bench: ModuleType) -> None:
    counts = bench.Counts(seen={"whole": "ok", "cut": "ok", "left": "cancelled", "broke": "cancelled", "gone": "ok"})
    rows = [("whole", "ok"), ("whole", "ok"), ("cut", "cancelled"), ("left", "cancelled"), ("broke", "error")]
    assert bench.judged(rows, counts) == {"spans": 5, "twice": 1, "missing": 1, "unlike": 2}


def test_a_dropped_row_of_any_kind_is_not_clean(bench: ModuleType) -> None:
    assert "dropped_rows_of_any_kind" in bench.MUST_BE_ZERO
