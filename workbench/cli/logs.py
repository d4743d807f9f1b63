"""The log of the command line. Libraries log through loguru; only this module (and the TUI) decides where it goes."""

from __future__ import annotations

import sys

LEVELS = {-1: "ERROR", 0: "WARNING", 1: "INFO", 2: "DEBUG"}


def configure(verbosity: int) -> None:
    """Sends the log to stderr at the level that -v and -q ask for."""
    from loguru import logger

    from workbench.cli.style import coloured

    level = LEVELS[max(-1, min(2, verbosity))]
    logger.remove()
    logger.add(
        sys.stderr,
        level=level,
        colorize=coloured(err=True),
        backtrace=False,
        diagnose=False,
        format="<dim>{time:HH:mm:ss.SSS}</dim> <level>{level: <7}</level> {message}",
    )
