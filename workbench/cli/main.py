"""`workbench`: finds the command that was asked for, runs it, and turns how it ended into words and an exit code.

This module is what `--help` and shell completion import, so it imports nothing but click and the error tree. Every command
lives in its own module, which is imported when the command is called (or when its own help is asked for).

Exit codes: 0 done, 1 internal error, or nobody answers, 2 usage or unreadable input, 3 the question has a bad answer, 4 warnings only,
5 inconclusive, 130 interrupted, 141 the reader of our output went away.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from traces.errors import UsageError, WorkbenchError
from workbench.cli.context import Session
from workbench.cli.failure import report_crash, report_error, report_usage

INTERRUPTED = 130
PIPE_CLOSED = 141

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("demo", "Serve the shipped model, break it, diagnose it, repair it; before and after."),
    "serve": ("serve", "Serve a model over expert-parallel ranks, watched; OpenAI-compatible API."),
    "plan": ("plan", "Say what a model costs on a layout, and which layouts of a cluster fit."),
    "verify": ("verify", "Check the weights: headers, index, config; every value; hashes; what live ranks hold."),
    "validate": ("validate", "Hold the computed model to the published one: weights, a step, short and long answers, pictures."),
    "operators": ("operators", "List the operators a model dispatches, and whether a device has a kernel for each."),
    "fabric": ("fabric", "Test collectives and every pair of ranks before a model is blamed."),
    "bringup": ("bringup", "Bring a model up step by step; stop at the first that fails, resume there."),
    "traffic": ("traffic", "Send a described mix of requests to a server and record the client's side."),
    "import": ("import_", "Bring files of other systems into a run: flight-recorder dumps, NCCL logs."),
    "collect": ("collect", "Run the collector of a run in the foreground."),
    "diagnose": ("diagnose", "Say what is wrong, where, how sure, and what to do; carry out the remedy."),
    "profile": ("profile", "Profile the next steps of a live run on all ranks: which operators take the time."),
    "drill": ("drill", "Produce labelled faults, and measure how often the playbook names them."),
    "runs": ("runs", "List the recorded runs."),
    "query": ("query", "Ask a run in SQL."),
    "tui": ("tui", "Look at a run on a live screen."),
    "report": ("report", "Write a run as one self-contained HTML page."),
    "fingerprint": ("fingerprint", "Show the environment, or what differs between two."),
    "doctor": ("doctor", "Check this installation."),
}
"""name -> (module in workbench.cli, one line of help). The module holds a click command of the same name."""

EPILOG = """\b
MODEL is a checkpoint folder, or the word "shapes" for the shipped model.
RUN is an id, the start of one, a path, or "latest".

\b
Exit codes: 0 done or healthy, 1 internal error, or nobody answers,
2 usage or unreadable input, 3 the answer is bad, 4 warnings only, 5 inconclusive, 130 interrupted.

\b
Completion: eval "$(workbench --completion bash)"   (or zsh, fish)
"""


class ReaderGone(Exception):
    """The reader of our output went away. click would turn the BrokenPipeError into exit code 1, an internal error of ours."""


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one only when it is used."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except BrokenPipeError as error:
            raise ReaderGone from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGone from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"workbench.cli.{COMMANDS[cmd_name][0]}")
        command = getattr(module, COMMANDS[cmd_name][0])
        assert isinstance(command, click.Command), f"{cmd_name} is not a click command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, n=1)
            raise UsageError(f"no command {args[0]!r}", f"did you mean `workbench {near[0]}`?" if near else "`workbench --help` lists them")
        return super().resolve_command(ctx, args)


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from workbench.version import version

        click.echo(f"workbench {version()}")
        ctx.exit()


def _print_completion(ctx: click.Context, _: click.Parameter, shell: str | None) -> None:
    if shell and not ctx.resilient_parsing:
        from click.shell_completion import get_completion_class

        completion = get_completion_class(shell)
        assert completion is not None, shell
        click.echo(completion(ctx.command, {}, "workbench", "_WORKBENCH_COMPLETE").source())
        ctx.exit()


@click.command(cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("-v", "--verbose", count=True, help="Say more on stderr; -vv for everything. Shows tracebacks.")
@click.option("-q", "--quiet", count=True, help="Say less on stderr: errors only.")
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version.")
@click.option(
    "--completion",
    type=click.Choice(["bash", "zsh", "fish"]),
    is_eager=True,
    expose_value=False,
    callback=_print_completion,
    help="Print the completion script of a shell.",
)
@click.pass_context
def cli(ctx: click.Context, verbose: int, quiet: int) -> None:
    """Observability workbench for Mixture-of-Experts models: serve, watch, diagnose, repair."""
    ctx.obj = Session(verbosity=verbose - quiet)
    if os.environ.get("NO_COLOR"):
        ctx.color = False


def run(argv: Sequence[str]) -> int:
    """Runs one command line and returns its exit code. Data has gone to stdout, everything else to stderr."""
    verbose = any(a == "--verbose" or (a.startswith("-v") and set(a[1:]) == {"v"}) for a in argv)
    try:
        result = cli.main(list(argv), prog_name="workbench", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        return report_usage(error)
    except WorkbenchError as error:
        return report_error(error, verbose)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except (BrokenPipeError, ReaderGone):
        return _pipe_closed()
    except Exception as error:  # noqa: BLE001 - the last line of defence: a person reads one sentence, the log has the rest
        return report_crash(error, argv, verbose)
    return result if isinstance(result, int) else 0


def _pipe_closed() -> int:
    """The interpreter flushes stdout once more on its way out: gives it somewhere to flush to."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return PIPE_CLOSED


def main() -> NoReturn:
    """Entry point of the `workbench` script."""
    sys.exit(run(sys.argv[1:]))
