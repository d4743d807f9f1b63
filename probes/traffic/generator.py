"""Sends a plan's traffic to a server and records the client's side of it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from probes.points import CLIENT_SPAN
from probes.sink import Sink
from probes.spans import RequestSpan, Tracing
from probes.traffic.client import ChatClient, Outcome
from probes.traffic.plan import TrafficPlan
from probes.traffic.prompts import Prompts
from probes.traffic.record import Clock, RequestRecord, measured
from probes.traffic.result import TrafficResult
from probes.traffic.summary import summarise
from traces import schema

Progress = Callable[[int, int | None, int, int], None]  # done, total (None where only a duration is planned), ok, errors
REFUSALS = 20  # connections refused in a row after which the server counts as gone
REFUSED_PAUSE = 0.1  # seconds, so that a closed loop does not spin on a server that is gone


async def run_traffic(plan: TrafficPlan, url: str, recorder: Sink | None = None, on_progress: Progress | None = None) -> TrafficResult:
    """Run the plan to its end. Cancelling the task (Ctrl-C under asyncio.run) ends it early and returns what was measured.

    Each request becomes a `client.request` span of the recorder and carries a W3C traceparent, so that a server that understands it
    (ours does) joins the same trace. Raises Unreachable when no server answers, UsageError when it cannot be used.
    """
    async with ChatClient(url, plan.api_key, plan.timeout) as client:
        model = plan.model or await client.model()
        started = time.time_ns()
        traffic = _Traffic(plan, client, Prompts(plan, model), recorder, on_progress)
        try:
            await traffic.run()
        except asyncio.CancelledError:
            traffic.ended = "cancelled"
        result = TrafficResult(plan, client.base, model, started, traffic.ended, traffic.records, summarise(traffic.records, plan.seed))
    if recorder is not None:
        _record_window(recorder, result)
    return result


class _Traffic:
    """One run: its loop, its records, its progress."""

    def __init__(
        self, plan: TrafficPlan, client: ChatClient, prompts: Prompts, recorder: Sink | None, on_progress: Progress | None
    ) -> None:
        self.records: list[RequestRecord] = []
        self.ended = "done"
        self._plan = plan
        self._client = client
        self._prompts = prompts
        self._tracing = Tracing(recorder, service="workbench-traffic") if recorder is not None else None
        self._on_progress = on_progress
        self._begun = perf_counter_ns()
        self._sent = 0
        self._ok = 0
        self._errors = 0
        self._refused = 0
        if recorder is not None:
            recorder.register("client", plan=plan.described())

    async def run(self) -> None:
        self._begun = perf_counter_ns()
        if self._plan.rate is not None:
            await self._open_loop(self._plan.rate)
        else:
            async with asyncio.TaskGroup() as workers:
                for _ in range(self._plan.concurrency or 1):
                    workers.create_task(self._worker())

    async def _open_loop(self, rate: float) -> None:
        """Poisson arrivals at planned times: a slow answer never delays the next request."""
        rng, due = random.Random(f"arrivals {self._plan.seed}"), self._begun
        async with asyncio.TaskGroup() as requests:
            while (index := self._take()) is not None:
                requests.create_task(self._request(index, due))
                due += round(rng.expovariate(rate) * 1e9)
                await asyncio.sleep(max(0, due - perf_counter_ns()) / 1e9)

    async def _worker(self) -> None:
        while (index := self._take()) is not None:
            await self._request(index, perf_counter_ns())

    def _take(self) -> int | None:
        """Number of the next request, or None when the plan is done or the server gone."""
        plan, elapsed = self._plan, perf_counter_ns() - self._begun
        if self._refused >= REFUSALS:
            self.ended = "unreachable"
            return None
        if plan.requests is not None and self._sent >= plan.requests:
            return None
        if plan.duration is not None and elapsed >= plan.duration * 1e9:
            return None
        self._sent += 1
        return self._sent - 1

    async def _request(self, index: int, due: int) -> None:
        prompt, start = self._prompts.next(), perf_counter_ns()
        wall = time.time_ns()
        span = self._tracing.request_span(CLIENT_SPAN, kind="client", start=wall) if self._tracing else None
        outcome, headers = Outcome(), {"traceparent": span.ref.traceparent} if span else {}
        if self._plan.replica is not None:
            headers["x-data-parallel-rank"] = str(self._plan.replica)
        try:
            await self._client.ask(prompt, headers, outcome)
        except asyncio.CancelledError:
            outcome.status, outcome.reason = "cancelled", "the client stopped"
            raise
        finally:
            self._finish(
                measured(index, prompt, outcome, Clock(due, start, wall), span.trace_id if span else None, self._plan.keep_answers), span
            )
        self._refused = self._refused + 1 if outcome.refused else 0
        if outcome.refused:
            await asyncio.sleep(REFUSED_PAUSE)

    def _finish(self, record: RequestRecord, span: RequestSpan | None) -> None:
        self.records.append(record)
        self._ok += record.status == "ok"
        self._errors += record.status == "error"
        if span is not None:
            span.set(record.attributes(self._plan.phase))
            span.end(record.status, record.reason, record.start + record.e2e)
        if self._on_progress:
            self._on_progress(len(self.records), self._plan.requests, self._ok, self._errors)


def _record_window(recorder: Sink, result: TrafficResult) -> None:
    """An event over the whole run of traffic, by which readers find its time window."""
    summary = result.summary
    attrs: dict[str, Any] = {
        "phase": result.plan.phase,
        "plan": result.plan.described(),
        "url": result.url,
        "model": result.model,
        "ended": result.ended,
    }
    attrs |= {"requests": summary.count, "ok": summary.ok, "errors": summary.errors, "exact_share": summary.exact.share}
    recorder.row(schema.EVENT, ts=result.started, dur=time.time_ns() - result.started, kind="traffic", attrs=attrs)
