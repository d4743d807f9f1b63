"""Takes a profile of a live run: asks all ranks, waits until every one has written its operators."""

from __future__ import annotations

import time
from collections.abc import Callable

from playbooks.operators import Profile, latest
from runtime.control_client import ControlClient
from traces.errors import Unreachable
from traces.run import Run
from traces.store import open_run

POLL = 0.25


def take(run: Run, steps: int, wait: float, say: Callable[[str], None]) -> Profile:
    """Raises Unreachable when the run is not live, or when no traffic made the steps within `wait` seconds."""
    with ControlClient.for_run(run) as control:
        window = control.profile(steps)
        world = int(control.state()["world"])
    first, last = int(window["first"]), int(window["last"])
    say(f"profiling steps {first} to {last} on {world} ranks")
    deadline = time.monotonic() + wait
    with open_run(run) as store:
        while True:
            found = latest(store, first)
            if found is not None and len(found.window.ranks) == world:
                return found
            if time.monotonic() >= deadline:
                url = (run.info.endpoint or {}).get("url", "URL")
                hint = f"steps happen only with traffic: `workbench traffic {url}`, or wait longer (--wait)"
                raise Unreachable(f"steps {first} to {last} were not all made within {wait:g} s", hint)
            time.sleep(POLL)
