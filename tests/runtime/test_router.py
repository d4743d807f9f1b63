"""Routing by queued and cached tokens, and the bound on requests inside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from runtime.server.backpressure import EVERY_NS, LONGEST, Backpressure
from runtime.server.errors import ApiError
from runtime.server.router import Router

SECOND = 1_000_000_000


@dataclass
class Rank:
    rank: int
    outstanding: int = 0
    taken: int = 0


def digests(*names: str) -> list[bytes]:
    return [name.encode() for name in names]


def test_the_least_loaded_rank_is_chosen_and_of_equals_the_least_used() -> None:
    router = Router(3, 16)
    assert router.choose([Rank(0, 50), Rank(1, 20, taken=9), Rank(2, 20, taken=3)], [], 10).rank == 2


def test_cached_tokens_count_as_computed() -> None:
    router = Router(2, 16)
    router.sent(1, digests("a", "b", "c"), capacity=100)
    loads = [Rank(0, outstanding=20), Rank(1, outstanding=50)]
    route = router.choose(loads, digests("a", "b", "x"), 48)
    assert (route.rank, route.cached, route.queued) == (1, 32, 50)
    assert router.choose(loads, digests("a", "y", "x"), 48).rank == 0, "16 tokens less do not make up for 30 more in the queue"
    assert router.choose(loads, digests("x"), 48).cached == 0


def test_a_whole_prompt_in_the_cache_still_costs_a_token() -> None:
    router = Router(1, 16)
    router.sent(0, digests("a"), capacity=100)
    assert router.choose([Rank(0)], digests("a"), 16).cached == 15


def test_no_more_is_remembered_than_a_rank_can_hold() -> None:
    router = Router(1, 16)
    router.sent(0, digests("a", "b"), capacity=3)
    router.sent(0, digests("c", "d"), capacity=3)
    assert router.choose([Rank(0)], digests("a", "b"), 64).cached == 0
    router.sent(0, digests("c", "d"), capacity=3)
    assert router.choose([Rank(0)], digests("c", "d"), 64).cached == 32
    router.forget()
    assert router.choose([Rank(0)], digests("c", "d"), 64).cached == 0


class Events:
    """Keeps what would be recorded."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def event(self, kind: str, **attributes: Any) -> None:
        self.rows.append({"kind": kind, **attributes})


@dataclass
class Clock:
    now: int = 0

    def __call__(self) -> int:
        return self.now


def refused(pressure: Backpressure) -> ApiError:
    with pytest.raises(ApiError) as caught:
        pressure.enter()
    return caught.value


def test_a_full_server_refuses_and_says_when_to_come_back() -> None:
    clock, events = Clock(), Events()
    pressure = Backpressure(2, events, clock)  # type: ignore[arg-type]
    pressure.enter()
    pressure.enter()
    error = refused(pressure)
    assert (error.status, error.code, error.retry_after) == (429, "queue_full", 1)
    for _ in range(5):  # one leaves every eight seconds
        clock.now += 8 * SECOND
        pressure.leave()
        pressure.enter()
    assert refused(pressure).retry_after in (7, 8)
    clock.now += 1000 * SECOND
    assert refused(pressure).retry_after == LONGEST
    pressure.leave()
    pressure.enter()
    assert (pressure.inside, pressure.refused) == (2, 3)


def test_refusals_are_recorded_at_most_once_a_second_and_none_is_lost() -> None:
    clock, events = Clock(), Events()
    pressure = Backpressure(1, events, clock)  # type: ignore[arg-type]
    pressure.enter()
    for _ in range(30):
        refused(pressure)
        clock.now += EVERY_NS // 10
    clock.now += EVERY_NS
    pressure.leave()
    assert {row["kind"] for row in events.rows} == {"refusal"} and len(events.rows) <= 4
    assert sum(row["requests"] for row in events.rows) == 30
