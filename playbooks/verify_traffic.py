"""Traffic under which a remedy is judged: what is flowing anyway, or the same plan sent before and after."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

from playbooks.measure_again import LEAST_STEPS, Sample, sample
from playbooks.measured import read_layers
from playbooks.window import Period
from probes.traffic.generator import run_traffic
from probes.traffic.plan import MIXES, TrafficPlan
from runtime.control_client import ControlClient
from traces.errors import UsageError
from traces.run import Run
from traces.store import Store, open_run

# Detailed steps wanted on each side; the interval of a ratio over 60 steps is about 5 % wide at the scatter of prefill steps.
WANTED = 2 * LEAST_STEPS
# Requests of a plan that is sent for verification only: enough for 60 steps of prompts on four ranks.
REQUESTS = 96
# A plan is sent again until it has made this many steps, but not more often than that.
ENOUGH = LEAST_STEPS + LEAST_STEPS // 3
MOST_ROUNDS = 3
# Seconds: longest wait for ongoing traffic to bring the steps, and for the last rows to arrive.
PATIENCE = 90.0
SETTLE = 10.0


@contextmanager
def full_detail(control: ControlClient) -> Iterator[None]:
    """Detail of every step inside, as it was set before outside."""
    before = int(control.state()["detail_every"])
    control.set_detail(1)
    try:
        yield
    finally:
        control.set_detail(before)


# The last step of which every rank's rows are here, and the last one whose expert counts are.
_ARRIVED = """SELECT (SELECT min(last) FROM (SELECT max(step) AS last FROM step GROUP BY rank)) AS step,
       (SELECT min(last) FROM (SELECT max(step_last) AS last FROM expert_load GROUP BY rank)) AS counted"""


def ongoing(control: ControlClient) -> bool:
    """Somebody else's requests are being served now: in flight in at least two of three looks."""
    seen = 0
    for _ in range(3):
        seen += int(control.state().get("requests", 0)) > 0
        time.sleep(0.3)
    return seen >= 2


def plan_like_last(store: Store) -> TrafficPlan:
    """The plan of the traffic that was recorded last, cut to size: the remedy is judged under what it was diagnosed with."""
    rows = store.rows("SELECT attrs FROM event WHERE kind = 'traffic' ORDER BY ts DESC LIMIT 1")
    described = json.loads(rows[0]["attrs"]).get("plan", {}) if rows else {}
    fields = {field.name for field in dataclasses.fields(TrafficPlan)}
    known = {name: value for name, value in described.items() if name in fields}
    if known.get("mix") not in MIXES:
        return TrafficPlan(mix="prefill-heavy", concurrency=8, requests=REQUESTS, phase="verify")
    known |= {"requests": min(int(known.get("requests") or REQUESTS), REQUESTS), "duration": None, "phase": "verify"}
    try:
        return TrafficPlan(**known)
    except UsageError:
        return TrafficPlan(mix=known["mix"], concurrency=8, requests=REQUESTS, phase="verify")


def send(run: Run, control: ControlClient, plan: TrafficPlan, placement: int, rounds: int | None = None) -> tuple[Sample, int]:
    """Sends the plan with full detail, and measures the steps it made; the number of rounds it took. Raises Unreachable.

    Without `rounds` it is sent again, up to MOST_ROUNDS times, until the steps suffice.
    """
    with full_detail(control):
        began, sent = time.time_ns(), 0
        while True:
            asyncio.run(run_traffic(plan, str((run.info.endpoint or {})["url"])))
            sent += 1
            with open_run(run) as store:
                _settle(store, control)
                found = measured(store, began, time.time_ns(), placement)
            if sent == rounds or (rounds is None and (found.steps >= ENOUGH or sent == MOST_ROUNDS)):
                return found, sent


def wait_for_steps(run: Run, control: ControlClient, since: int, placement: int) -> Sample:
    """Watches ongoing traffic until it has made enough detailed steps, or patience ends."""
    deadline = time.monotonic() + PATIENCE
    with full_detail(control), open_run(run) as store:
        found = measured(store, since, time.time_ns(), placement)
        while found.steps < WANTED and time.monotonic() < deadline:
            time.sleep(1.0)
            found = measured(store, since, time.time_ns(), placement)
    return found


def measured(store: Store, t0: int, t1: int, placement: int) -> Sample:
    """Detailed steps between two moments that were computed under one placement."""
    row = store.rows(f"SELECT min(step) AS first, max(step) AS last FROM step WHERE placement = {placement} AND ts BETWEEN {t0} AND {t1}")[
        0
    ]
    first, last = (-1, -1) if row["first"] is None else (int(row["first"]), int(row["last"]))
    return sample(read_layers(store, Period(t0, t1, first, last, "verification"), first), placement)


def _settle(store: Store, control: ControlClient) -> None:
    """Until the rows of the last step have arrived: producers send every quarter of a second, expert counts follow every second."""
    last = int(control.state()["step"])
    deadline = time.monotonic() + SETTLE
    while time.monotonic() < deadline:
        row = store.rows(_ARRIVED)[0]
        if row["step"] is not None and row["step"] >= last and row["counted"] is not None and row["counted"] >= last:
            return
        time.sleep(0.2)
