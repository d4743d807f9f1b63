"""Sends a plan's traffic from the command line: finds the run to record into, shows progress, words the result."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from probes.traffic.client import base_url
from probes.traffic.generator import run_traffic
from probes.traffic.plan import TrafficPlan
from probes.traffic.quantile import Quantile
from probes.traffic.result import TrafficResult
from traces.producer import Recorder
from traces.run import Run, find_run, list_runs
from workbench.cli.context import session
from workbench.cli.output import note, table
from workbench.cli.progress import Bar

ROWS = (("first token", "ttft"), ("per token", "tpot"), ("longest gap", "itl_max"), ("whole answer", "e2e"))


def send(url: str, run_name: str | None, plan: dict[str, Any]) -> TrafficResult:
    """Runs the traffic. Raises UsageError, Unreachable, UnknownRun."""
    described = TrafficPlan(**plan)
    run = find_run(run_name) if run_name else serving(url)
    if run is None:
        note("no run of ours serves that URL: nothing is recorded (--run RUN records into a run)")
    recorder = Recorder.open(run, f"traffic-{secrets.token_hex(2)}") if run else None
    try:
        return send_plan(described, url, recorder, Bar(described.mix, described.requests or 0, quiet=session().quiet))
    finally:
        if recorder is not None:
            recorder.close()


def send_plan(plan: TrafficPlan, url: str, recorder: Recorder | None, bar: Bar) -> TrafficResult:
    """One plan under a progress bar; a plan without a number of requests counts up."""

    def progress(done: int, total: int | None, ok: int, errors: int) -> None:
        bar.total = total or max(bar.total, done)
        bar.update(done, f"{errors} failed" if errors else "")

    with bar:
        return asyncio.run(run_traffic(plan, url, recorder, progress))


def serving(url: str) -> Run | None:
    """The newest live run whose server listens at the URL."""
    wanted = base_url(url)
    for run in reversed(list_runs()):
        endpoint = run.info.endpoint or {}
        if run.state == "running" and endpoint.get("url") and base_url(str(endpoint["url"])) == wanted:
            return run
    return None


def summary_table(sent: TrafficResult) -> str:
    """Counts, then the latencies with their intervals."""
    found = sent.summary
    lines = [f"{found.count} requests, {found.ok} ok, {found.errors} failed, {found.cancelled} cancelled in {found.duration / 1e9:.1f} s"]
    lines += [f"  {number} × {reason}" for reason, number in list(found.reasons.items())[:5]]
    if found.requests_per_second is not None:
        lines.append(f"{found.requests_per_second:.2f} requests/s, {found.tokens_per_second or 0:.1f} output tokens/s")
    if found.exact.share is not None:
        lines.append(f"{found.exact.right} of {found.exact.judged} judged answers exactly right ({found.exact.share:.1%})")
    rows = [(words, *(quantile(getattr(found, key)[name]) for name in ("p50", "p90", "p99"))) for words, key in ROWS]
    return "\n".join([*lines, "", table(("ms", "p50", "p90", "p99"), rows, right=("p50", "p90", "p99"))])


def quantile(one: Quantile) -> str:
    """`41.3 [39.8, 44.0]`, or why it is not claimed."""
    if one.value is None or one.low is None or one.high is None:
        return "undetermined"
    return f"{one.value / 1e6:.1f} [{one.low / 1e6:.1f}, {one.high / 1e6:.1f}]"
