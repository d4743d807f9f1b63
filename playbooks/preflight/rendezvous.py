"""start.rendezvous: the ranks never meet: one looks in the wrong place, was told another number of ranks, or never came.

What is seen: nothing for minutes, then "1/2 clients joined", a client socket that timed out, a key that nobody set, RendezvousTimeoutError.
Usual reasons: MASTER_ADDR or MASTER_PORT that differ between hosts, a name that does not resolve, a port that an old process still
holds, WORLD_SIZE or --nnodes that differ, a host that was not started (vLLM issues 1401 and 13909).

How it is told apart: what every rank was told (torchrun's variables in its fingerprint) is compared first: all must agree in number and
place of meeting, and have numbers of their own. Then what the logs say: a rank beyond the size, a name without address, a port that is
taken, an address where nobody answers, how many came. That nobody answers may also be a firewall (start.firewall): alone it is a
hypothesis. Attempts that are repeated and succeed are in every log, and no sign.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import msgspec

from playbooks.case import Case
from playbooks.check import Check, Result, passed, skipped
from playbooks.document import Basis, Evidence, Finding, Remedy, SubjectKind
from playbooks.finding import finding, listed, subject
from playbooks.preflight.started import LOGS, Told, odd, signs, told
from probes.foreign.start_log import SIGN, Sign

ID = "start.rendezvous"
KINDS = ("joined", "connect", "name", "port-taken", "absent", "outside", "nodes", "rendezvous", "waiting")
SILENT = "the ones given do not"
CAUSES_OF_IT = ("start.shm", "start.firewall", "start.bad-bind-address")


@dataclass(frozen=True, slots=True)
class Blame:
    """What keeps them apart. `ranks` are those to look at; empty where nothing says which."""

    kind: SubjectKind
    name: str
    ranks: list[int]
    title: str
    score: float
    basis: Basis


def test(case: Case) -> Result:
    found, ranks = signs(case, *KINDS), told(case)
    failed = [one for one in found if one.fatal]
    waiting = [one for one in found if one.kind == "waiting"]
    blame = _of_what_they_were_told(ranks, failed) or _of_what_they_say(found, failed)
    if blame is None and waiting:
        last = waiting[-1]
        blame = Blame("group", "start", [], f"{last.ranks} of {last.world} ranks have come, and they wait", 0.5, "hypothesis")
    if blame is None:
        if not found and not ranks:
            return skipped(f"logs that speak of the ranks' meeting: {SILENT}" if signs(case, "shm", "bus-error") else LOGS)
        return passed(f"{len(ranks)} ranks were told the same, and no log says that they did not meet", 0, 0, "ranks")
    said = "; ".join(f'{one.source}: "{one.text[:140]}"' for one in _telling(failed or waiting)) or "no log says so (yet)"
    made = finding(
        case,
        ID,
        "critical" if failed else "warning",
        subject(blame.kind, blame.name, ranks=blame.ranks),
        blame.title,
        f"The ranks did not meet. {said}." if failed else f"{blame.title}: {said}.",
        blame.score if failed else min(blame.score, 0.5),
        blame.basis if failed else "hypothesis",
        evidence=tuple(_evidence(case, failed or waiting, ranks)),
        remedy=(
            Remedy(
                text="Give every host the same MASTER_ADDR, MASTER_PORT and number of ranks, and each rank a number of its own; see that "
                "the first host is started, and that its name resolves to an address of it everywhere.",
                risk="low: the job starts again",
                command="env | grep -E 'RANK|WORLD_SIZE|MASTER'; getent hosts HEAD; ss -ltnp",
                verify="workbench fabric on all hosts with the same --head",
            ),
        ),
    )
    return Result("fail" if failed and blame.basis != "hypothesis" else "warn", blame.title, len(blame.ranks), 0, "ranks", (made,))


def _of_what_they_were_told(ranks: list[Told], failed: list[Sign]) -> Blame | None:
    if len(ranks) < 2:
        return None
    world, others = odd({one.rank: one.world for one in ranks})
    if others:
        numbers = {one.rank: one.world for one in ranks}
        what = ", ".join(f"rank {rank} expects {numbers[rank]}" for rank in others)
        most = f", most {world}" if world is not None else ""
        return Blame("setting", "WORLD_SIZE", others, f"Ranks were told different numbers of ranks: {what}{most}", 0.95, "established")
    twice = [rank for rank, many in Counter(one.rank for one in ranks).items() if many > 1]
    if twice:
        return Blame("setting", "RANK", twice, f"{listed(twice, 'rank').capitalize()} was started more than once", 0.95, "established")
    if not failed:
        return None  # another spelling of one address is no fault, and a rank without a fingerprint may be there
    place, others = odd({one.rank: one.address for one in ranks})
    if others:
        places = {one.rank: one.address for one in ranks}
        what = ", ".join(f"rank {rank} at {places[rank]}" for rank in others)
        most = f", most at {place}" if place is not None else ""
        port = odd({one.rank: one.address.rpartition(":")[2] for one in ranks})[1]
        score = 0.95 if port else 0.6  # a name on one host and its address on another are the same place
        basis: Basis = "established" if port else "hypothesis"
        return Blame("setting", "MASTER_ADDR", others, f"Ranks look for one another in different places: {what}{most}", score, basis)
    missing = sorted({*range(ranks[0].world)} - {one.rank for one in ranks})
    came = next((one.ranks for one in failed if one.kind == "joined"), None)
    if missing and came is not None and came == len(ranks):
        title = f"{listed(missing, 'rank').capitalize()} of {ranks[0].world} never came"
        return Blame("rank", ",".join(map(str, missing)), missing, title, 0.9, "established")
    return None


def _of_what_they_say(found: list[Sign], failed: list[Sign]) -> Blame | None:
    """The first of the most telling kind decides."""
    first: dict[str, Sign] = {one.kind: one for one in reversed(failed)}
    if one := first.get("outside"):
        ranks = [] if one.ranks is None else [one.ranks]
        return Blame("setting", "WORLD_SIZE", ranks, f"Rank {one.ranks} was told that there are {one.world} ranks", 0.9, "established")
    if one := first.get("nodes"):
        return Blame("setting", "--nodes", [], f"Two hosts were told different things: {one.why}", 0.95, "established")
    if one := first.get("port-taken"):
        return Blame("setting", "MASTER_PORT", [], f"Port {one.address} of the first host is taken by another process", 0.9, "established")
    if one := first.get("connect"):
        return _nobody_answers(one, found, failed)
    if (one := first.get("absent")) and one.ranks is not None:
        return Blame("rank", str(one.ranks), [one.ranks], f"Rank {one.ranks} is waited for and did not come", 0.75, "supported")
    if one := first.get("joined"):
        return Blame("group", "start", [], f"{one.ranks} of {one.world} ranks came to the meeting", 0.75, "supported")
    if "rendezvous" in first:
        title = "Not all hosts came to the meeting in time, or they were told different things"
        return Blame("group", "start", [], title, 0.6, "hypothesis")
    return None


def _nobody_answers(one: Sign, found: list[Sign], failed: list[Sign]) -> Blame:
    host = one.address.rpartition(":")[0]
    spoke = sorted({sign.rank for sign in failed if sign.rank is not None and sign.kind == "connect"})
    about = [sign for sign in found if sign.address == one.address]
    if any(sign.kind == "name" for sign in about):
        title = f"The name {host} does not resolve where a rank looks for the others"
        return Blame("setting", "MASTER_ADDR", spoke, title, 0.9, "established")
    why = next((sign.why for sign in (one, *about) if sign.why), "")
    title = f"Nobody answers at {one.address}, where a rank looks for the others" + (f" ({why})" if why else "")
    if any(sign.kind == "joined" for sign in failed):  # the first host was there, and waited for those who went elsewhere
        return Blame("setting", "MASTER_ADDR", spoke, title, 0.8, "supported")
    title += ": a wrong address, a head that was not started, or a firewall"
    return Blame("setting", "MASTER_ADDR", spoke, title, 0.5, "hypothesis")


def _telling(found: list[Sign]) -> list[Sign]:
    """One line of every kind, at most three."""
    return list({one.kind: one for one in reversed(found)}.values())[::-1][:3]


def _evidence(case: Case, found: list[Sign], ranks: list[Told]) -> list[Evidence]:
    made = []
    if found:
        kinds = ", ".join(f"'{kind}'" for kind in sorted({one.kind for one in found}))
        query = f"SELECT count(*) AS n FROM event WHERE kind = '{SIGN}' AND attrs->>'kind' IN ({kinds})"
        made.append(case.sql(query, 0, "lines", "that speak of a meeting"))
    if ranks:
        said = "; ".join(f"rank {one.rank} of {one.world} at {one.address}" for one in ranks[:8])
        where = "fingerprints.*.env: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT"
        made.append(case.derived(where, len(ranks), ranks[0].world, "ranks", said))
    return made


def _relate(case: Case, made: Finding, roots: tuple[Finding, ...]) -> Finding:
    """A rank that died before, or cannot be reached, does not come either."""
    for root in roots:
        if root.id in CAUSES_OF_IT and root.confidence.basis != "hypothesis":
            return msgspec.structs.replace(made, role="cascade", caused_by=(root.fingerprint,))
    return made


CHECK = Check(ID, "Ranks that never meet", mandatory=False, cost=1, test=test, page=__doc__ or "", relate=_relate)
