"""Counters of the network interfaces of this host (of this network namespace): table `nic`."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

from probes.procfile import ProcFile
from probes.sampler import Sampler
from probes.sink import Sink
from traces import schema


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since the interface came up."""

    rx_bytes: int
    tx_bytes: int
    rx_errors: int
    tx_errors: int
    rx_dropped: int
    tx_dropped: int


def counters(net_dev: str | None) -> dict[str, Counters]:
    """Interface -> counters, from /proc/net/dev (proc(5)): after two title lines, 8 receive and 8 transmit columns."""
    found = {}
    for line in (net_dev or "").splitlines()[2:]:
        name, _, numbers = line.partition(":")
        n = [int(word) for word in numbers.split()]
        found[name.strip()] = Counters(rx_bytes=n[0], tx_bytes=n[8], rx_errors=n[2], tx_errors=n[10], rx_dropped=n[3], tx_dropped=n[11])
    return found


class NicSampler(Sampler):
    """Writes one `nic` row for each interface every `interval` seconds, the loopback included: local ranks talk through it."""

    def __init__(self, recorder: Sink, interval: float = 1.0) -> None:
        super().__init__("nic", interval)
        self._recorder = recorder
        self._host = socket.gethostname()
        self._file = ProcFile("/proc/self/net/dev")

    def sample(self) -> None:
        now = time.time_ns()
        for interface, count in counters(self._file.read()).items():
            self._recorder.row(
                schema.NIC,
                ts=now,
                host=self._host,
                interface=interface,
                rx_bytes=count.rx_bytes,
                tx_bytes=count.tx_bytes,
                rx_errors=count.rx_errors,
                tx_errors=count.tx_errors,
                rx_dropped=count.rx_dropped,
                tx_dropped=count.tx_dropped,
            )
