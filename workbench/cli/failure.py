"""How a command that failed says so: one sentence and a remedy on stderr, the traceback in a file."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import click

from traces.errors import WorkbenchError
from workbench.cli.style import paint

INTERNAL = 1


def say_error(message: str, hint: str = "") -> None:
    """Writes `error: ...` and `hint: ...` to stderr."""
    click.echo(f"{paint('error:', 'bad', err=True)} {message}", err=True)
    if hint:
        click.echo(f"{paint('hint:', 'dim', err=True)} {hint}", err=True)


def report_error(error: WorkbenchError, verbose: bool = False) -> int:
    """An error that a person can act on."""
    if verbose:
        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    say_error(error.message, error.hint)
    return error.exit_code


def report_usage(error: click.ClickException) -> int:
    """A command line that cannot be understood."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "workbench"
    message = error.format_message()
    say_error(message[:1].lower() + message[1:], f"`{path} --help` shows what it takes")
    return error.exit_code


def report_crash(error: Exception, argv: Sequence[str], verbose: bool) -> int:
    """A defect of ours: names it in one line, keeps the traceback in a file (and shows it when asked to be verbose)."""
    text = "".join(traceback.format_exception(error))
    path = write_crash_log(text, argv)
    if verbose:
        click.echo(text, err=True, nl=False)
    where = f"the traceback is in {path}" if path else "the traceback could not be written; repeat with -v to see it"
    say_error(f"internal error: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}", where)
    return INTERNAL


def write_crash_log(text: str, argv: Sequence[str]) -> Path | None:
    """Writes a crash log to the user's log folder, or to the temporary folder; None when neither can be written."""
    import tempfile
    from datetime import UTC, datetime

    import platformdirs

    from workbench.version import version

    name = f"crash-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}.log"
    body = f"workbench {version()}, Python {sys.version.split()[0]}\n$ workbench {' '.join(argv)}\n\n{text}"
    for folder in (platformdirs.user_log_path("workbench"), Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(body)
        except OSError:
            continue
        return folder / name
    return None
