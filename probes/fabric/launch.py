"""Starts the ranks of a fabric test on this host, waits for them within a time, and leaves none behind."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from probes.fabric.answer import Fabric
from traces.errors import BadAnswer, Unreachable, UsageError

BACKENDS = ("gloo", "nccl")


@dataclass(frozen=True, slots=True)
class FabricTest:
    """`ranks` on this host, which is number `node` of `nodes`; `head` is host:port of the first one."""

    ranks: int = 2
    nodes: int = 1
    node: int = 0
    head: str = ""
    backend: str = "gloo"
    largest: int = 16 << 20  # bytes of the largest message
    timeout: float = 600.0  # seconds for everything
    budget: float = 1.0  # seconds for one size of one pair: on a slow path fewer repeats
    soak: float = 0.0  # seconds for which the pair test is repeated
    rows: tuple[int, int, int] | None = None  # tokens, experts of a token, bytes of a row: a model's own dispatch

    def checked(self) -> FabricTest:
        """Itself, or UsageError."""
        if self.ranks * self.nodes < 2:
            raise UsageError("one rank has nobody to talk to", "give --ranks 2 or more, or --nodes")
        if self.nodes > 1 and not self.head:
            raise UsageError("several nodes need --head HOST:PORT", "HOST is the address of node 0 that the others reach")
        if not 0 <= self.node < self.nodes:
            raise UsageError(f"there is no node {self.node} of {self.nodes}", f"--node-rank is 0 to {self.nodes - 1}")
        if self.backend not in BACKENDS:
            raise UsageError(f"unknown back end {self.backend}", f"one of {', '.join(BACKENDS)}")
        if self.largest < 2 << 20:
            raise UsageError(f"messages up to {self.largest} bytes show no bandwidth", "give --largest 2 (MiB) or more")
        if not (math.isfinite(self.timeout) and math.isfinite(self.soak)):
            raise UsageError("--timeout and --soak are numbers of seconds", f"not {self.timeout:g} and {self.soak:g}")
        return self


def run(test: FabricTest, tick: Callable[[], None] | None = None) -> Fabric | None:
    """The answer on node 0, None on the others. Raises UsageError, BadAnswer (a rank died), Unreachable (nobody answered in time)."""
    test = test.checked()
    host, port = _head(test)
    with tempfile.TemporaryDirectory(prefix="workbench-fabric-") as folder:
        answer = Path(folder) / "answer.json"
        ranks = [_start(test, local, host, port, answer) for local in range(test.ranks)]
        try:
            _wait(ranks, test, tick or (lambda: None))
        finally:
            _end(ranks)
        return msgspec.json.decode(answer.read_bytes(), type=Fabric) if test.node == 0 else None


Within = Callable[[Sequence[str]], list[str]]
"""An argv as it is run on another host of this machine (in a network namespace)."""


def run_across(
    test: FabricTest, head: str, hosts: Sequence[Within], environment: Mapping[str, str], tick: Callable[[], None] | None = None
) -> Fabric:
    """`test.ranks` on each of `hosts`, all started here; `head` is the address of the first, where a port of the system's choice is free.

    Raises as `run` does.
    """
    test = replace(test, nodes=len(hosts), head=f"{head}:{free_port()}").checked()
    address, port = _head(test)
    with tempfile.TemporaryDirectory(prefix="workbench-fabric-") as folder:
        answer = Path(folder) / "answer.json"
        ranks = [
            _start(replace(test, node=node), local, address, port, answer, within, environment)
            for node, within in enumerate(hosts)
            for local in range(test.ranks)
        ]
        try:
            _wait(ranks, test, tick or (lambda: None))
        finally:
            _end(ranks)
        return msgspec.json.decode(answer.read_bytes(), type=Fabric)


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    for rank in ranks:
        rank.kill()
    for rank in ranks:
        rank.wait()
        if rank.stderr is not None:
            rank.stderr.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _head(test: FabricTest) -> tuple[str, int]:
    if test.head:
        host, _, port = test.head.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise UsageError(f"--head {test.head} is no HOST:PORT", "PORT is 1 to 65535")
        return host, int(port)
    return "127.0.0.1", free_port()


def rank_environment(rank: int, world: int, address: str, port: int, more: Mapping[str, str]) -> dict[str, str]:
    """This process's variables, `more`, and torchrun's for one rank. A PYTHONPATH in `more` comes before this process's."""
    paths = [str(Path(__file__).resolve().parents[2]), more.get("PYTHONPATH"), os.environ.get("PYTHONPATH")]
    return {
        **os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": address, "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1", **more, "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }  # fmt: skip


def _start(
    test: FabricTest, local: int, host: str, port: int, answer: Path, within: Within = list, more: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    environment = {
        **rank_environment(test.node * test.ranks + local, test.ranks * test.nodes, host, port, more or {}), "LOCAL_RANK": str(local),
        "WORKBENCH_FABRIC_BACKEND": test.backend, "WORKBENCH_FABRIC_LARGEST": str(test.largest),
        "WORKBENCH_FABRIC_TIMEOUT": str(test.timeout), "WORKBENCH_FABRIC_NODE": str(test.node),
        "WORKBENCH_FABRIC_BUDGET": str(test.budget), "WORKBENCH_FABRIC_SOAK": str(test.soak),
        "WORKBENCH_FABRIC_SCALE": json.dumps(dict(zip(("tokens", "top_k", "row"), test.rows, strict=True))) if test.rows else "",
    }  # fmt: skip
    command = [sys.executable, "-m", "probes.fabric.rank", str(answer)]
    return subprocess.Popen(within(command), env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def _wait(ranks: list[subprocess.Popen[bytes]], test: FabricTest, tick: Callable[[], None]) -> None:
    deadline = time.monotonic() + test.timeout
    while True:
        codes = [rank.poll() for rank in ranks]
        for number, rank in enumerate(ranks):
            if codes[number] not in (None, 0):
                said = (rank.communicate()[1] or b"").decode(errors="replace").strip().splitlines()
                raise BadAnswer(
                    f"rank {test.node * test.ranks + number} ended with code {rank.returncode}: {said[-1] if said else 'it said nothing'}",
                    "look at the address and the port of the head, the firewall, and GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME",
                )
        if None not in codes:
            return
        if time.monotonic() > deadline:
            raise Unreachable(
                f"the test did not end within {test.timeout:g} s", "a peer never answered, or a path is very slow: try --largest 2"
            )
        tick()
        time.sleep(0.05)
