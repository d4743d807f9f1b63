"""start.shm: shared memory (/dev/shm) is too small, or full, and a start dies of it.

What is seen: NCCL says that it cannot create or extend a segment (NVIDIA/nccl issues 290 and 342), torch that it cannot allocate
shared memory, or a rank is gone with a bus error (SIGBUS, exit code -7 or 135) and says nothing. Usual reasons: a container has 64 MiB
unless somebody asks for more (Docker's --shm-size), and dead processes leave their segments behind. gloo does not use it; NCCL between the
ranks of a host, data loaders, tensors that processes share, and message queues of engines do.

How it is told apart: by the text, together with size and free bytes of the file system on that host. "No space left on device" without a
path of shared memory is another disk. A bus error also comes from a mapped file that was truncated: it is blamed on shared memory only
where less than 64 MiB were free; with more it stays undecided. Before anything has died, 64 MiB or less are a warning where a library
other than gloo is to run (a segment of NCCL's has 9.6 MB or more for each connection in those issues), else a note.
"""

from __future__ import annotations

from dataclasses import dataclass

from playbooks.case import Case
from playbooks.check import Check, Result, passed, skipped
from playbooks.cross_node.channels import facts as library_facts
from playbooks.document import Basis, Evidence, Remedy, Severity
from playbooks.environment.drift import rank_facts
from playbooks.finding import finding, listed, subject
from playbooks.preflight.reached import places
from playbooks.preflight.started import LOGS, signs
from probes.foreign.start_log import SIGN, Sign

ID = "start.shm"
SMALL = 64 << 20  # bytes: what a container has by default
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Room:
    """Shared memory as a rank saw it when it started, bytes."""

    host: str
    size: int
    free: int


def test(case: Case) -> Result:
    full, killed, room = signs(case, "shm"), signs(case, "bus-error"), rooms(case)
    small = {rank: one for rank, one in room.items() if one.free <= SMALL}
    if full:
        asked = max((one.size for one in full if one.size is not None), default=None)
        wanted = f" It asked for {asked / MIB:.1f} MiB." if asked is not None else ""
        return _found(case, full, small, f"{_quoted(full)}.{wanted}", "critical", 0.95, "established")
    if killed and (small or not room):
        said = f"Killed by a bus error: {_quoted(killed)}."
        if small:
            return _found(case, killed, small, said, "critical", 0.8, "supported")
        said += " A mapped file that was truncated gives the same; how much shared memory there was is not known."
        return _found(case, killed, small, said, "warning", 0.5, "hypothesis")
    if killed:
        free = min(one.free for one in room.values())
        return skipped(f"a bus error, and {free / MIB:,.0f} MiB of shared memory free at the start: watch `df /dev/shm` while it starts")
    if not room:
        return skipped(f"size of /dev/shm on the hosts, and {LOGS}: `workbench fabric` reads the size on every host")
    if small:
        return _preflight(case, small)
    least = min(one.free for one in room.values())
    return passed(f"{least / MIB:,.0f} MiB of shared memory or more were free on {len(room)} ranks' hosts", least, SMALL, "bytes")


def rooms(case: Case) -> dict[int, Room]:
    """By rank: from its fingerprint, or from a fabric test."""
    found = {
        one.rank: Room(one.host.split()[0], one.shm_size, one.shm_free)
        for one in places(case).values()
        if one.shm_size is not None and one.shm_free is not None
    }
    for name, facts in rank_facts(case.run).items():
        shm, number = facts.get("shm") or {}, name.removeprefix("rank")
        if number.isdecimal() and shm.get("size") is not None and shm.get("free") is not None:
            found[int(number)] = Room(str((facts.get("host") or {}).get("name", "")), shm["size"], shm["free"])
    return found


def _preflight(case: Case, small: dict[int, Room]) -> Result:
    """Nothing has died of it (yet)."""
    backends = {value for values in library_facts(case, "backend").values() for value in values}
    others = backends - {"gloo"}
    said = f"{', '.join(sorted(others))} between the ranks of a host uses it." if others else "gloo does not use it; NCCL and engines do."
    found = _found(case, [], small, said, "warning" if others else "info", 0.5, "hypothesis")
    return found if others else Result("pass", found.summary, found.observed, SMALL, "bytes", found.findings)


def _found(case: Case, by: list[Sign], small: dict[int, Room], said: str, severity: Severity, score: float, basis: Basis) -> Result:
    spoke = sorted({one.rank for one in by if one.rank is not None})
    ranks = spoke or sorted(small)
    hosts = sorted({small[rank].host for rank in ranks if rank in small})
    worst = min(small.values(), key=lambda one: one.free, default=None)
    room = f" /dev/shm has {worst.size / MIB:,.1f} MiB, of which {worst.free / MIB:,.1f} were free at the start." if worst else ""
    title = "Shared memory (/dev/shm) is too small or full" if by else "Little shared memory (/dev/shm)"
    title += f" on the hosts of {listed(ranks, 'rank')}" if len(hosts) > 1 else f" on {hosts[0]}" if hosts else ""
    evidence: list[Evidence] = []
    if by:
        query = f"SELECT count(*) AS n FROM event WHERE kind = '{SIGN}' AND attrs->>'kind' IN ('shm', 'bus-error')"
        evidence.append(case.sql(query, 0, "lines", "of the log that speak of it"))
    if worst:
        evidence.append(case.derived("fingerprints.*.shm, fabric.place", worst.free, SMALL, "bytes", f"free on {worst.host}, the least"))
    made = finding(
        case,
        ID,
        severity,
        subject("host", ",".join(hosts) or "/dev/shm", ranks=ranks, hosts=hosts),
        title,
        f"{said}{room}",
        score,
        basis,
        evidence=tuple(evidence),
        remedy=(
            Remedy(
                text="Give the container more shared memory (docker run --shm-size=16g; Kubernetes: an emptyDir with medium Memory at "
                "/dev/shm), and remove segments that dead processes left. NCCL_SHM_DISABLE=1 does without, slower.",
                risk="low: the container restarts",
                command="df -h /dev/shm; ls -l /dev/shm",
                verify="workbench doctor; workbench fabric",
            ),
        ),
    )
    return Result("warn" if basis == "hypothesis" else "fail", made.summary, worst.free if worst else None, SMALL, "bytes", (made,))


def _quoted(found: list[Sign]) -> str:
    """The line that says most, and how many files agree."""
    telling = max(found, key=lambda one: (one.size is not None, "No space" in one.text))
    others = len({one.source for one in found}) - 1
    return f'{telling.source} says "{telling.text[:160]}"' + (f", {others} more files the like" if others else "")


CHECK = Check(ID, "Shared memory that is too small", mandatory=False, cost=1, test=test, page=__doc__ or "")
