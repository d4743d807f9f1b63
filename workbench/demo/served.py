"""The live server of the demonstration: started, spoken to, and always stopped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psutil

from playbooks.drills.undisturbed import undisturbed
from probes.traffic.plan import TrafficPlan
from probes.traffic.result import TrafficResult
from runtime.control_client import ControlClient
from runtime.launcher import ServerProcess, start_server
from runtime.placement import Layers
from runtime.serve_config import ServeConfig
from runtime.shipped import shapes_moe
from traces.errors import Unreachable
from traces.producer import Recorder
from traces.run import Run
from traces.store import open_run
from workbench.cli.sending import send_plan
from workbench.demo.narrator import Narrator
from workbench.demo.scenario import MODEL_NAME, Scenario

SETTLE = 15.0  # seconds at most: windows of expert counts are written every second, and shipped every quarter of one
STOP = 30.0  # seconds a server may take to drain and close its store
SETTLED = """
WITH ranks AS (SELECT rank, max(step) AS step FROM step GROUP BY rank),
     counts AS (SELECT rank, max(step_last) AS step FROM expert_load GROUP BY rank),
     details AS (SELECT rank, max(step) AS step FROM layer GROUP BY rank)
SELECT (SELECT count(*) FROM client_request WHERE ts >= $since) AS requests, (SELECT max(step) FROM ranks) AS last,
       (SELECT min(least(ranks.step, counts.step, details.step)) FROM ranks JOIN counts USING (rank) JOIN details USING (rank)) AS stored
"""


@dataclass(frozen=True, slots=True)
class Served:
    """What the stages need of the server."""

    run: Run
    url: str
    control: ControlClient
    recorder: Recorder
    narrator: Narrator

    def send(self, plan: TrafficPlan) -> TrafficResult:
        """One plan to its end. Raises KeyboardInterrupt when it was interrupted, Unreachable when the server did not answer."""
        with self.narrator.bar(plan.phase, plan.requests or 0) as bar:
            sent = send_plan(plan, self.url, self.recorder, bar)
        if sent.ended == "cancelled":
            raise KeyboardInterrupt
        if sent.ended != "done" or not sent.summary.ok:
            reasons = next(iter(sent.summary.reasons), "no answer")
            raise Unreachable(f"the server did not answer the traffic: {reasons}", f"look at the logs in {self.run.path / 'logs'}")
        return sent

    def place(self, layers: Layers, source: str, reason: str) -> dict[str, Any]:
        """Switches the expert placement: version, step, moved, stall_ns."""
        return self.control.set_placement([list(layer) for layer in layers], source=source, reason=reason)

    def settle(self, sent: TrafficResult) -> None:
        """Waits until what the traffic left has reached the store: the client's spans, and every rank's rows of the last step."""
        self.recorder.flush()
        deadline = time.monotonic() + SETTLE
        with open_run(self.run) as store:
            while time.monotonic() < deadline:
                row = store.rows(SETTLED, {"since": sent.started})[0]
                if row["requests"] >= sent.summary.count and row["stored"] is not None and row["stored"] >= row["last"]:
                    return
                time.sleep(0.2)


@contextmanager
def serving(scenario: Scenario, narrator: Narrator) -> Iterator[Served]:
    """Starts the shipped model on all ranks, and stops everything however the stages end."""
    server: ServerProcess | None = None
    recorder: Recorder | None = None
    try:
        with narrator.stage("serve", f"Serving the shipped model on {scenario.ranks} ranks"):
            server = start_server(_config(scenario))
            recorder = Recorder.open(server.run, "traffic-demo")
            narrator.say(f"{server.url}, run {server.run.id}")
        yield Served(server.run, server.url, ControlClient.for_run(server.run), recorder, narrator)
    finally:
        with undisturbed():
            if recorder is not None:
                recorder.close()
            if server is not None:
                server.stop()
            stop_children()


def _config(scenario: Scenario) -> ServeConfig:
    return ServeConfig(
        model=str(shapes_moe()),
        name=MODEL_NAME,
        ep=scenario.ranks,
        port=0,
        detail_every=scenario.detail_every,
        max_tokens_per_step=scenario.tokens_per_step,
        seed=scenario.seed,
    )


def stop_children() -> None:
    """Ends what an interrupted start left behind: every child of this process is one that it started."""
    left = psutil.Process().children()
    for child in left:
        with suppress(psutil.NoSuchProcess):
            child.terminate()
    _, alive = psutil.wait_procs(left, timeout=STOP)
    for child in alive:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(alive, timeout=STOP)

