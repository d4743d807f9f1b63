"""What every command shares: how talkative the session is, the command class, and the options that recur."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Session:
    """One command line. verbosity: -1 errors only, 0 normal, 1 informational log, 2 everything."""

    verbosity: int = 0

    @property
    def quiet(self) -> bool:
        return self.verbosity < 0


class Command(click.Command):
    """A command of ours: sets the log up just before it runs, so that help costs nothing."""

    def invoke(self, ctx: click.Context) -> Any:
        from workbench.cli.logs import configure

        session = ctx.find_object(Session) or Session()
        configure(session.verbosity)
        return super().invoke(ctx)


def session() -> Session:
    """The session of the command that is running."""
    context = click.get_current_context(silent=True)
    return (context.find_object(Session) if context else None) or Session()


def finish(code: int) -> None:
    """Ends the command with an exit code."""
    if code:
        click.get_current_context().exit(code)


def complete_run(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of the recorded runs, newest first, and `latest`."""
    from traces.run import list_runs

    found = [CompletionItem(run.id, help=run.info.model) for run in list_runs()]
    return [item for item in [CompletionItem("latest"), *found] if item.value.startswith(incomplete)]


def run_option(help: str = "Run: an id, the start of one, a path, or latest.") -> Callable[[Decorated], Decorated]:
    return click.option("--run", "run_name", metavar="RUN", default="latest", show_default=True, shell_complete=complete_run, help=help)


def json_option() -> Callable[[Decorated], Decorated]:
    return click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON with a schema key.")
