"""`workbench runs`: the recorded runs, newest first."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from workbench.cli.context import Command, json_option
from workbench.cli.output import answer, answer_json, note, table
from workbench.cli.style import paint

SCHEMA = "workbench.runs.v1"


@click.command(cls=Command)
@click.option("-n", "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Show at most so many.")
@json_option()
def runs(limit: int, as_json: bool) -> None:
    """List the recorded runs, newest first."""
    from traces.run import list_runs, runs_root

    found = list_runs()[::-1]
    shown = found[:limit]
    if as_json:
        entries = [
            {
                "id": run.id,
                "path": str(run.path),
                "created": run.info.created,
                "engine": run.info.engine,
                "model": run.info.model,
                "world_size": run.info.world_size,
                "state": run.state,
                "bytes": _size(run.database),
            }
            for run in shown
        ]
        answer_json({"schema": SCHEMA, "root": str(runs_root()), "total": len(found), "runs": entries})
        return
    if not found:
        note(f"no runs in {runs_root()}: `workbench demo` or `workbench serve MODEL` records one")
        return
    rows = [
        (
            run.id,
            f"{datetime.fromtimestamp(run.info.created / 1e9):%Y-%m-%d %H:%M:%S}",
            run.info.engine,
            run.info.model,
            run.info.world_size,
            run.state,
            f"{_size(run.path / 'traces.duckdb') / 1e6:.1f} MB",
        )
        for run in shown
    ]
    answer(table(("run", "created", "engine", "model", "ranks", "state", "store"), rows, right=("store",)))
    if len(found) > limit:
        note(paint(f"{len(found) - limit} older ones not shown; --limit N shows more", "dim", err=True))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
