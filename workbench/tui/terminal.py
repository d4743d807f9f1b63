"""What the terminal can show, and keeping everything else from writing on it.

Textual draws on stderr. Measured: one log line of loguru's default sink, a warning, or a child that inherits the descriptor paints
over the screen. So while the screen is up, descriptor 2 is a file in the run's logs folder and Textual alone has the terminal.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from loguru import logger

if TYPE_CHECKING:
    from textual.app import App


def plain(app: App[Any]) -> bool:
    """True where colours cannot carry sixteen ordered levels: NO_COLOR, or a terminal of sixteen colours or none."""
    forced = getattr(app, "plain", None)
    if forced is not None:
        return bool(forced)
    return app.no_color or app.console.color_system not in ("truecolor", "256")


class _ToLoguru(logging.Handler):
    """Records of libraries that use the standard logging."""

    def emit(self, record: logging.LogRecord) -> None:
        logger.opt(exception=record.exc_info).log(record.levelname, "{}: {}", record.name, record.getMessage())


@contextmanager
def own_terminal(log_file: Path | None, say: Callable[[Any], None]) -> Iterator[None]:
    """Gives the terminal to the application alone: logs go to the file and to `say`, descriptor 2 to the file."""
    logger.remove()
    logger.add(say, level="INFO", format="{message}")
    if log_file is not None:
        logger.add(log_file, level="DEBUG", rotation="10 MB", retention=2, backtrace=False, diagnose=False)
    handler, root = _ToLoguru(level=logging.WARNING), logging.getLogger()
    root.addHandler(handler)
    logging.captureWarnings(True)
    try:
        with _stderr_to(log_file):
            yield
    finally:
        logging.captureWarnings(False)
        root.removeHandler(handler)
        logger.remove()
        logger.add(sys.stderr, level="WARNING", backtrace=False, diagnose=False)


@contextmanager
def _stderr_to(log_file: Path | None) -> Iterator[None]:
    """Textual keeps the terminal under another descriptor; descriptor 2 becomes the file (or nothing)."""
    sys.stderr.flush()
    saved = os.dup(2)
    terminal = _terminal(saved)
    kept = sys.stderr, sys.__stderr__
    sink = os.open(log_file.with_suffix(".stderr") if log_file else os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(sink, 2)
    os.close(sink)
    sys.stderr = sys.__stderr__ = terminal  # type: ignore[misc,assignment]
    try:
        yield
    finally:
        terminal.flush()
        os.dup2(saved, 2)
        sys.stderr, sys.__stderr__ = kept  # type: ignore[misc]
        terminal.close()
        os.close(saved)


def _terminal(saved: int) -> TextIO:
    """The terminal: what stderr was, or the controlling terminal where stderr is a file (`workbench tui 2>errors`)."""
    if not os.isatty(saved):
        with suppress(OSError):
            return open("/dev/tty", "w", encoding="utf-8")
    return os.fdopen(os.dup(saved), "w", encoding="utf-8")
