"""What `workbench serve` says once it answers."""

from __future__ import annotations

from runtime.launcher import ServerReady
from workbench.cli.output import answer_json, note
from workbench.cli.style import paint

SCHEMA = "workbench.ready.v1"


def announce(ready: ServerReady, as_json: bool) -> None:
    """The address, the run, and what to type next; with --json one object on stdout for the program that started us."""
    if as_json:
        answer_json(
            {
                "schema": SCHEMA,
                "url": ready.url,
                "run": ready.run.id,
                "path": str(ready.run.path),
                "model": ready.model,
                "ranks": ready.ranks,
                "seconds": round(ready.seconds, 3),
            }
        )
    note(f"{paint('ready', 'good', err=True)} {ready.model} on {ready.ranks} ranks after {ready.seconds:.1f} s: {ready.url}/v1")
    note(f"      run {ready.run.id} ({ready.run.path})")
    note(f"      workbench traffic {ready.url}  ·  workbench tui  ·  workbench diagnose tail-latency  ·  Ctrl-C stops")
