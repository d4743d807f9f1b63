"""Faults of the symptom cross-node-throughput, really produced: hosts of network namespaces whose links are shaped, cut short or misused.

Every drill but one runs the fabric test on the hosts of a lab of its own; that one serves, with an exchange that pads. Controls are
healthy labs, labs whose links are all equally slow, and labs on a machine that others compute on: no link is to blame there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from playbooks.drills.drill import HEALTHY, Dose, Drill, Truth, rank_of
from playbooks.drills.hosts import Hosts, unavailable
from playbooks.drills.lab import Lab
from playbooks.drills.pressure import busy
from probes.fabric.launch import FabricTest, run_across
from probes.fabric.record import record
from probes.traffic.plan import TrafficPlan
from runtime.forward_variable import FORWARD_STYLE
from traces.run import Run

Culprits = Callable[[Dose, int], tuple[int, ...]]
TEST = FabricTest(1, largest=2 << 20, timeout=120.0, budget=0.2)  # short: a drill is to take seconds


def _one(dose: Dose, hosts: int) -> tuple[int, ...]:
    return (rank_of(dose, hosts),)


def _all(dose: Dose, hosts: int) -> tuple[int, ...]:
    return tuple(range(hosts))


def _nobody(dose: Dose, hosts: int) -> tuple[int, ...]:
    return ()


def _two(dose: Dose, hosts: int) -> tuple[int, ...]:
    """Not the first host: whoever cannot reach that one does not even join."""
    left = 1 + dose.seed % (hosts - 1)
    return tuple(sorted({left, 1 + left % (hosts - 1)}))


@dataclass(frozen=True, slots=True)
class FabricDrill:
    """`harm` does to a lab what is wrong, given the culprits and the strength. `interface` is the one that the library is told to use."""

    id: str
    expected: str
    title: str
    harm: Callable[[Hosts, tuple[int, ...], int], None] = lambda lab, hosts, strength: None
    culprits: Culprits = _nobody
    doses: tuple[str, ...] = ("",)
    hosts: int = 3
    second: bool = False  # a second interface on every host
    halves: bool = False  # two switches
    interface: str = "eth0"
    competitors: int = 0  # processes that compute on any CPU

    def drill(self) -> Drill:
        located = () if self.expected == HEALTHY else self.culprits
        return Drill(
            self.id,
            self.expected,
            self.title,
            doses=self.doses,
            start=self.start,
            truth=lambda dose: Truth(located(dose, self.hosts) if located else ()),
            unavailable=unavailable,
        )

    def start(self, dose: Dose, root: Path, say: Callable[[str], None]) -> Run:
        say("making hosts")
        culprits = self.culprits(dose, self.hosts)
        with ExitStack() as stack:
            lab = stack.enter_context(Hosts(self.hosts, second=self.second, halves=self.halves))
            self.harm(lab, culprits, dose.strength)
            stack.enter_context(busy(self.competitors))
            say("testing the fabric")
            within = [partial(lab.command, host) for host in range(self.hosts)]
            head = lab.address(0) if self.interface == "eth0" else lab.second_address(0)
            return record(run_across(TEST, head, within, {"GLOO_SOCKET_IFNAME": self.interface}), root)


# -- what is done to a lab ----------------------------------------------------------------------------------------------------------

SLOW = (200.0, 50.0)  # Mbit/s, weakest first
RATES = ("200 Mbit/s", "50 Mbit/s")


def _slow_host(lab: Hosts, hosts: tuple[int, ...], strength: int) -> None:
    _slow_sending(lab, hosts, strength)
    _slow_receiving(lab, hosts, strength)


def _slow_sending(lab: Hosts, hosts: tuple[int, ...], strength: int) -> None:
    for host in hosts:
        lab.shape_sending(host, SLOW[strength])


def _slow_receiving(lab: Hosts, hosts: tuple[int, ...], strength: int) -> None:
    for host in hosts:
        lab.shape_receiving(host, SLOW[strength])


def _slow_second(lab: Hosts, hosts: tuple[int, ...], strength: int) -> None:
    lab.shape_second(SLOW[strength])


def _narrow_uplink(lab: Hosts, hosts: tuple[int, ...], strength: int) -> None:
    """Every host's own link as wide as the uplink, or nearly: alone nobody notices."""
    for host in range(lab.count):
        lab.shape_sending(host, 100.0)
        lab.shape_receiving(host, 100.0)
    lab.shape_between_halves((100.0, 95.0)[strength])


def _policed(lab: Hosts, hosts: tuple[int, ...], strength: int) -> None:
    for host in hosts:
        lab.police_sending(host, (200.0, 100.0)[strength])


def _black_hole(lab: Hosts, hosts: tuple[int, ...], strength: int) -> None:
    lab.lose_large_frames(hosts[0])


def _small_frames(lab: Hosts, hosts: tuple[int, ...], strength: int) -> None:
    lab.small_frames(hosts[0], (1280, 576)[strength])


def _silent_drop(lab: Hosts, hosts: tuple[int, ...], strength: int) -> None:
    lab.drop_between(*hosts)


FABRICS = (
    FabricDrill("healthy", HEALTHY, "three hosts on one switch"),
    FabricDrill("healthy-slow", HEALTHY, "three hosts whose links are all equally slow", _slow_host, _all, RATES),
    FabricDrill("healthy-two-interfaces", HEALTHY, "a slow second interface, and traffic on the fast one", _slow_second, second=True),
    FabricDrill("healthy-loaded", HEALTHY, "three hosts on a machine where others compute", doses=("2 others",), competitors=2),
    FabricDrill(
        "wrong-interface",
        "net.wrong-interface",
        "traffic is told to use a slow second interface",
        _slow_second,
        _all,
        RATES,
        second=True,
        interface="mgmt0",
    ),
    FabricDrill("slow-host", "net.degraded-link", "one host's link is slow both ways", _slow_host, _one, RATES),
    FabricDrill("slow-sending", "net.degraded-link", "what one host sends is slow", _slow_sending, _one, RATES),
    FabricDrill("slow-receiving", "net.degraded-link", "what one host receives is slow", _slow_receiving, _one, RATES),
    FabricDrill(
        "shared-uplink",
        "net.congestion",
        "two switches whose link is as wide as one host's",
        _narrow_uplink,
        doses=("100 Mbit/s", "95 Mbit/s"),
        hosts=4,
        halves=True,
    ),
    FabricDrill("policer", "net.packet-loss", "what one host sends above a rate is dropped", _policed, _one, ("200 Mbit/s", "100 Mbit/s")),
    FabricDrill("black-hole", "net.mtu-blackhole", "a switch port loses large frames", _black_hole, _one, ("1500 of 9000 bytes",)),
    FabricDrill("small-mtu", "net.mtu-small", "one host sends small frames", _small_frames, _one, ("1280 bytes", "576 bytes")),
    FabricDrill("silent-drop", "start.firewall", "packets between two hosts vanish", _silent_drop, _two, ("dropped",), hosts=4),
)


def _served(lab: Lab, dose: Dose) -> Truth:
    lab.say("sending traffic")
    lab.send(TrafficPlan(mix="shapes", concurrency=8, requests=48, seed=dose.seed))
    return Truth()


DRILLS: tuple[Drill, ...] = (
    *(one.drill() for one in FABRICS),
    Drill(
        "padded-exchange",
        "net.a2a-backend",
        "every message of the exchange is as long as the fullest",
        _served,
        environment=lambda dose: {FORWARD_STYLE: "padded-exchange"},
    ),
)
