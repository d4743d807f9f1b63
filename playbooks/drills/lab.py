"""The live server of one drill: started, warmed up, spoken to, and always stopped."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playbooks.drills.drill import Dose, Drill
from playbooks.drills.undisturbed import undisturbed
from playbooks.drills.variables import variables
from playbooks.tail_latency.stale_placement import Counts, measured_counts
from playbooks.window import HOLE, SECOND
from probes.traffic.generator import run_traffic
from probes.traffic.plan import TrafficPlan
from probes.traffic.result import TrafficResult
from runtime.control_client import ControlClient
from runtime.expert_balance import balanced
from runtime.serve_config import ServeConfig
from runtime.server_process import ServerProcess, start_server
from runtime.shipped import shapes_moe
from traces.errors import Unreachable
from traces.producer import Recorder
from traces.run import Run
from traces.store import open_run

MODEL = "shapes-moe"  # the run's name says nothing about a drill
Say = Callable[[str], None]

WARM_UP = 40  # requests; from their counts the experts are placed as a well-kept deployment would have them
MOST_ROUNDS = 5  # a plan is sent again at most so often
SETTLE = 15.0  # seconds at most: windows of expert counts are written every second, and shipped every quarter of one
SETTLED = """
WITH ranks AS (SELECT rank, max(step) AS step FROM step GROUP BY rank),
     counts AS (SELECT rank, max(step_last) AS step FROM expert_load GROUP BY rank)
SELECT (SELECT count(*) FROM client_request WHERE ts >= $since) AS requests, (SELECT max(step) FROM ranks) AS last,
       (SELECT min(least(ranks.step, counts.step)) FROM ranks JOIN counts USING (rank)) AS stored
"""


@dataclass(slots=True)
class Lab:
    """What a drill does to a live server. `since`: start of its measured traffic, ns."""

    server: ServerProcess
    control: ControlClient
    recorder: Recorder
    ranks: int
    say: Say
    since: int = 0

    @property
    def run(self) -> Run:
        return self.server.run

    def pid(self, rank: int) -> int:
        return int(self.control.state()["loads"][rank]["pid"])

    def warm_up(self, plan: TrafficPlan) -> Counts:
        """First traffic, and the even expert placement that follows from it: faults are set on a system that is well."""
        self.say("warming up")
        self.send(plan)
        with open_run(self.run) as store:
            counts = measured_counts(store, self.since)
        even = balanced([counts[layer] for layer in sorted(counts)], self.ranks, source="initial")
        self.place(even.physical_to_logical, "initial")
        return counts

    def place(self, layers: tuple[tuple[int, ...], ...], source: str = "control") -> None:
        self.control.set_placement([list(layer) for layer in layers], source=source, reason="")

    def send(self, *plans: TrafficPlan) -> None:
        """Plans side by side, to their end and into the store. Raises KeyboardInterrupt, and Unreachable when nothing was answered."""
        self.since = time.time_ns()
        self._settle(self._sent(plans))

    def rest(self) -> None:
        """Sends nothing for as long as ends a period of traffic: what comes after is judged by itself."""
        time.sleep(HOLE / SECOND + 1)

    def send_steps(self, plan: TrafficPlan, steps: int) -> None:
        """The plan again and again, each time with other prompts, until it has made so many steps: on a loaded host they are few.

        Without a pause in between: a hole in the traffic would begin a new window.
        """
        self.since, first, sent = time.time_ns(), self._step(), 0
        for number in range(MOST_ROUNDS):
            sent += self._sent((dataclasses.replace(plan, seed=plan.seed + 1000 * number),))
            if self._step() - first >= steps:
                break
        self._settle(sent)

    def _step(self) -> int:
        return int(self.control.state()["step"])

    def _sent(self, plans: tuple[TrafficPlan, ...]) -> int:
        """How many requests were sent."""
        sent = asyncio.run(_together(plans, self.server.url, self.recorder))
        if any(one.ended == "cancelled" for one in sent):
            raise KeyboardInterrupt
        for one in sent:
            if one.ended != "done" or not one.summary.ok:
                why = next(iter(one.summary.reasons), "no answer")
                raise Unreachable(f"the drill's traffic was not answered: {why}", f"the server's logs are in {self.run.path / 'logs'}")
        return sum(one.summary.count for one in sent)

    def _settle(self, requests: int) -> None:
        self.recorder.flush()
        deadline = time.monotonic() + SETTLE
        with open_run(self.run) as store:
            while time.monotonic() < deadline:
                row = store.rows(SETTLED, {"since": self.since})[0]
                if row["requests"] >= requests and row["stored"] is not None and row["stored"] >= row["last"]:
                    return
                time.sleep(0.2)


async def _together(plans: tuple[TrafficPlan, ...], url: str, recorder: Recorder) -> list[TrafficResult]:
    return list(await asyncio.gather(*(run_traffic(plan, url, recorder) for plan in plans)))


@contextmanager
def lab(drill: Drill, dose: Dose, ranks: int, root: Path, say: Say) -> Iterator[Lab]:
    """A fresh server for one drill, under `root`. Stopped and its run closed at the end, whatever happens."""
    settings: dict[str, Any] = {"ep": ranks, "detail_every": 1, "max_tokens_per_step": 1024, "seed": dose.seed, **drill.settings(dose)}
    model = shapes_moe() if drill.checkpoint is None else drill.checkpoint(dose, root)
    config = ServeConfig(model=str(model), name=MODEL, port=0, run_root=str(root), **settings)
    say("starting the server")
    with variables(drill.environment(dose)):
        server = start_server(config)
    recorder: Recorder | None = None
    try:
        recorder = Recorder.open(server.run, f"traffic-{os.getpid():x}")
        with ControlClient.for_run(server.run) as control:
            yield Lab(server, control, recorder, ranks, say)
    finally:
        with undisturbed():
            if recorder is not None:
                recorder.close()
            server.stop()
