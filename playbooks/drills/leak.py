"""A library that leaks, inside one rank: a few million live objects, and a collector that walks over all of them now and then.

This is how garbage collection came to stop whole clusters (reference/causes_latency_network_hang_load.md, S4 cases 12 to 15). It gets
into the rank as such libraries do, through Python's site hook (`site/sitecustomize.py`), and nothing in the rank knows about it.
"""

from __future__ import annotations

import gc
import os
import threading
import time

LEAK = "WORKBENCH_DRILL_LEAK"
POLL = 0.2


def variable(rank: int, objects: int, seconds: float) -> dict[str, str]:
    """The environment that makes one rank leak `objects` live objects and collect every `seconds`."""
    site = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")
    path = os.pathsep.join([site, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {LEAK: f"{rank}:{objects}:{seconds}", "PYTHONPATH": path}


def arm() -> None:
    """In the process that forks the ranks: a child begins to leak when it turns out to be the rank."""
    frozen = gc.get_freeze_count

    def in_child() -> None:
        threading.Thread(target=_leak, args=(os.environ[LEAK], frozen()), name="leak", daemon=True).start()

    os.register_at_fork(after_in_child=in_child)


def _leak(described: str, frozen: int) -> None:
    rank, objects, seconds = described.split(":")
    while "RANK" not in os.environ:
        time.sleep(POLL)
    if os.environ["RANK"] != rank:
        return
    while gc.get_freeze_count() <= frozen:  # what lives before the rank freezes its heap is never looked at again
        time.sleep(POLL)
    kept: list[list[object]] = []
    while len(kept) < int(objects):
        kept += [[] for _ in range(10_000)]
        time.sleep(0.001)  # the rank goes on stepping meanwhile
    while True:
        time.sleep(float(seconds))
        gc.collect()
