"""`workbench serve --node-rank R` for R > 0: joins the head's run, starts this host's ranks, and ends when the run ends. No torch."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from runtime.child import name_process
from runtime.nodes.folder import node_run, point_to_collector
from runtime.nodes.frames import (
    Challenge,
    CollectorAt,
    Fingerprint,
    Goodbye,
    Join,
    NodeEnded,
    RankDied,
    Refused,
    Welcome,
    Wire,
    join_token,
    proof,
)
from runtime.nodes.head import resolve
from runtime.rank_failure import RankFailed
from runtime.rank_log import rank_log_path
from runtime.rank_processes import Crew, RankProcesses, threads_per_rank
from runtime.serve_config import JOIN_PORT, ServeConfig
from runtime.worker_spec import WorkerSpec
from traces.errors import Unreachable, UsageError, WorkbenchError
from traces.run import Run

CONNECT_SECONDS = 300.0  # the head may be started later
RETRY_SECONDS = 0.5
GREET_SECONDS = 10.0  # a head speaks first
GOODBYE_SECONDS = 30.0  # for the head to say why, after the ranks of this node have ended
LOOK_SECONDS = 0.1


class NodeRefused(UsageError):
    """The head does not want this node."""


def join(config: ServeConfig, stored_bytes: int) -> int:
    """Serves as one node of several until the head ends the run; 0 when that was orderly. Raises NodeRefused, Unreachable, RankFailed."""
    name_process("wb-node")
    return asyncio.run(_Membership(config, stored_bytes, join_token()).run())


@dataclass(slots=True)
class _Membership:
    config: ServeConfig
    stored_bytes: int
    token: bytes
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    goodbye: Goodbye | None = None
    told: set[str] = field(default_factory=set)
    deaths: int = 0  # of this node's ranks that the head knows

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.stop.set)
        wire = await self._connect()
        if wire is None:
            return 0
        try:
            welcome = await self._greet(wire)
            if welcome is None:
                return 0
            return await self._serve(wire, welcome)
        finally:
            await wire.close()

    async def _connect(self) -> Wire | None:
        """The head, as soon as it listens; None when this process was told to stop meanwhile. Raises Unreachable."""
        assert self.config.head is not None
        host, port = resolve(self.config.head, JOIN_PORT)
        until = time.monotonic() + CONNECT_SECONDS
        _say(f"node {self.config.node_rank}: looking for the head at {host}:{port}, for {CONNECT_SECONDS:.0f} s at most")
        while True:
            opening = asyncio.ensure_future(asyncio.open_connection(host, port))
            if await self._stopped_before(opening):
                return None
            try:
                return Wire(*opening.result())
            except OSError as error:
                if time.monotonic() > until:
                    raise Unreachable(
                        f"the head node at {host}:{port} does not answer: {error.strerror}",
                        "start `workbench serve ... --node-rank 0` there, and let this port through",
                    ) from error
            if await self._stopped_before(asyncio.ensure_future(asyncio.sleep(RETRY_SECONDS))):
                return None

    async def _stopped_before(self, work: asyncio.Future[Any]) -> bool:
        """Waits for the work, or gives it up when this process is told to stop."""
        stopping = asyncio.ensure_future(self.stop.wait())
        await asyncio.wait((work, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if work.done():
            return False
        work.cancel()
        return True

    async def _greet(self, wire: Wire) -> Welcome | None:
        """What the head wants of this node; None when this process was told to stop meanwhile."""
        try:
            async with asyncio.timeout(GREET_SECONDS):
                challenge = await wire.read()
            if not isinstance(challenge, Challenge):
                raise ConnectionError("this is not a head node")
            node = self.config.node_rank
            sizes = self.config.layout.sizes()
            wire.send(Join(node, self.config.nodes, socket.gethostname(), sizes, proof(self.token, challenge.nonce, node)))
            reading = asyncio.ensure_future(wire.read())
            if await self._stopped_before(reading):
                return None
            answer = reading.result()
        except TimeoutError as error:
            hint = "--head names host and join port of node 0"
            raise Unreachable(f"what listens at {self.config.head} says nothing: it is no head node", hint) from error
        except ConnectionError as error:
            raise Unreachable(f"the head node closed the connection: {error}", "its own output says why") from error
        if isinstance(answer, Welcome):
            return answer
        if isinstance(answer, Refused):
            raise NodeRefused(answer.message, answer.hint)
        if isinstance(answer, Goodbye):
            raise RankFailed(f"the run ended before this node was needed: {answer.message}")
        raise Unreachable(f"the head node said {type(answer).__name__}", "start the same version of the workbench on every node")

    async def _serve(self, wire: Wire, welcome: Welcome) -> int:
        run = node_run(self.config, welcome)
        settings = {**welcome.config, "model": self.config.model, "run_root": self.config.run_root}
        try:
            config = msgspec.convert(settings, ServeConfig)
        except msgspec.ValidationError as error:
            hint = "start the same version of the workbench on every node"
            raise NodeRefused(f"the head's settings are not known here: {error}", hint) from error
        WorkerSpec(run=str(run.path), api=welcome.api, token=welcome.token, config=config).write(run.path / "ranks.json")
        threads = threads_per_rank(welcome.ranks, self.stored_bytes * welcome.ranks // config.layout.world)
        crew = Crew(welcome.ranks, config.layout.world, welcome.first, welcome.store)
        ranks = await RankProcesses.spawn(config.agent, crew, threads, run.path / "ranks.json", run.path / "logs" / "launcher.log")
        last = welcome.first + welcome.ranks - 1
        _say(f"node {self.config.node_rank}: ranks {welcome.first} to {last} of run {welcome.run}; logs in {run.path / 'logs'}")
        tasks = [asyncio.ensure_future(work) for work in (self._listen(wire, run), self._tell(wire, run, ranks))]
        ends = [asyncio.ensure_future(end) for end in (self.stop.wait(), ranks.ended.wait())]
        try:
            await asyncio.wait([tasks[0], *ends], return_when=asyncio.FIRST_COMPLETED)
            if self.stop.is_set() or (tasks[0].done() and self.goodbye is None):
                ranks.patience = 0.2  # nobody is left whom they could serve
            await ranks.stop()
            self._news(wire, run, ranks)
            wire.send(NodeEnded())
            if not self.stop.is_set():
                await asyncio.wait([tasks[0]], timeout=GOODBYE_SECONDS)
        finally:
            for task in (*tasks, *ends):
                task.cancel()
        return self._outcome()

    async def _listen(self, wire: Wire, run: Run) -> None:
        """Until the head says goodbye or is gone."""
        with contextlib.suppress(ConnectionError):
            while self.goodbye is None:
                frame = await wire.read()
                if isinstance(frame, CollectorAt):
                    point_to_collector(run, frame)
                elif isinstance(frame, Goodbye):
                    self.goodbye = frame

    async def _tell(self, wire: Wire, run: Run, ranks: RankProcesses) -> None:
        while True:
            self._news(wire, run, ranks)
            await asyncio.sleep(LOOK_SECONDS)

    def _news(self, wire: Wire, run: Run, ranks: RankProcesses) -> None:
        """Deaths and fingerprints that the head has not heard of."""
        for death in ranks.deaths[self.deaths :]:
            self.deaths += 1
            wire.send(RankDied(death.rank, death.pid, death.exit_code, str(rank_log_path(run.path, death.rank))))
        for producer, facts in run.info.fingerprints.items():
            if producer not in self.told:
                self.told.add(producer)
                wire.send(Fingerprint(producer, facts))

    def _outcome(self) -> int:
        if self.stop.is_set():
            _say(f"node {self.config.node_rank}: stopped; the run cannot go on without it")
            return 0
        if self.goodbye is None:
            raise RankFailed("the head node is gone", "its own output, or the run folder there, says why")
        if self.goodbye.exit_code == 0:
            return 0
        error = RankFailed(self.goodbye.message, "the head node has the run")
        raise error if self.goodbye.exit_code == WorkbenchError.exit_code else NodeRefused(error.message, error.hint)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
