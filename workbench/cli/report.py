"""`workbench report`: a run as one HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from workbench.cli.context import Command, json_option, run_option
from workbench.cli.output import answer, answer_json, note

SCHEMA = "workbench.report.v1"


@click.command(cls=Command)
@run_option()
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write; by default in the run's reports folder.")
@json_option()
def report(run_name: str, output: Path | None, as_json: bool) -> None:
    """Write a run as one self-contained HTML page that opens without a network."""
    from traces.run import find_run
    from workbench.report.page import write_report

    run = find_run(run_name)
    written = write_report(run, output)
    if as_json:
        answer_json(
            {
                "schema": SCHEMA,
                "run": run.id,
                "path": str(written.path),
                "bytes": written.bytes,
                "figures": written.figures,
                "missing": written.missing,
            }
        )
        return
    answer(str(written.path))
    note(
        f"{len(written.figures)} figures, {written.bytes / 1e6:.1f} MB"
        + (f"; not measured: {len(written.missing)}" if written.missing else "")
    )
