"""A collector in the foreground: the run it collects for, and the word that it listens."""

from __future__ import annotations

import os
import threading
import time

from traces.collector.service import Options, serve
from traces.run import Run, create_run, find_run
from workbench.cli.context import session
from workbench.cli.output import answer_json, say

SCHEMA = "workbench.collect.v1"
PATIENCE = 60.0  # seconds for the store to open: one that was left in disorder is brought in order first


def collect_until_stopped(run_name: str | None, bind: str, port: int, as_json: bool) -> None:
    """Collects until SIGINT or SIGTERM. Raises UnknownRun, NotWritable, StoreBusy, and UsageError for an address that is taken."""
    run = find_run(run_name) if run_name else create_run(engine="foreign", model="collected")
    threading.Thread(target=_announce, args=(run, as_json, session().quiet), daemon=True, name="announce").start()
    serve(run, Options(bind, port))


def _announce(run: Run, as_json: bool, quiet: bool) -> None:
    """Waits for collector.json of this process, then says where it listens."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        address = run.collector()
        if address is not None and address.pid == os.getpid():
            if as_json:
                answer_json({"schema": SCHEMA, "run": run.id, "path": str(run.path), "url": address.url, "token_file": address.token_file})
            if not quiet:
                say(f"collecting for {run.id} on {address.url}, token in {address.token_file}; Ctrl-C stops")
            return
        time.sleep(0.05)
