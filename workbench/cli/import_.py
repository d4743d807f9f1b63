"""`workbench import`: files that other systems wrote, into a run."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import click

from workbench.cli.context import Command, complete_run, json_option
from workbench.cli.output import answer, answer_json, note, table

SCHEMA = "workbench.import.v1"
NEXT = {
    "flight-recorder": "hang",
    "collective-log": "cross-node-throughput",
    "nccl-ras": "hang",
    "nccl-inspector": "cross-node-throughput",
    "start-log": "hang",
}
"""Kind of file -> the symptom that it helps to explain."""


@click.command(cls=Command, name="import")
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--run", "run_name", metavar="RUN", shell_complete=complete_run, help="Run to import into; a new one by default.")
@click.option("--name", default="import", show_default=True, help="Name of the new run.")
@json_option()
def import_(paths: tuple[Path, ...], run_name: str | None, name: str, as_json: bool) -> None:
    """Bring files of other systems into a run, to be diagnosed and looked at like our own.

    FILE is a file or a folder. Known: flight-recorder dumps of PyTorch (pickle or JSON; NCCL, RCCL, HCCL, gloo), one per rank;
    debug logs of NCCL, RCCL and MCCL (NCCL_DEBUG=INFO), of any number of ranks in a file; answers of NCCL's RAS service
    (`ncclras -f json`); measurements of its inspector plugin (JSON lines or Prometheus text); what torchrun or a rank wrote of a start
    that failed.
    Nothing in a file is ever executed.
    """
    from probes.foreign.importing import read
    from traces.run import find_run, whole_run
    from traces.store import write_rows

    rows, files = read(paths)
    with nullcontext(find_run(run_name)) if run_name is not None else whole_run(engine="imported", model=name) as run:
        for kind, values in rows.items():
            write_rows(run, kind, values, producer="import")
    entries = [{"path": str(file.path), "kind": file.kind, "rows": file.rows, "warnings": file.warnings} for file in files]
    if as_json:
        answer_json({"schema": SCHEMA, "run": run.id, "path": str(run.path), "files": entries})
        return
    answer(table(("file", "kind", "rows", ""), [(file.path, file.kind or "-", file.rows, "; ".join(file.warnings)) for file in files]))
    symptoms = sorted({NEXT[file.kind] for file in files if file.kind})
    note(f"run {run.id}: " + "; ".join(f"`workbench diagnose {symptom} --run {run.id}`" for symptom in symptoms))
