"""A rank of the fabric test: `python -m probes.fabric.rank ANSWER`, with torchrun's environment variables. Imports torch.

Rank 0 writes the answer (JSON) to the file ANSWER; every other rank sends it what it measured.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from probes.fabric.answer import Collective, Fabric, Node, Scale, Timing, departures, drifted, fitted
from probes.fabric.collectives import SIZES, TESTS
from probes.fabric.devices import devices
from probes.fabric.effort import Effort, segments
from probes.fabric.meeting import Met, meet
from probes.fabric.scaling import Rows, measure
from probes.nic import counters
from probes.procfile import read_text

MESSAGES = tuple(1 << shift for shift in (12, 14, 16, 18, 20, 21, 22, 23, 24))  # bytes: 4 KiB to 16 MiB
REPEATS = 20
TOGETHER = 5  # repeats of all at once
DATA, ANSWER = 1, 2  # tags


class Rank:
    """The tests as one rank runs them; every rank must call every method."""

    def __init__(self, backend: str, largest: int, budget: float) -> None:
        self.budget = budget
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        local = int(os.environ.get("LOCAL_RANK", "0"))
        self.device = torch.device("cuda", local) if backend == "nccl" else torch.device("cpu")
        self.messages = [size for size in MESSAGES if size <= largest]

    def collectives(self) -> list[Collective]:
        """One entry for each collective and size; the same on all ranks."""
        found = []
        for name, test in TESTS.items():
            for elements in SIZES:
                status, detail = 0, ""
                try:
                    status = 0 if test(self.rank, self.world, elements, self.device) else 1
                except (RuntimeError, NotImplementedError, ValueError) as error:
                    status, detail = 2, str(error).splitlines()[0][:200]
                told = [json.loads(word) for word in self.gathered(json.dumps([status, detail]))]
                worst = max(code for code, _ in told)
                ranks = [rank for rank, (code, _) in enumerate(told) if code]
                words = next((word for code, word in told if code == 2), "")
                found.append(Collective(name, elements, ("ok", "wrong", "unavailable")[worst], ranks, words))
                if worst == 2:
                    break  # what a back end does not have, it does not have at any size
        return found

    def pairs(self) -> list[Timing]:
        """Every ordered pair alone, at every size: timings of the pairs that this rank sends in."""
        mine = []
        for src in range(self.world):
            for dst in range(self.world):
                if src != dst:
                    dist.barrier()
                    mine += self._pair(src, dst) if self.rank in (src, dst) else []
        dist.barrier()
        return mine

    def soak(self, seconds: float) -> list[list[Timing]]:
        """The pairs again and again until the time is over by rank 0's clock, of each the largest messages; none for 0 seconds."""
        began = time.monotonic()
        rounds: list[list[Timing]] = []
        more = torch.zeros(1, dtype=torch.uint8, device=self.device)
        while True:
            more.fill_(time.monotonic() - began < seconds)
            dist.broadcast(more, 0)
            if not int(more):
                return rounds
            rounds.append([timing for timing in self.pairs() if timing.size == self.messages[-1]])

    def together(self) -> list[Timing]:
        """All at once: everybody sends to the neighbour at every distance. The median of several: the quickest would be one that the
        others had already left alone.
        """
        mine = []
        size = self.messages[-1]
        block, other, token = (self._block(n) for n in (size, size, 1))
        for distance in range(1, self.world):
            dst, src = (self.rank + distance) % self.world, (self.rank - distance) % self.world
            taken, effort = [], Effort.now()
            for _ in range(TOGETHER):
                dist.barrier()
                # What arrives is acknowledged beside: a slow sender must not make the path that leaves here look slow.
                answering = threading.Thread(target=self._acknowledge, args=(other, src))
                begin = time.perf_counter()
                answering.start()
                sending = dist.isend(block, dst, tag=DATA)
                dist.recv(token, dst, tag=ANSWER)
                taken.append(time.perf_counter() - begin)
                answering.join()
                if sending is not None:
                    sending.wait()
            busy, waiting = effort.since()
            mine.append(Timing(self.rank, dst, size, statistics.median(taken), concurrent=True, busy=busy, waiting=waiting))
        dist.barrier()
        return mine

    def _acknowledge(self, block: torch.Tensor, src: int) -> None:
        dist.recv(block, src, tag=DATA)
        dist.send(self._block(1), src, tag=ANSWER)

    def _pair(self, src: int, dst: int) -> list[Timing]:
        found, token = [], self._block(1)
        for size in self.messages:
            block, spent = self._block(size), 0.0
            taken: list[float] = []
            effort_of: list[tuple[float, float]] = []  # of each repeat: shares of busy and waiting
            more = torch.ones(1, dtype=torch.uint8, device=self.device)
            while int(more) and len(effort_of) < REPEATS:
                effort = Effort.now()
                if self.rank == src:
                    begin = time.perf_counter()
                    dist.send(block, dst)
                    dist.recv(token, dst)
                    taken.append(time.perf_counter() - begin)
                    effort_of.append(effort.since())
                    spent += taken[-1]
                    more.fill_(spent < self.budget)
                    dist.send(more, dst)
                else:
                    dist.recv(block, src)
                    dist.send(token, src)
                    effort_of.append(effort.since())
                    dist.recv(more, src)
            # Of the quickest repeat only: the others may have waited for a CPU, and do not count.
            best = torch.zeros(1, dtype=torch.int64, device=self.device)
            theirs = torch.zeros(2, dtype=torch.float32, device=self.device)
            if self.rank == dst:
                dist.recv(best, src)
                dist.send(theirs.copy_(torch.tensor(effort_of[int(best)])), src)
                continue
            quickest = min(range(len(taken)), key=taken.__getitem__)
            dist.send(best.fill_(quickest), dst)
            dist.recv(theirs, dst)
            busy, waiting = (round(max(mine, other), 3) for mine, other in zip(effort_of[quickest], theirs.tolist(), strict=True))
            found.append(Timing(src, dst, size, taken[quickest], busy=busy, waiting=waiting))
        return found

    def _block(self, size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.uint8, device=self.device)

    def gathered(self, text: str) -> list[str]:
        """The text of every rank, on every rank."""
        data = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8).to(self.device)
        sizes = [torch.zeros(1, dtype=torch.int64, device=self.device) for _ in range(self.world)]
        dist.all_gather(sizes, torch.tensor([len(data)], dtype=torch.int64, device=self.device))
        longest = max(int(size) for size in sizes)
        out = [self._block(longest) for _ in range(self.world)]
        dist.all_gather(out, torch.cat([data, self._block(longest - len(data))]))
        return [bytes(part[: int(size)].cpu().numpy()).decode() for part, size in zip(out, sizes, strict=True)]


class Told(msgspec.Struct):
    """What a rank tells rank 0."""

    node: Node
    timings: list[Timing]
    rounds: list[list[Timing]]
    scale: list[Scale]


def main(answer: Path) -> None:
    began = time.monotonic()
    backend = _asked("BACKEND", "gloo")
    number, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    limit = timedelta(seconds=float(_asked("TIMEOUT", "120")))
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, number == 0, limit)
    met = meet(store, number, world, _asked("NODE", ""))
    if any(one.cut for one in met.reached):
        if number == 0:
            nodes = [Node(one.rank, one.host.split()[0], one.node, "", {}) for one in met.places]
            fabric = Fabric(backend, world, nodes, [], [], [], _since(began), met.places, met.reached, met.carried)
            answer.write_bytes(msgspec.json.encode(fabric))
        store.set(f"left/{number}", "")
        for other in range(world if number == 0 else 0):
            store.get(f"left/{other}")  # the store lives in rank 0
        return
    dist.init_process_group(backend, store=PrefixStore("fabric", store), rank=number, world_size=world, timeout=limit)
    rank = Rank(backend, int(_asked("LARGEST", str(MESSAGES[-1]))), float(_asked("BUDGET", "1")))
    collectives = rank.collectives()
    told = [msgspec.json.decode(text, type=Told) for text in rank.gathered(msgspec.json.encode(_tested(rank, met)).decode())]
    if rank.rank == 0:
        everything = [timing for one in told for timing in one.timings]
        rounds = [[timing for one in told for timing in one.rounds[number]] for number in range(len(told[0].rounds))]
        fabric = Fabric(
            backend, world, [one.node for one in told], collectives, everything, fitted(everything), _since(began), met.places, met.reached,
            met.carried, departures(told[0].scale), len(rounds), drifted(rounds),
        )  # fmt: skip
        answer.write_bytes(msgspec.json.encode(fabric))
    dist.barrier()
    dist.destroy_process_group()


def _tested(rank: Rank, met: Met) -> Told:
    """The pairs alone and all at once, and what else was asked for."""
    before, counted = counters(read_text("/proc/self/net/dev")), segments(read_text("/proc/self/net/snmp"))
    timings = rank.pairs()
    after, total = counters(read_text("/proc/self/net/dev")), segments(read_text("/proc/self/net/snmp"))
    sent = {name: count.tx_bytes - before[name].tx_bytes for name, count in after.items() if name in before}
    again = (total[0] - counted[0], total[1] - counted[1])
    timings += rank.together()
    node = Node(rank.rank, socket.gethostname(), _asked("NODE", ""), str(rank.device), sent, *again, devices())
    rows = _asked("SCALE", "")
    scale = measure(msgspec.json.decode(rows, type=Rows), [one.host for one in met.places], rank.device) if rows else []
    return Told(node, timings, rank.soak(float(_asked("SOAK", "0"))), scale)


def _asked(name: str, usual: str) -> str:
    return os.environ.get(f"WORKBENCH_FABRIC_{name}", usual)


def _since(began: float) -> float:
    return round(time.monotonic() - began, 2)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
