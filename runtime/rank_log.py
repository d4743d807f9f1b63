"""A rank's own stdout and stderr: its log file, never the person's terminal."""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
from pathlib import Path


def rank_log_path(run: Path, rank: int) -> Path:
    return run / "logs" / f"rank{rank}.log"


def redirect_to_log(path: Path) -> None:
    """Everything this process writes from here on, native libraries included; a fatal signal leaves its Python stack there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr, force=True)
