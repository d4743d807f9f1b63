"""What happened to the ranks, in words: which one was first, how it ended, where its log is, what to do."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from probes.machine import shared_memory
from runtime.rank_log import rank_log_path
from runtime.rank_processes import Death, RankProcesses
from traces.errors import UsageError, WorkbenchError
from traces.run import Run

if TYPE_CHECKING:
    from runtime.server.api import Api
    from runtime.server.hub import Hub, Trouble

REPORT_SECONDS = 2.0  # a connection closes a little before its process can be waited for


class RankFailed(WorkbenchError):
    """A rank ended while others still needed it."""


class RankCannotStart(UsageError):
    """A rank could not load what it was given."""


async def explain(hub: Hub, ranks: RankProcesses, run: Run, api: Api, lost: str = "") -> WorkbenchError:
    """Fails the requests in flight, waits for the cause of death to be known, records it, and says it in one sentence.

    `lost` says which other node is gone, if one is.
    """
    trouble: Trouble | None = hub.trouble.result() if hub.trouble.done() else None
    hub.fail_all(_for_clients(trouble))
    if trouble is not None and trouble.exit_code == 2:
        return RankCannotStart(f"rank {trouble.rank}: {trouble.error}", trouble.hint)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(ranks.died.wait(), REPORT_SECONDS if not lost else 0)
    death = _first(trouble, ranks.deaths)
    if death is None and lost:
        api.recorder.event("death", how="unknown", error=lost)
        return RankFailed(f"{lost}, and its ranks with it", "its own output says why; if it says nothing, see the host or the network")
    if death is None and trouble is None:
        log = run.path / "logs" / "launcher.log"
        return RankFailed("the ranks ended before they could say why", f"the last lines of {log} should tell")
    rank = death.rank if death else trouble.rank if trouble else -1
    api.recorder.event(
        "death", rank=rank, pid=death.pid if death else None, exit_code=death.exit_code if death else None,
        how=death.how if death else "unknown", error=trouble.error if trouble else None,
        log=death.log if death and death.log else f"logs/rank{rank}.log",
        shm_free=None if death and death.log else shared_memory()["free"],
    )  # fmt: skip
    return _sentence(rank, trouble, death, run)


def _first(trouble: Trouble | None, deaths: list[Death]) -> Death | None:
    """The first death there was; an exception that a rank reported names its rank before the process has ended."""
    if trouble is not None and trouble.expected:
        return next((death for death in deaths if death.rank == trouble.rank), None)
    return deaths[0] if deaths else None


def _for_clients(trouble: Trouble | None) -> str:
    which = f"rank {trouble.rank}" if trouble is not None else "the ranks"
    return f"{which} ended while this request was being computed; the server is going down"


def _sentence(rank: int, trouble: Trouble | None, death: Death | None, run: Run) -> RankFailed:
    how = f" ({death.how})" if death else ""
    why = f": {trouble.error}" if trouble is not None and trouble.expected else ""
    log = death.log if death is not None and death.log else rank_log_path(run.path, rank)
    query = f"SELECT * FROM memory WHERE rank = {rank} ORDER BY ts DESC LIMIT 5"
    hint = f"its log is {log}; `workbench query --run {run.id} \"{query}\"` shows its memory before"
    if death is not None and death.exit_code == -9:
        hint = f"SIGKILL comes from the kernel when memory runs out, or from a person: see `dmesg`, and {hint}"
    return RankFailed(f"rank {rank} died first{how}{why}", hint)
