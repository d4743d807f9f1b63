"""hang.unanswering-rank: NCCL's own watchers (RAS) get no answer from a rank, or it is behind the others in its collectives.

What is seen: nothing moves; `ncclras` says INCOMPLETE or MISMATCH. Usual reasons: the process died or is stopped, its host is gone, or it
took another branch.

How it is told apart: in the newest answer, ranks that RAS reports as missing from a communicator, unresponsive or dead are named. Where
all answer, whoever reports an error that most do not, or has called fewer of a collective than most, is named, as a hypothesis, because
counts are not read at one moment. Without a majority nobody is, and nothing is ruled out.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from playbooks.case import Case
from playbooks.check import Check, Need, Result, passed, skipped
from playbooks.document import Outcome, Remedy
from playbooks.finding import finding, listed, subject
from probes.foreign.ras_status import KIND

ID = "hang.unanswering-rank"
NEWEST = f"kind = '{KIND}' AND ts = (SELECT max(ts) FROM event WHERE kind = '{KIND}')"
SILENT = ("missing", "unresponsive", "dead")
UNANSWERED = " OR ".join(f"(attrs->>'{name}')::BOOLEAN" for name in SILENT)
ANSWERS = Need(
    "an answer of NCCL's RAS", "event", 1, "`ncclras -f json > FILE`, then workbench import FILE", where=f"kind = '{KIND}'", time=""
)


def test(case: Case) -> Result:
    rows = case.store.rows(f"SELECT rank, attrs FROM event WHERE {NEWEST} ORDER BY rank", limit=None)
    found = [(int(row["rank"]), json.loads(row["attrs"])) for row in rows]
    missing = sorted({rank for rank, facts in found if any(facts[name] for name in SILENT)})
    late, unequal = _behind(found)
    failed = {rank: f"reports error {facts['error']}" for rank, facts in found if facts["error"] or facts["aborted"]}
    if 2 * len(failed) < len({rank for rank, _ in found}):
        late |= failed
    else:
        unequal |= failed
    if not missing and not late and unequal:
        named = "; ".join(f"rank {rank} {what}" for rank, what in sorted(unequal.items()))
        return skipped(f"a majority that agrees: {named}. Ask again: `ncclras -f json > FILE`, then workbench import FILE")
    if not missing and not late:
        return passed(f"{len({rank for rank, _ in found})} ranks answer and agree in their counts", 0, 0, "ranks")
    ranks = missing or sorted(late)
    hosts = sorted({facts["host"] for rank, facts in found if rank in ranks})
    dead = sorted({rank for rank, facts in found if facts["dead"]})
    said = (
        f"{listed(missing, 'rank')} did not answer" + (f"; {listed(dead, 'rank')} counted as dead" if dead else "")
        if missing
        else "; ".join(f"rank {rank} {what}" for rank, what in sorted(late.items()))
    )
    made = finding(
        case,
        ID,
        "critical" if missing else "warning",
        subject("rank", ",".join(map(str, ranks)), ranks=ranks, hosts=hosts),
        f"{listed(ranks, 'rank').capitalize()}: {'no answer to NCCL' if missing else 'behind the others in collectives, or in error'}",
        f"{said} (hosts {', '.join(hosts)}).",
        0.85 if missing else 0.5,
        "supported" if missing else "hypothesis",
        evidence=(
            case.sql(
                f"SELECT count(DISTINCT rank) AS n FROM event WHERE {NEWEST} AND "
                f"({UNANSWERED})",
                0,
                "ranks",
                said,
            ),
        ),
        remedy=(
            Remedy(
                text="Look at these processes and their hosts: exit code, state, kernel log.",
                risk="low: nothing is changed",
                command="ncclras -v; py-spy dump --nonblocking --pid PID",
                verify="ncclras -f json; workbench diagnose hang",
            ),
        ),
    )
    outcome: Outcome = "fail" if missing else "warn"
    return Result(outcome, said, len(ranks), 0, "ranks", (made,))


def _behind(found: list[tuple[int, dict[str, Any]]]) -> tuple[dict[int, str], dict[int, str]]:
    """Rank -> what it has called less often than most members of its communicator; and what each has called where there is no majority."""
    late: dict[int, str] = {}
    unequal: dict[int, str] = {}
    counts: dict[tuple[str, str], dict[int, int]] = {}
    for rank, facts in found:
        for name, number in facts["counts"].items():
            counts.setdefault((facts["communicator"], name), {})[rank] = number
    for (_, name), by_rank in counts.items():
        usual, many = Counter(by_rank.values()).most_common(1)[0]
        if many > len(by_rank) / 2:
            late |= {rank: f"has called {name} {number} times, most {usual}" for rank, number in by_rank.items() if number < usual}
        else:
            unequal |= {rank: f"has called {name} {number} times" for rank, number in by_rank.items()}
    return late, unequal


CHECK = Check(ID, "A rank does not answer NCCL's watchers", mandatory=False, cost=1, test=test, needs=(ANSWERS,), page=__doc__ or "")
