"""What recording costs a rank: CPU per event on the hot path, and CPU of the flusher thread, both as ratios measured in one run.

    python tests/benchmarks/recorder_bench.py

CPU time of the thread decides (the machine is shared), and the quietest of many short rounds is kept.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import TracerProvider

from traces import schema
from traces.collector.process import start
from traces.producer import Recorder
from traces.records import record_writer
from traces.ring import Ring
from traces.run import create_run
from traces.table import Table

TS = 1_795_000_000_000_000_000
EVENTS: dict[str, tuple[Table, tuple[Any, ...]]] = {
    "link (7 fixed columns)": (schema.LINK, (TS, 0, 1, 4096, True, 0.1, 0.2)),
    "token": (schema.TOKEN, (TS, "a" * 32, 2, 3, 0)),
    "step, 8 requests": (schema.STEP, (1, 2, 0, 0, TS, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, None, 0, ["a" * 32] * 8)),
    "layer": (schema.LAYER, (1, 2, 0, 0, 5, TS, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, "host", None)),
    "collective, 4 peers": (schema.COLLECTIVE, (1, 2, "ep", 4, 5, "dispatch", TS, TS, [1, 2, 3, 4], [1, 2, 3, 4], "host")),
}


def cheapest(call: Callable[[], None], per: int, after: Callable[[], None] = lambda: None, rounds: int = 200) -> float:
    """Least CPU time of one event, us."""
    best = float("inf")
    for _ in range(rounds):
        begin = time.thread_time_ns()
        call()
        best = min(best, (time.thread_time_ns() - begin) / per)
        after()
    return best / 1e3


def looped(function: Callable[..., Any], values: tuple[Any, ...], times: int = 1000) -> Callable[[], None]:
    names = [f"a{index}" for index in range(len(values))]
    scope: dict[str, Any] = {}
    exec(f"def run(f, n, {', '.join(names)}):\n for _ in range(n): f({', '.join(names)})", scope)
    return lambda: scope["run"](function, times, *values)


def hot_path(folder: Path) -> dict[str, float]:
    ring = Ring(folder / "bench.ring", 4 << 20)

    def empty() -> None:
        ring.release(ring.take()[1], 0)

    costs = {name: cheapest(looped(record_writer(ring, table), row), 1000, empty) for name, (table, row) in EVENTS.items()}
    assert not ring.drops
    costs["an empty Python function"] = cheapest(looped(lambda a, b, c, d: None, (1, 2, 3, 4)), 1000)
    tracer = TracerProvider().get_tracer("bench")

    def sdk() -> None:
        for _ in range(100):
            span = tracer.start_span("prefill")
            span.set_attributes({"a": 1, "b": 2, "c": "x", "d": 0.5})
            span.end()

    costs["OpenTelemetry SDK span, 4 attributes"] = cheapest(sdk, 100, rounds=40)
    return costs


def flusher(folder: Path, seconds: float = 8.0) -> dict[str, float]:
    """CPU of the flusher thread while 2000 tokens/s and 100 steps/s are recorded, with a live collector."""
    run = create_run(root=folder)
    with start(run), Recorder.open(run, "rank0") as recorder:
        token, step = recorder.writer(schema.TOKEN), recorder.writer(schema.STEP)
        recorder.flush(30)
        before, events, begin = recorder.cpu_ns, 0, time.monotonic()
        while time.monotonic() - begin < seconds:
            step(*EVENTS["step, 8 requests"][1])
            for _ in range(20):
                token(*EVENTS["token"][1])
            events += 21
            time.sleep(0.01)
        recorder.flush(30)
        elapsed, cpu = time.monotonic() - begin, recorder.cpu_ns - before
    return {
        "events per second": events / elapsed,
        "us of flusher CPU per event": cpu / 1e3 / events,
        "share of one core": cpu / 1e9 / elapsed,
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        costs = hot_path(Path(folder))
        shipped = flusher(Path(folder))
    sdk = costs["OpenTelemetry SDK span, 4 attributes"]
    hot = {name: {"us": round(cost, 3), "of an SDK span": round(cost / sdk, 4)} for name, cost in costs.items()}
    json.dump({"hot path": hot, "flusher": {name: round(value, 4) for name, value in shipped.items()}}, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
