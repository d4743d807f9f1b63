"""Many streaming clients, some of which leave in the middle: is anything left behind?

`python tests/benchmarks/soak_bench.py [--clients 200] [--seconds 60] [--ranks 2]` serves the shipped model, lets every client ask again and
again for that long, and looks at what is left when all have gone: requests inside, sequences on ranks, KV blocks, queued tokens; and at
the run: every request that a client saw begin must have its root span with the client's trace id, and nothing may have been dropped.
Exit code 1 when something is. No number here is a speed to be compared: the clients share the machine with the server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx

from runtime.control_client import ControlClient
from runtime.launcher import ServerProcess, start_server
from runtime.serve_config import ServeConfig
from runtime.shipped import shapes_moe
from traces.run import Run
from traces.store import open_run

LEFT_BEHIND = ("requests_inside", "sequences", "kv_blocks", "queued_tokens")
MUST_BE_ZERO = (*LEFT_BEHIND, "twice", "missing", "unlike", "dropped_rows_of_any_kind", "broken")
LOST = """SELECT coalesce(sum(rows) FILTER (WHERE "table" = 'span'), 0) AS spans, coalesce(sum(rows), 0) AS every FROM "drop" """
QUIET = 60.0  # seconds until everything has drained and reached the store
QUESTIONS = ("Hello!", "What is 2 + 3?", "Count from one to nine.", "Say something about a robot.", "What is the opposite of hot?")


@dataclass
class Counts:
    """What the clients saw. `seen`: trace ids of requests of which at least the header of the answer arrived -> how they ended."""

    seen: dict[str, str] = field(default_factory=dict)
    unseen: int = 0  # left before the first byte of an answer
    statuses: Counter[int] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--leave", type=float, default=0.3, help="share of the requests whose client leaves")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="workbench-soak-") as folder:
        config = ServeConfig(model=str(shapes_moe()), ep=asked.ranks, port=0, run_root=folder, max_queue=2 * asked.clients)
        with start_server(config) as server:
            counts = asyncio.run(clients(server.url, asked.clients, asked.seconds, asked.leave, asked.seed))
            left = settled(server, counts)
        found = {**left, **stored(server.run, counts), **summary(counts)}
    found["clean"] = not any(found[name] for name in MUST_BE_ZERO)
    print(json.dumps(found, indent=1))
    return 0 if found["clean"] else 1


async def clients(url: str, number: int, seconds: float, leave: float, seed: int) -> Counts:
    counts, deadline = Counts(), time.monotonic() + seconds
    limits = httpx.Limits(max_connections=number, max_keepalive_connections=number)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits, trust_env=False) as client:
        await asyncio.gather(*(one_client(client, random.Random(f"{seed}.{i}"), deadline, leave, counts) for i in range(number)))
    return counts


async def one_client(client: httpx.AsyncClient, rng: random.Random, deadline: float, leave: float, counts: Counts) -> None:
    while time.monotonic() < deadline:
        trace = secrets.token_hex(16)
        body = {
            "model": "shapes-moe",
            "messages": [{"role": "user", "content": f"{rng.choice(QUESTIONS)} {rng.randrange(10_000)}"}],
            "max_tokens": rng.choice((4, 16, 48, 120)),
            "ignore_eos": True,
            "stream": True,
        }
        pieces = rng.choice((0, 1, 3, 20)) if rng.random() < leave else None  # leaves after so many; 0: before the first byte
        try:
            await one_request(client, body, trace, pieces, rng.uniform(0, 0.2), counts)
        except httpx.HTTPError as error:
            counts.broken[type(error).__name__] += 1


async def one_request(client: httpx.AsyncClient, body: dict[str, Any], trace: str, pieces: int | None, wait: float, counts: Counts) -> None:
    headers = {"traceparent": f"00-{trace}-{secrets.token_hex(8)}-01"}
    if pieces == 0:
        try:
            async with asyncio.timeout(wait):
                answer = await client.post("/v1/chat/completions", json=body, headers=headers)
        except TimeoutError:
            counts.unseen += 1
            return
        counts.statuses[answer.status_code] += 1  # it had all of it before it would have left
        if answer.status_code == 200:
            counts.seen[trace] = "ok"
        return
    async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
        counts.statuses[response.status_code] += 1
        if response.status_code != 200:
            await response.aread()
            return
        counts.seen[trace] = "cancelled" if pieces else "ok"
        got, done = 0, False
        async for line in response.aiter_lines():
            done = done or line == "data: [DONE]"
            got += line.startswith("data: {")
            if pieces and got > pieces:
                break
        if done:  # it had all of it before it left
            counts.seen[trace] = "ok"
        elif not pieces:
            counts.broken["ended without [DONE]"] += 1


def settled(server: ServerProcess, counts: Counts) -> dict[str, int]:
    """What the server still holds when it has had time to let go."""
    deadline = time.monotonic() + QUIET
    with ControlClient.for_run(server.run) as control:
        while True:
            state = control.state()
            loads = state["loads"]
            left = {
                "requests_inside": state["requests"],
                "sequences": sum(load["running"] + load["waiting"] for load in loads),
                "kv_blocks": sum(load["kv_used"] for load in loads),
                "queued_tokens": sum(load["outstanding"] for load in loads),
            }
            if not any(left.values()) or time.monotonic() > deadline:
                return left
            time.sleep(0.2)


def stored(run: Run, counts: Counts) -> dict[str, int]:
    """Of the closed run: root spans that are missing, that tell another end than the client saw, and rows that were dropped."""
    with open_run(run) as store:
        rows = store.rows("SELECT trace_id, status FROM span WHERE name = 'request'")
        lost = store.rows(LOST)[0]
    return {
        **judged([(row["trace_id"], row["status"]) for row in rows], counts),
        "dropped": int(lost["spans"]),
        "dropped_rows_of_any_kind": int(lost["every"]),
    }


def judged(rows: list[tuple[str, str]], counts: Counts) -> dict[str, int]:
    """Root spans as (trace id, status), against what the clients saw."""
    status = dict(rows)
    ends = [(end, status[trace]) for trace, end in counts.seen.items() if trace in status]
    return {
        "spans": len(rows),
        "twice": len(rows) - len(status),
        "missing": sum(trace not in status for trace in counts.seen),
        "unlike": sum((end == "ok" and told != "ok") or told == "error" for end, told in ends),
    }


def summary(counts: Counts) -> dict[str, Any]:
    ends = Counter(counts.seen.values())
    return {
        "seen": len(counts.seen),
        "completed": ends["ok"],
        "left_in_the_middle": ends["cancelled"],
        "left_before_the_first_byte": counts.unseen,
        "statuses": dict(counts.statuses),
        "broken": sum(counts.broken.values()),
        "reasons": dict(counts.broken),
    }


if __name__ == "__main__":
    sys.exit(main())
