"""What a fabric test found: `workbench.fabric.v1`. Bytes, seconds, bytes per second."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable
from typing import Literal

import msgspec

from probes.fabric.reach import Carried, Place, Reach

SCHEMA = "workbench.fabric.v1"
SMALL = 4 << 10  # up to here the latency decides
LARGE = 1 << 20  # from here on the bandwidth does (reference/causes_latency_network_hang_load.md, section 3.5)

Status = Literal["ok", "wrong", "unavailable"]


class Node(msgspec.Struct, frozen=True):
    """Where a rank runs. `sent` are bytes by interface while pairs were tested one at a time, `segments` the TCP segments that its host
    sent meanwhile, `retransmitted` those that it had to send again.
    """

    rank: int
    host: str
    address: str
    device: str
    sent: dict[str, int]
    segments: int = 0
    retransmitted: int = 0
    devices: list[Device] = []


class Device(msgspec.Struct, frozen=True):
    """A device of a rank's host as torch sees it; `peers` are the others whose memory it reaches directly."""

    index: int
    name: str
    peers: list[int]


class Scale(msgspec.Struct, frozen=True):
    """The model's own dispatch among the first `ranks` ranks: bytes that leave each rank, the median seconds of the slowest rank.
    `departure`: seconds over what the smallest group's pace would make of these bytes; null for it and where nothing leaves a rank.
    """

    ranks: int
    hosts: int
    bytes: int
    seconds: float
    departure: float | None = None


class Drift(msgspec.Struct, frozen=True):
    """A pair in a test that was repeated: bytes/s in the first and last third of the rounds (medians), and in the worst round."""

    src: int
    dst: int
    first: float
    last: float
    lowest: float

    @property
    def change(self) -> float:
        return self.last / self.first - 1


class Collective(msgspec.Struct, frozen=True):
    """One collective at one size: whether every rank got the right integers."""

    name: str
    elements: int
    status: Status
    ranks: list[int] = []  # where it was wrong or unavailable
    detail: str = ""


class Timing(msgspec.Struct, frozen=True):
    """A message of `size` bytes from src to dst and one byte back, seconds: the quickest of several, or the median where
    all pairs send at once. `busy`: the share of that time, or of all
    of them where all send at once, in which the busier of the two processes was on a CPU, 0..1.
    """

    src: int
    dst: int
    size: int
    seconds: float
    concurrent: bool = False
    busy: float = 0.0
    waiting: float = 0.0  # share in which a thread was ready and had no CPU: of either process, of src alone where all send at once


class Pair(msgspec.Struct, frozen=True):
    """An ordered pair, fitted: alpha from small messages, beta from the slope between large ones; null where that is undetermined."""

    src: int
    dst: int
    latency: float | None
    bandwidth: float | None
    concurrent: float | None  # bandwidth while all others sent too


class Fabric(msgspec.Struct, frozen=True):
    """The whole test."""

    backend: str
    world: int
    nodes: list[Node]
    collectives: list[Collective]
    timings: list[Timing]
    pairs: list[Pair]
    seconds: float
    places: list[Place] = []
    reached: list[Reach] = []
    carried: list[Carried] = []
    scale: list[Scale] = []
    rounds: int = 0  # of a soak; 0 without one
    drift: list[Drift] = []
    schema: str = SCHEMA

    @property
    def cut(self) -> list[Reach]:
        """Pairs without which nothing else was tested."""
        return [one for one in self.reached if one.cut]

    @property
    def wrong(self) -> list[Collective]:
        return [one for one in self.collectives if one.status == "wrong"]


def fitted(timings: Iterable[Timing]) -> list[Pair]:
    """alpha: median of the times of messages up to 4 KiB. beta: median slope (Theil-Sen) between sizes of 1 MiB and more."""
    grouped: dict[tuple[int, int], list[Timing]] = {}
    for timing in timings:
        grouped.setdefault((timing.src, timing.dst), []).append(timing)
    return [_pair(src, dst, found) for (src, dst), found in sorted(grouped.items())]


def _pair(src: int, dst: int, timings: list[Timing]) -> Pair:
    alone = sorted((t for t in timings if not t.concurrent), key=lambda t: t.size)
    small = [t.seconds for t in alone if t.size <= SMALL]
    together = [t.size / t.seconds for t in timings if t.concurrent and t.size >= LARGE]
    return Pair(
        src, dst,
        statistics.median(small) if small else None,
        slope([(t.size, t.seconds) for t in alone if t.size >= LARGE]),
        statistics.median(together) if together else None,
    )  # fmt: skip


def slope(points: list[tuple[int, float]]) -> float | None:
    """Bytes per second; None when larger messages did not take longer."""
    slopes = [(t2 - t1) / (s2 - s1) for i, (s1, t1) in enumerate(points) for s2, t2 in points[i + 1 :] if s2 > s1]
    middle = statistics.median(slopes) if slopes else 0.0
    return 1 / middle if middle > 0 else None


def drifted(rounds: list[list[Timing]]) -> list[Drift]:
    """rounds: the pair tests of a soak in their order, each the timings of one size between all ranks. Empty for fewer than three."""
    if len(rounds) < 3:
        return []
    rates: dict[tuple[int, int], list[float]] = {}
    for timing in itertools.chain.from_iterable(rounds):
        rates.setdefault((timing.src, timing.dst), []).append(timing.size / timing.seconds)
    third = len(rounds) // 3
    return [
        Drift(src, dst, statistics.median(seen[:third]), statistics.median(seen[-third:]), min(seen))
        for (src, dst), seen in sorted(rates.items())
    ]


def departures(measured: list[Scale]) -> list[Scale]:
    """The same with their departure from linear: from the pace of the smallest group in which anything leaves a rank."""
    first = next((one for one in measured if one.bytes), None)
    if first is None:
        return measured
    pace = first.seconds / first.bytes
    return [
        msgspec.structs.replace(one, departure=one.seconds / (one.bytes * pace)) if one.bytes and one is not first else one
        for one in measured
    ]
