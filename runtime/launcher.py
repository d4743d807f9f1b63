"""`workbench serve`: a run, its collector, the ranks and the API, from the first check to the last process. Never imports torch."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from probes.checkpoint import Checkpoint, read_config
from runtime.arch import ArchSpec, read_arch
from runtime.child import name_process
from runtime.collector_keeper import CollectorKeeper
from runtime.first_placement import first_placement
from runtime.nodes.frames import join_token
from runtime.nodes.gathering import Gathering
from runtime.nodes.head import HeadNode
from runtime.nodes.member import join
from runtime.placement import Placement
from runtime.rank_failure import RankFailed, explain
from runtime.rank_processes import RankProcesses, threads_per_rank
from runtime.serve_config import ServeConfig
from runtime.server_address import bind, url_of
from runtime.server_process import ServerProcess, start_server
from runtime.start_progress import StartProgress
from runtime.worker_spec import WorkerSpec
from traces.errors import WorkbenchError
from traces.run import Run, create_run

if TYPE_CHECKING:
    from runtime.server.hub import Hub

__all__ = ["RankFailed", "ServerProcess", "ServerReady", "serve", "start_server"]


@dataclass(frozen=True, slots=True)
class ServerReady:
    """What is known once requests are answered."""

    url: str
    run: Run
    model: str
    ranks: int
    seconds: float  # since `serve` was called


OnReady = Callable[[ServerReady], None]


def serve(config: ServeConfig, on_ready: OnReady | None = None) -> int:
    """Serves until SIGINT or SIGTERM; returns 0. Everything that was started is gone when it returns or raises.

    Raises UsageError (a setting, the port, the checkpoint: before any rank starts, or named by a rank while it loads) and RankFailed.
    """
    began = time.monotonic()
    config = config.checked()
    arch = read_arch(read_config(config.model))  # an unsupported architecture is named before any shard is looked at
    checkpoint = Checkpoint.open(config.model)
    config.layout.checked(arch)
    placement = first_placement(config, arch)
    if config.node_rank:
        return join(config, checkpoint.stored_bytes)
    local = config.layout.world // config.nodes
    threads = threads_per_rank(local, checkpoint.stored_bytes // config.nodes)
    token = join_token() if config.nodes > 1 else b""
    listener = bind(config.host, config.port)
    try:
        run = _new_run(config)
        name_process("wb-serve")
        return asyncio.run(_Serving(config, arch, placement, threads, listener, run, on_ready, began, token).run())
    finally:
        listener.close()


def _new_run(config: ServeConfig) -> Run:
    root = Path(config.run_root) if config.run_root else None
    layout = config.layout
    run = create_run(
        engine="workbench", model=config.served_name, root=root, model_path=str(Path(config.model).resolve()), world_size=layout.world,
        layout=layout.sizes(), command=sys.argv, config=msgspec.to_builtins(config),
    )  # fmt: skip
    token = os.open(run.path / "control.token", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(token, "w") as file:
        file.write(secrets.token_urlsafe(32))
    return run


@dataclass(slots=True)
class _Serving:
    """One server's life."""

    config: ServeConfig
    arch: ArchSpec
    placement: Placement
    threads: int  # of each rank
    listener: socket.socket
    server_run: Run
    on_ready: OnReady | None
    began: float
    token: bytes  # with which other nodes join
    head: HeadNode | None = None
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    hurry: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> int:
        state = "crashed"
        self._catch_signals()
        try:
            async with AsyncExitStack() as stack:
                failure = await self._serve(stack)
                if failure is not None:
                    raise failure
                state = "closed"
            return 0
        finally:
            self.server_run.update(state=state)

    async def _serve(self, stack: AsyncExitStack) -> WorkbenchError | None:
        """From the ranks' start to the end of serving; what is left to undo is on the stack, in the right order."""
        # Not at the top: they take half a second, which the ranks need not wait for, and a wrong setting should not cost it.
        from runtime.server.hub import Hub

        run, config = self.server_run, self.config
        world = config.layout.world
        progress = StartProgress(world)
        progress.begin(f"starting {config.served_name} on {world} rank{'s' * (world > 1)}, run {run.id}")
        hub = Hub(config.layout, secrets.token_hex(32), progress_listener=progress.update)
        gathering = await Gathering.open(config, self.token, run, progress.begin)
        self.head = gathering.head
        spec = WorkerSpec(run=str(run.path), api=await hub.listen(gathering.address), token=hub.token, config=config)
        spec.write(run.path / "ranks.json")
        log = run.path / "logs" / "launcher.log"
        ranks = await RankProcesses.spawn(config.agent, gathering.crew, self.threads, run.path / "ranks.json", log)
        keeper = CollectorKeeper(run, gathering.address)
        if config.telemetry:
            keeper.start()
            stack.push_async_callback(keeper.stop)  # last: everyone's rows go there
        stack.push_async_callback(hub.close)
        stack.push_async_callback(ranks.stop)
        if self.head is not None:
            gathering.welcome(spec, ranks, keeper if config.telemetry else None)
            stack.push_async_callback(gathering.close)
        from runtime.server.api import Api

        api = await Api.start(config, self.arch, self.placement, hub, run, self.listener)
        stack.push_async_callback(api.close)
        ended = await self._until(hub.ready, hub, ranks)
        if ended == "ready":
            if config.telemetry:
                await keeper.started.wait()
            self._announce()
            ended = await self._until(self.stop, hub, ranks)
        else:
            ranks.patience = 0.2  # ranks that load do not listen
        if ended == "trouble":
            failure = await explain(hub, ranks, run, api, gathering.lost)
            gathering.failure = failure
            ranks.patience = 2.0
            await hub.close()  # the ranks that are left wait for this
            return failure
        await api.drain(config.drain_seconds, self.hurry)
        hub.stop_ranks()
        return None

    async def _until(self, event: asyncio.Event, hub: Hub, ranks: RankProcesses) -> str:
        """What comes first: `ready` (the event), `stop` (a signal), or `trouble` (a rank)."""
        signs = (event.wait(), self.stop.wait(), ranks.died.wait(), ranks.ended.wait())
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(sign) for sign in signs]
        lost = [self.head.lost] if self.head is not None else []
        await asyncio.wait([*waits, hub.trouble, *lost], return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if self.stop.is_set():
            return "stop"
        bad = hub.trouble.done() or ranks.died.is_set() or ranks.ended.is_set() or any(future.done() for future in lost)
        return "trouble" if bad else "ready"

    def _announce(self) -> None:
        url = url_of(self.listener, self.config.host)
        run = self.server_run
        run.update(endpoint={"url": url, "control_token_file": str(run.path / "control.token")})
        ready = ServerReady(url, run, self.config.served_name, self.config.layout.world, time.monotonic() - self.began)
        if self.on_ready is not None:
            self.on_ready(ready)

    def _catch_signals(self) -> None:
        """The first SIGINT or SIGTERM drains; a second one does not wait for requests in flight."""
        loop = asyncio.get_running_loop()

        def caught() -> None:
            (self.hurry if self.stop.is_set() else self.stop).set()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup means it
                loop.add_signal_handler(number, caught)
