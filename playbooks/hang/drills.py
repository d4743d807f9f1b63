"""Faults of the symptom hang, really produced: small gloo jobs that stop moving, and hosts that cannot reach one another.

What is diagnosed is what a person would have: flight-recorder dumps, states and stacks of the processes, environments, the answer of
a fabric test, or the logs of a start that failed. Another shape is not among them: gloo aborts the ranks that receive it, and nothing
hangs. Drills with hosts or a small /dev/shm need root (and iproute2, util-linux); the others need neither.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from playbooks.cross_node.drills import FABRICS, TEST, FabricDrill
from playbooks.drills import failed_start, shared_memory
from playbooks.drills.drill import HEALTHY, Dose, Drill, Truth, rank_of
from playbooks.drills.hosts import Hosts, unavailable
from playbooks.drills.hung import Job, produce
from probes.fabric.launch import free_port, run_across
from probes.fabric.record import record
from traces.run import Run

RANKS = 3
Say = Callable[[str], None]


def _culprit(dose: Dose) -> int:
    return rank_of(dose, RANKS)


def _misbehaving(conduct: str, dose: Dose, root: Path, say: Say) -> Run:
    say("running a job")
    return produce(Job([conduct if rank == _culprit(dose) else "join" for rank in range(RANKS)]), root)


def _stopped(dose: Dose, root: Path, say: Say) -> Run:
    say("running a job")
    odd = _culprit(dose)
    return produce(Job(["join"] * RANKS, interfere=lambda ranks: os.kill(ranks[odd].pid, signal.SIGSTOP), silent=(odd,)), root)


def _other_version(dose: Dose, root: Path, say: Say) -> Run:
    """One rank finds the metadata of another version of a library first."""
    say("running a job")
    with tempfile.TemporaryDirectory(prefix="wb-site-") as folder:
        name, version = (("safetensors", "0.4.1"), ("numpy", "1.26.0"))[dose.seed % 2]
        info = Path(folder) / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        return produce(Job(["join"] * RANKS, more={_culprit(dose): {"PYTHONPATH": folder}}), root)


def _cut_while_running(dose: Dose, root: Path, say: Say) -> Run:
    """One rank a host; the cable of one is pulled while they exchange."""
    say("making hosts")
    with Hosts(RANKS) as lab:
        host = 1 + dose.seed % (RANKS - 1)
        more = {rank: {"GLOO_SOCKET_IFNAME": "eth0"} for rank in range(RANKS)}
        within = [partial(lab.command, rank) for rank in range(RANKS)]
        say("running a job")
        return produce(Job(["join"] * RANKS, within, lab.address(0), more, interfere=lambda ranks: lab.cut(host)), root)


def _named_to_loopback(dose: Dose, root: Path, say: Say) -> Run:
    """The name of every host resolves to the loopback, as Debian writes it into /etc/hosts; no interface is named."""
    say("making hosts")
    with Hosts(RANKS) as lab, tempfile.TemporaryDirectory(prefix="wb-names-") as folder:

        def within(host: int, argv: list[str]) -> list[str]:
            names = Path(folder) / f"hosts{host}"
            names.write_text(f"127.0.0.1 localhost\n127.0.1.1 node{host}\n")
            script = f'mount --bind "{names}" /etc/hosts && hostname node{host} && exec "$@"'
            return lab.command(host, ["unshare", "--uts", "--mount", "sh", "-c", script, "sh", *argv])

        say("testing the fabric")
        hosts = [partial(within, host) for host in range(RANKS)]
        return record(run_across(TEST, lab.address(0), hosts, {"GLOO_SOCKET_IFNAME": "", "NCCL_SOCKET_IFNAME": ""}), root)


def _apart(dose: Dose, root: Path, say: Say) -> Run:
    """Real torch ranks of which one is somewhere else, is not there, or counts on another number of them."""
    say("starting ranks")
    changed = ({"WORLD_SIZE": str(RANKS + 1)}, {"MASTER_PORT": str(free_port())}, None)[dose.strength]
    return failed_start.produce(failed_start.ranks_that_meet(RANKS, {_late(dose): changed}), root)


def _late(dose: Dose) -> int:
    """Not the first, where they meet."""
    return 1 + dose.seed % (RANKS - 1)


def _little_shared_memory(dose: Dose, root: Path, say: Say) -> Run:
    say("starting ranks")
    return failed_start.produce(failed_start.launched(("ring", "share")[dose.strength], shared_mib=4), root)


def _one(dose: Dose) -> Truth:
    return Truth((_culprit(dose),))


def _job(name: str, expected: str, title: str, conduct: str, truth: Callable[[Dose], Truth] = _one) -> Drill:
    return Drill(name, expected, title, start=partial(_misbehaving, conduct), truth=truth)


def _nowhere(dose: Dose) -> Truth:
    return Truth()


def _shared(name: str) -> FabricDrill:
    return next(one for one in FABRICS if one.id == name)


DRILLS = (
    _job("healthy-job", HEALTHY, "a job whose ranks all came to its end", "join", _nowhere),
    _job("skipped-collective", "hang.desync", "one rank calls another collective than the others", "skip"),
    _job("other-order", "hang.order", "one rank enters the collectives of two groups in another order", "reorder", _nowhere),
    _job("host-code", "hang.missing-rank", "one rank stays in host code", "sleep"),
    Drill("stopped-rank", "hang.stopped-rank", "one rank is stopped by a signal", start=_stopped, truth=_one),
    Drill("other-version", "env.drift", "one rank has another version of a library", start=_other_version, truth=_one),
    Drill("cut-link", "hang.in-flight", "a cable is pulled while ranks exchange", start=_cut_while_running, unavailable=unavailable),
    Drill(
        "name-to-loopback",
        "start.bad-bind-address",
        "the name of every host resolves to the loopback",
        start=_named_to_loopback,
        truth=lambda dose: Truth(tuple(range(RANKS))),
        unavailable=unavailable,
    ),
    Drill(
        "little-shared-memory",
        "start.shm",
        "a start with a /dev/shm that is smaller than what it asks for",
        doses=("killed by a bus error", "refused by torch"),
        start=_little_shared_memory,
        unavailable=shared_memory.unavailable,
    ),
    Drill(
        "never-meet",
        "start.rendezvous",
        "real torch ranks that do not find one another",
        doses=("another number of ranks", "another port", "one never starts"),
        start=_apart,
        truth=lambda dose: Truth((_late(dose),)),
    ),
    _shared("silent-drop").drill(),
    _shared("black-hole").drill(),
)
