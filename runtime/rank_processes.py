"""The child that holds the ranks, as the launcher sees it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from runtime.child import PARENT
from runtime.worker_spec import SPEC

STOP_SECONDS = 8.0  # after the stop frame: the last step, and shipping what was recorded
TERM_SECONDS = 2.0
TORCHRUN = "torchrun"
SMALL_BYTES = 128 << 20  # 64 M parameters decode 61 tokens/s on one thread, 63 on two (reference/models_and_runtime.md, 5.1)


class Death(msgspec.Struct, frozen=True):
    """How a rank ended. A negative exit code is a signal, as subprocess counts."""

    rank: int
    pid: int
    exit_code: int
    log: str = ""  # where its log is, when that is on another host

    @property
    def how(self) -> str:
        if self.exit_code >= 0:
            return f"exit code {self.exit_code}"
        try:
            return f"signal {-self.exit_code} ({signal.Signals(-self.exit_code).name})"
        except ValueError:
            return f"signal {-self.exit_code}"


class StoreAt(msgspec.Struct, frozen=True):
    """The port of torch.distributed's store, when the agent has opened it."""

    store: int


@dataclass(frozen=True, slots=True)
class Crew:
    """The ranks of one host: `ranks` of them, the first of which is number `first` of `world`.

    `master` is host:port of torch.distributed's store. Port 0: the agent opens it there (torchrun needs a real one).
    """

    ranks: int
    world: int
    first: int = 0
    master: str = "127.0.0.1:0"

    def command(self, agent: str) -> list[str]:
        host, _, port = self.master.rpartition(":")
        if agent != TORCHRUN:
            return ["-m", "runtime.rank_agent", *map(str, (self.ranks, self.first, self.world, self.master))]
        command = ["-m", "torch.distributed.run", f"--nproc-per-node={self.ranks}"]
        if self.ranks == self.world:
            command.append("--standalone")
        else:
            nodes, node = self.world // self.ranks, self.first // self.ranks
            command += [f"--nnodes={nodes}", f"--node-rank={node}", f"--master-addr={host}", f"--master-port={port}"]
        return [*command, "--module", "runtime.worker"]

    @property
    def on_loopback(self) -> bool:
        return self.ranks == self.world or self.master.startswith("127.")


@dataclass(slots=True)
class RankProcesses:
    """`deaths` in the order in which they happened. `ended` is set when the agent, and with it every rank of this host, is gone."""

    process: asyncio.subprocess.Process
    store: asyncio.Future[int]  # port of torch.distributed's store, if our own agent has opened one
    deaths: list[Death] = field(default_factory=list)
    died: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    patience: float = STOP_SECONDS
    _watcher: asyncio.Task[None] | None = None

    @classmethod
    async def spawn(cls, agent: str, crew: Crew, threads: int, spec: Path, log: Path) -> RankProcesses:
        """Starts the agent, which starts the ranks, each with `threads` threads. Its own output goes to `log`."""
        environment = _environment(threads, spec, crew.on_loopback)
        if agent == TORCHRUN:
            del environment[PARENT]  # the ranks are torchrun's children; they end with their connection to the API process
        with log.open("ab") as out:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *crew.command(agent),
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=out, env=environment, start_new_session=True,
            )  # fmt: skip
        processes = cls(process, asyncio.get_running_loop().create_future())
        processes._watcher = asyncio.create_task(processes._watch())
        return processes

    async def stop(self) -> None:
        """The ranks were told to stop: waits for it, then insists. Nothing is left afterwards."""
        for seconds, number in ((self.patience, signal.SIGTERM), (TERM_SECONDS, signal.SIGKILL)):
            try:
                await asyncio.wait_for(self.ended.wait(), seconds)
                return
            except TimeoutError:
                if self.process.returncode is None:
                    self.process.send_signal(number)  # the ranks die with the agent: PR_SET_PDEATHSIG
        await self.ended.wait()

    async def _watch(self) -> None:
        try:
            await self._listen()
        finally:  # whatever became of the listening: `stop` waits for this
            await self.process.wait()
            self.ended.set()

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            with contextlib.suppress(msgspec.MsgspecError):  # something a library printed
                self.report(msgspec.json.decode(line, type=Death))
            with contextlib.suppress(msgspec.MsgspecError, asyncio.InvalidStateError):
                self.store.set_result(msgspec.json.decode(line, type=StoreAt).store)

    def report(self, death: Death) -> None:
        """Of a rank of this host or, as its launcher tells, of another."""
        self.deaths.append(death)
        self.died.set()


def threads_per_rank(ranks: int, stored_bytes: int) -> int:
    """The ranks share the CPUs; a small model gets one thread, because its matrix products end before a second one has woken up."""
    if stored_bytes / ranks < SMALL_BYTES:
        return 1
    return max(1, len(os.sched_getaffinity(0)) // ranks)


def _environment(threads: int, spec: Path, loopback: bool) -> dict[str, str]:
    """On one host gloo uses loopback, unless a person chose an interface; between hosts it takes that of the host's name."""
    environment = {
        **({"GLOO_SOCKET_IFNAME": "lo"} if loopback else {}),
        "OMP_NUM_THREADS": str(threads),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        PARENT: str(os.getpid()),
        SPEC: str(spec),
    }
    root = str(Path(__file__).resolve().parent.parent)  # works from a checkout too, whatever the current folder
    environment["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    return environment
