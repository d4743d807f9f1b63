"""Starts the ranks of this host: `python -m runtime.rank_agent RANKS FIRST WORLD MASTER`, a child of the launcher.

Imports torch once and forks the ranks, which saves each of them the import (3 s of CPU), and gives them the environment torchrun gives
its workers. torchrun itself would take 7 s longer to start four ranks on two cores, and its agent needs 6 s of lazy imports between a
rank's death and its report (torch 2.13).

Every death goes to stdout as one JSON line, in the order in which they happened; before them the port of the store, if it is opened here.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from typing import Any, NoReturn

from runtime.child import PARENT, die_with_parent, name_process


def main() -> int:
    """0 when all ranks ended well, 1 when one failed."""
    die_with_parent(int(os.environ[PARENT]))
    name_process("wb-agent")
    ranks, first, world = map(int, sys.argv[1:4])
    host, _, port = sys.argv[4].rpartition(":")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The ranks' own imports: what is imported here, no rank imports again.
    import torch.distributed as dist

    from runtime import worker

    store = None
    if port == "0":
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        port = str(store.port)
        _say({"store": store.port})
    os.environ |= _shared_environment(ranks, first, world, host, port)
    gc.collect()
    gc.freeze()  # keeps the collector from touching, and so copying, pages the ranks share
    children = {_fork(worker.main, first, rank): first + rank for rank in range(ranks)}
    return _wait(children)


def _shared_environment(ranks: int, first: int, world: int, host: str, port: str) -> dict[str, str]:
    """What torchrun sets (torch.distributed.run, "Environment Variables")."""
    return {
        "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(ranks), "GROUP_RANK": str(first // ranks),
        "MASTER_ADDR": host, "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store lives here, no rank has to open it
        PARENT: str(os.getpid()),
    }  # fmt: skip


def _say(line: dict[str, int]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _fork(run: Any, first: int, rank: int) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.environ |= {"RANK": str(first + rank), "LOCAL_RANK": str(rank)}
        _be_rank(run)
    return pid


def _be_rank(run: Any) -> NoReturn:
    """Ends without this process's own exit handlers, which belong to the agent."""
    code = 1
    try:
        run()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(children: dict[int, int]) -> int:
    failed = False
    while children:
        pid, status = os.wait()
        rank, code = children.pop(pid), os.waitstatus_to_exitcode(status)
        if code != 0:
            failed = True
            _say({"rank": rank, "pid": pid, "exit_code": code})
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
