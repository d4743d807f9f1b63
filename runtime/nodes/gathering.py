"""What the head's launcher does about other nodes; with a single node, almost nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from runtime.collector_keeper import CollectorKeeper
from runtime.nodes.frames import Goodbye, Welcome
from runtime.nodes.head import HeadNode, collector_at, resolve
from runtime.rank_processes import STOP_SECONDS, TORCHRUN, Crew, RankProcesses
from runtime.serve_config import JOIN_PORT, ServeConfig
from runtime.worker_spec import WorkerSpec
from traces.errors import WorkbenchError
from traces.run import Run

LOOPBACK = "127.0.0.1"


@dataclass(slots=True)
class Gathering:
    """`address` is where everything that ranks connect to listens."""

    config: ServeConfig
    address: str
    crew: Crew
    head: HeadNode | None = None
    failure: WorkbenchError | None = None  # why the run ends, for the other nodes
    _task: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, config: ServeConfig, token: bytes, run: Run, say: Callable[[str], None]) -> Gathering:
        """Waits for nothing yet. UsageError when the head's address is not this host's."""
        world = config.layout.world
        if config.nodes == 1:
            return cls(config, LOOPBACK, Crew(world, world))
        assert config.head is not None
        address, port = resolve(config.head, JOIN_PORT)
        head = HeadNode(config.nodes, config.layout, token, run, lambda death: None, lambda text: say(f"{text}\n"))
        await head.listen(address, port)
        store = _free_port(address) if config.agent == TORCHRUN else 0
        say(f"waiting for {config.nodes - 1} more nodes at {address}:{port}\n")
        if split := config.layout.split_hosts(head.ranks):
            say(f"warning: {len(split)} tensor-parallel groups (first ranks {split[:8]}) span hosts; every layer waits for that network\n")
        return cls(config, address, Crew(head.ranks, world, 0, f"{address}:{store}"), head)

    @property
    def lost(self) -> str:
        """Which node is gone; empty: none."""
        return self.head.lost.result() if self.head is not None and self.head.lost.done() else ""

    def welcome(self, spec: WorkerSpec, ranks: RankProcesses, keeper: CollectorKeeper | None) -> None:
        """Sends the other nodes to work as soon as what their ranks connect to is there."""
        assert self.head is not None
        self.head.on_death = ranks.report
        self._task = asyncio.create_task(self._welcome(self.head, spec, ranks, keeper))

    async def close(self) -> None:
        assert self.head is not None
        if self._task is not None:
            self._task.cancel()
        failure = self.failure
        goodbye = Goodbye("the run has ended", 0) if failure is None else Goodbye(failure.message, failure.exit_code)
        await self.head.close(goodbye, STOP_SECONDS)

    async def _welcome(self, head: HeadNode, spec: WorkerSpec, ranks: RankProcesses, keeper: CollectorKeeper | None) -> None:
        store = self.crew.master
        if store.endswith(":0"):
            store = f"{self.address}:{await ranks.store}"
        if keeper is not None:
            await keeper.started.wait()
        collector = collector_at(head.run) if keeper is not None else None
        config = msgspec.to_builtins(self.config)
        head.open(Welcome(head.run.id, spec.api, spec.token, store, 0, head.ranks, config, collector))


def _free_port(address: str) -> int:
    """For torchrun, which wants to be told one."""
    with socket.create_server((address, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
