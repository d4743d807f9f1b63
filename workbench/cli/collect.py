"""`workbench collect`: runs a collector in the foreground."""

from __future__ import annotations

import click

from workbench.cli.context import Command, complete_run, json_option


@click.command(cls=Command)
@click.option("--run", "run_name", metavar="RUN", shell_complete=complete_run, help="Run to collect into; a new one by default.")
@click.option("--bind", default="127.0.0.1", show_default=True, help="Address to listen on; ranks on other hosts need one of theirs.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="Port; 0 takes a free one.")
@json_option()
def collect(run_name: str | None, bind: str, port: int, as_json: bool) -> None:
    """Run a collector in the foreground until it is stopped (Ctrl-C).

    It owns the store of its run, takes Arrow segments and OTLP/HTTP, and answers read-only SQL. Address and token file stand in
    collector.json of the run folder.
    """
    from workbench.cli.collecting import collect_until_stopped

    collect_until_stopped(run_name, bind, port, as_json)
