"""`python -m traces.collector --run PATH`: collects for one run until SIGTERM, SIGINT, or the end of its parent."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from loguru import logger

from traces.collector.service import Options, serve
from traces.errors import WorkbenchError
from traces.run import Run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m traces.collector", description="Collects the telemetry of one run.")
    parser.add_argument("--run", type=Path, required=True, help="run folder")
    parser.add_argument("--bind", default="127.0.0.1", help="address to listen on (default: loopback only)")
    parser.add_argument("--port", type=int, default=0, help="port (default: any free one)")
    parser.add_argument("--parent-pid", type=int, default=0, help="end when this process is gone")
    given = parser.parse_args()
    logger.remove()
    logger.add(sys.stderr, format="{time:YYYY-MM-DD HH:mm:ss.SSS} {level} {message}", level="INFO", backtrace=False, diagnose=False)
    try:
        serve(Run(given.run), Options(given.bind, given.port, given.parent_pid))
    except WorkbenchError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
