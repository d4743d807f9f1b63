"""`python -m runtime.serve_main CONFIG_JSON`: serves with the ready object on stdout and words on stderr. What `start_server` starts.

Stops when its standard input ends: whoever started it is gone then, however it ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

import msgspec

from runtime.launcher import ServerReady, serve
from runtime.serve_config import ServeConfig
from traces.errors import WorkbenchError


def main() -> int:
    config = msgspec.json.decode(sys.argv[1], type=ServeConfig)
    threading.Thread(target=_stop_at_end_of_input, daemon=True, name="stdin").start()
    try:
        return serve(config, on_ready=_announce)
    except WorkbenchError as error:
        hint = f"hint: {error.hint}\n" if error.hint else ""
        sys.stderr.write(f"error: {error.message}\n{hint}")
        return error.exit_code


def _announce(ready: ServerReady) -> None:
    facts = {"url": ready.url, "run": ready.run.id, "path": str(ready.run.path), "model": ready.model, "ranks": ready.ranks}
    sys.stdout.write(json.dumps({"schema": "workbench.ready.v1", **facts, "seconds": round(ready.seconds, 3)}) + "\n")
    sys.stdout.flush()


def _stop_at_end_of_input() -> None:
    while os.read(0, 1 << 16):  # not sys.stdin: its lock would be held when the interpreter ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
