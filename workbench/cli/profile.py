"""`workbench profile`: a profiler window over a live run's next steps, on all ranks at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from workbench.cli.context import Command, json_option, run_option
from workbench.cli.output import answer, answer_json, note, table

if TYPE_CHECKING:
    from playbooks.operators import Profile
    from traces.run import Run

SCHEMA = "workbench.profile.v1"


@click.command(cls=Command)
@run_option("A live run of ours.")
@click.option("--steps", type=click.IntRange(1, 1000), default=20, show_default=True, help="Steps to profile.")
@click.option("--top", type=click.IntRange(1), default=15, show_default=True, help="Operators to list.")
@click.option("--wait", type=click.FloatRange(min=0), default=60.0, show_default=True, help="Seconds to wait for the steps.")
@json_option()
def profile(run_name: str, steps: int, top: int, wait: float, as_json: bool) -> None:
    """Profile the next steps of a live run, on all ranks, and keep the operators in the run (table `operator`).

    Steps happen only while there is traffic. `workbench diagnose tail-latency --baseline RUN` compares the profiles of two runs.
    """
    from traces.run import find_run
    from workbench.cli.profiling import take

    run = find_run(run_name)
    taken = take(run, steps, wait, note)
    if as_json:
        answer_json(document(run, taken))
    else:
        answer(as_text(taken, top))


def document(run: Run, taken: Profile) -> dict[str, Any]:
    """Times in ns over all ranks; `share` of the self time."""
    window, total = taken.window, max(1, taken.total)
    return {
        "schema": SCHEMA,
        "run": run.id,
        "steps": {"first": window.first, "last": window.last},
        "ranks": list(window.ranks),
        "tokens": window.tokens,
        "operators": [
            {"name": one.name, "calls": one.calls, "self_ns": one.self_ns, "share": one.self_ns / total, "slowest_rank": one.slowest_rank,
             "slowest_ns": one.slowest_ns}
            for one in taken.operators
        ],
    }  # fmt: skip


def as_text(taken: Profile, top: int) -> str:
    window, total = taken.window, max(1, taken.total)
    rows = [
        (one.name[:60], one.calls, one.self_ns / 1e6 / window.steps, f"{one.self_ns / total:.1%}", one.slowest_rank,
         one.slowest_ns * len(window.ranks) / max(1, one.self_ns))
        for one in taken.operators[:top]
    ]  # fmt: skip
    head = f"steps {window.first} to {window.last}, {len(window.ranks)} ranks, {window.tokens} tokens"
    columns = ("operator", "calls", "self ms a step", "share", "slowest rank", "x the mean rank")
    return f"{head}\n\n{table(columns, rows, right=('share',))}"
