"""`workbench tui`: the live screen."""

from __future__ import annotations

import sys

import click

from traces.errors import UsageError
from workbench.cli.context import Command, finish, run_option


@click.command(cls=Command)
@run_option()
@click.option("--interval", type=click.FloatRange(min=0.1), default=1.0, show_default=True, help="Seconds between two readings.")
def tui(run_name: str, interval: float) -> None:
    """Look at a run, live or recorded, on a screen. `?` lists the keys, `q` quits."""
    from traces.run import find_run

    run = find_run(run_name)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("the screen needs a terminal", "`workbench report` writes the same as a page; over ssh, use `ssh -t`")

    from workbench.tui.app import run as show

    finish(show(run, interval=interval))
