"""What telemetry at default detail costs the ranks: CPU seconds per identical traffic, with telemetry on against off.

    python tests/benchmarks/telemetry_bench.py [--pairs 12] [--ranks 4] [--requests 48] [--mix shapes]

Two servers of the shipped model stand side by side, one with telemetry and one without; the same plan is sent to one and then to the
other, in alternating order. CPU time of the rank processes decides (wall time on a shared machine measures the neighbours). The cost is
the mean of the paired log ratios, with a bootstrap interval. Target in DESIGN.md
section 9: upper end of the interval <= 1 %.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil

from probes.traffic.generator import run_traffic
from probes.traffic.plan import TrafficPlan
from runtime.serve_config import ServeConfig
from runtime.server_process import ServerProcess, start_server
from runtime.shipped import shapes_moe


@dataclass
class Side:
    """One server and what its processes have used."""

    server: ServerProcess

    def cpu(self, prefix: str) -> float:
        """CPU seconds so far of the server's processes whose name begins with `prefix`."""
        children = psutil.Process(self.server.process.pid).children(recursive=True)
        times = [child.cpu_times() for child in children if child.name().startswith(prefix)]
        if not times:
            raise SystemExit(f"no process {prefix}* under the server: {[child.name() for child in children]}")
        return sum(time.user + time.system for time in times)

    def send(self, plan: TrafficPlan) -> float:
        """CPU seconds of the ranks for one plan."""
        before = self.cpu("wb-rank")
        result = asyncio.run(run_traffic(plan, self.server.url))
        if result.summary.errors:
            raise SystemExit(f"{result.summary.errors} requests failed: {result.summary.reasons}")
        return self.cpu("wb-rank") - before


def interval(logs: list[float], seed: int = 0) -> tuple[float, float]:
    """90 % bootstrap interval of the mean."""
    rng = random.Random(seed)
    means = sorted(statistics.fmean(rng.choices(logs, k=len(logs))) for _ in range(4000))
    return means[200], means[-201]


def measure(pairs: int, ranks: int, requests: int, mix: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as root:
        settings = {"model": str(shapes_moe()), "ep": ranks, "port": 0, "run_root": str(Path(root))}
        with start_server(ServeConfig(**settings)) as on, start_server(ServeConfig(**settings, telemetry=False)) as off:
            sides = {"on": Side(on), "off": Side(off)}
            for side in sides.values():
                side.send(TrafficPlan(concurrency=8, requests=requests, mix=mix, seed=999))  # first shapes, caches
            logs, spent = [], {"on": 0.0, "off": 0.0}
            for pair in range(pairs):
                plan = TrafficPlan(concurrency=8, requests=requests, mix=mix, seed=pair)
                order = ("on", "off") if pair % 2 else ("off", "on")
                cpu = {name: sides[name].send(plan) for name in order}
                spent = {name: spent[name] + cpu[name] for name in spent}
                logs.append(math.log(cpu["on"] / cpu["off"]))
            low, high = interval(logs)
            return {
                "pairs": pairs, "ranks": ranks, "mix": mix, "cpu_seconds": spent,
                "cost": math.exp(statistics.fmean(logs)) - 1, "interval_90": [math.exp(low) - 1, math.exp(high) - 1],
            }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--mix", default="shapes")
    asked = parser.parse_args()
    print(json.dumps(measure(asked.pairs, asked.ranks, asked.requests, asked.mix), indent=1))


if __name__ == "__main__":
    main()
