"""How fast the collector acknowledges, after commit, against a plain Arrow INSERT of the same rows in one process.

    python tests/benchmarks/collector_bench.py [--table layer|token|span] [--rows 2048] [--producers 4] [--seconds 6]

Producers are processes that post segments made beforehand, one in flight each, while a reader asks a question every half second. Rounds of
both are interleaved and the best of each is kept: on a shared machine the quieter round is the truer one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from traces import schema
from traces.address import CollectorAddress
from traces.collector.process import start
from traces.database import insert, memory
from traces.decode import decode
from traces.post import Poster
from traces.records import pack_row
from traces.run import create_run
from traces.segment import build, describe, parse
from traces.store import open_run
from traces.table import Table

TS = 1_795_000_000_000_000_000


def row(table: Table, index: int) -> tuple[Any, ...]:
    if table is schema.TOKEN:
        return TS + index, f"{index // 50:032x}", index % 50, index, index % 4
    if table is schema.SPAN:
        attrs = {"gen_ai.usage.input_tokens": index % 900, "gen_ai.usage.output_tokens": index % 80, "moe.rank": index % 4}
        return TS + index, 1000 + index % 777, f"{index // 9:032x}", f"{index:016x}", None, "prefill", "internal", "rank0", "ok", attrs
    times = (1000 + index % 97, 200, 50, 300 + index % 31, 4000 + index % 1009, 350)
    return index, index % 4, 0, 0, index % 48, TS + index, *times, None, None, 64, index % 256, 8, "host"


def bodies(table: Table, rows: int, producer: str, count: int) -> list[bytes]:
    """Different rows in every segment: repeated ones would compress too well."""
    made = []
    for seq in range(count):
        records = b"".join(pack_row(table, row(table, seq * rows + index)) for index in range(rows))
        made.append(build(producer, "00aa", seq, 1, describe([table]), records))
    return made


def produce(address: CollectorAddress, table: Table, rows: int, number: int, go: Any, results: Any, seconds: float) -> None:
    """Posts until the time is up; tells acknowledged rows and latencies."""
    prepared = bodies(table, rows, f"rank{number}", 64)
    poster, latencies, acknowledged, seq = Poster(address), [], 0, 0
    go.wait()  # a barrier: everybody has prepared its segments
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        body = prepared[seq % 64]
        if seq >= 64:
            segment = next(parse(body))
            body = build(f"rank{number}", "00aa", seq, 1, bytes(segment.header.tables), bytes(segment.records))
        sent = time.monotonic()
        reply = poster.post(body)
        if reply.status == 200:
            latencies.append(time.monotonic() - sent)
            acknowledged += rows
            seq += 1
    results.put((acknowledged, time.monotonic() - begin, latencies))


def collected(folder: Path, table: Table, rows: int, producers: int, seconds: float) -> dict[str, float]:
    run = create_run(root=folder)
    context = mp.get_context("fork")
    go, results = context.Barrier(producers + 1), context.Queue()
    with start(run) as collector:
        common = (collector.address, table, rows)
        workers = [context.Process(target=produce, args=(*common, n, go, results, seconds)) for n in range(producers)]
        for worker in workers:
            worker.start()
        go.wait()
        cpu = psutil.Process(collector.pid).cpu_times()
        asked = []
        with open_run(run) as store:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                begin = time.monotonic()
                store.rows(f'SELECT count(*) AS n FROM "{table.name}"')
                asked.append(time.monotonic() - begin)
                time.sleep(0.5)
        told = [results.get() for _ in workers]
        after = psutil.Process(collector.pid).cpu_times()
        for worker in workers:
            worker.join()
    total = sum(acknowledged for acknowledged, _, _ in told)
    with open_run(run) as store:
        assert store.rows(f'SELECT count(*) AS n FROM "{table.name}"') == [{"n": total}]
    latencies = sorted(latency for _, _, each in told for latency in each)
    return {
        "rows per second": sum(acknowledged / elapsed for acknowledged, elapsed, _ in told),
        "collector CPU us per row": (after.user + after.system - cpu.user - cpu.system) * 1e6 / total,
        "post p50 ms": statistics.median(latencies) * 1e3,
        "post p99 ms": latencies[int(len(latencies) * 0.99)] * 1e3,
        "query p50 ms": statistics.median(asked) * 1e3,
        "query max ms": max(asked) * 1e3,
    }


def plain(folder: Path, table: Table, rows: int, seconds: float) -> tuple[float, float]:
    """Rows per second and CPU us per row of INSERT from Arrow tables, a commit per group of four, in a process with nothing else to do."""
    groups = []
    for number in range(8):
        parts = [decode(next(parse(body))).tables[table.name] for body in bodies(table, rows, f"p{number}", 4)]
        groups.append(pa.concat_tables(parts))
    with memory(folder / f"plain-{time.time_ns()}.duckdb") as connection:
        connection.execute("SET checkpoint_threshold = '256MB'")
        begin, cpu, done = time.monotonic(), time.process_time(), 0
        while time.monotonic() - begin < seconds:
            connection.execute("BEGIN")
            insert(connection, table.name, groups[done % 8])
            connection.execute("COMMIT")
            done += 1
        stored = done * rows * 4
        return stored / (time.monotonic() - begin), (time.process_time() - cpu) * 1e6 / stored


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", choices=["layer", "token", "span"], default="layer")
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--producers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    table = schema.TABLES[given.table]
    rounds: list[dict[str, float]] = []
    plains: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(given.rounds):
            rounds.append(collected(Path(folder), table, given.rows, given.producers, given.seconds))
            plains.append(plain(Path(folder), table, given.rows, given.seconds / 2))
    best = max(rounds, key=lambda found: found["rows per second"])
    told = {name: round(value, 2) for name, value in best.items()}
    speed, cpu = max(speed for speed, _ in plains), min(cpu for _, cpu in plains)
    compared = {
        "plain INSERT rows per second": round(speed),
        "plain INSERT CPU us per row": round(cpu, 2),
        "speed ratio": round(best["rows per second"] / speed, 3),
        "CPU ratio": round(min(found["collector CPU us per row"] for found in rounds) / cpu, 2),
    }
    json.dump({**vars(given), **told, **compared}, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
