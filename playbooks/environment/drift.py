"""env.drift: ranks run in environments that differ from one another, or from a baseline when all was well.

What is seen: anything. A collective library, driver, plugin, kernel, environment variable or model revision that differs on one rank
has caused hangs, start-up failures, slow links and wrong answers (reference/causes_latency_network_hang_load.md, S6 cases 6-8), so it
is always looked at first. A difference is a *hypothesis*: it is listed, and the other checks say whether the symptom follows it.

How it is told apart: facts of each rank's fingerprint are compared with those of most ranks, and with the baseline's. Facts that
differ between healthy runs (process ids, ports, free memory, rank numbers) are left out; the list is in probes/fingerprint.py.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from playbooks.case import Case
from playbooks.check import Check, Result, passed, skipped
from playbooks.document import Evidence, Finding, Remedy
from playbooks.finding import finding, listed, subject
from probes.fingerprint import diff, flat, is_volatile
from traces.run import Run

ID = "env.drift"

# What most often decides between working and not, most telling first (reference section 2: env.drift); the rest follow by name.
WEIGHTY = ("model.*", "packages.*", "torch.*", "devices.*", "env.*", "python.*", "os.*", "cpu.*", "limits.*", "memory.*")
# Differ between the processes of one healthy run: each rank may be pinned, its host names its own interfaces, and it sees its own device.
PER_RANK = ("cpu.usable", "numa.*", "network.*", "devices.*")
# Differ between two runs that are meant to be equal.
PER_RUN = ("env.MASTER_ADDR", "env.OTEL_*", "network.*.state")

Facts = dict[str, Any]
Drift = dict[str, dict[str, Any]]


def test(case: Case) -> Result:
    ranks = rank_facts(case.run)
    if not ranks:
        return skipped("no fingerprint of any rank: `workbench serve` records one per rank; `workbench fingerprint` takes one by hand")
    among = drift_among(ranks)
    against = drift_against(ranks, rank_facts(case.baseline)) if case.baseline is not None else {}
    if case.baseline is not None and not rank_facts(case.baseline):
        return skipped(f"the baseline {case.baseline.id} has no fingerprint: compare with a run of `workbench serve`")
    found = tuple(
        made
        for drift, where in ((among, "between ranks"), (against, "against the baseline"))
        if drift
        for made in (_finding(case, drift, where),)
    )
    number = len(among) + len(against)
    if not found:
        compared = f" and the baseline {case.baseline.id}" if case.baseline else ""
        return passed(f"{len(ranks)} ranks{compared} agree in {_width(ranks)} facts", 0, 0, "differences")
    said = f"{len(among)} facts differ between ranks" + (f", {len(against)} from the baseline" if case.baseline else "")
    return Result("warn", said, number, 0, "differences", found)


def rank_facts(run: Run | None) -> dict[str, Facts]:
    """Producer -> nested facts, of ranks only."""
    return {} if run is None else {name: facts for name, facts in run.info.fingerprints.items() if name.startswith("rank")}


def drift_among(ranks: dict[str, Facts]) -> Drift:
    """Flat key -> {producer: value} of those that differ from most ranks, with the common value under "most ranks"."""
    values: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, facts in ranks.items():
        for key, value in flat(facts):
            if not is_volatile(key) and not _matches(key, PER_RANK):
                values[key][name] = value
    drift: Drift = {}
    for key, by_rank in values.items():
        words = Counter(_word(by_rank.get(name)) for name in ranks)
        if len(words) > 1:
            usual = words.most_common(1)[0][0]
            odd = {name: by_rank.get(name) for name in ranks if _word(by_rank.get(name)) != usual}
            drift[key] = {"most ranks": next(by_rank.get(n) for n in ranks if _word(by_rank.get(n)) == usual), **odd}
    return drift


def drift_against(ranks: dict[str, Facts], baseline: dict[str, Facts]) -> Drift:
    """Flat key -> {"now": value, "baseline": value}, of the first rank both have."""
    common = sorted(ranks.keys() & baseline.keys())
    if not common:
        return {}
    found = diff(baseline[common[0]], ranks[common[0]])
    return {one.key: {"baseline": one.a, "now": one.b} for one in found if not _matches(one.key, PER_RUN)}


def _matches(key: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in patterns)


def _word(value: Any) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


def _width(ranks: dict[str, Facts]) -> int:
    return len({key for facts in ranks.values() for key, _ in flat(facts) if not is_volatile(key)})


def _weight(key: str) -> tuple[int, str]:
    return next((i for i, pattern in enumerate(WEIGHTY) if fnmatchcase(key, pattern)), len(WEIGHTY)), key


def _finding(case: Case, drift: Drift, where: str) -> Finding:
    keys = sorted(drift, key=_weight)
    odd = sorted({int(name.removeprefix("rank")) for values in drift.values() for name in values if name.removeprefix("rank").isdigit()})
    evidence = tuple(_evidence(case, key, drift[key]) for key in keys[:12])
    shown = ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
    return finding(
        case,
        ID,
        "warning",
        subject("setting", keys[0], keys=keys, ranks=odd, compared=where),
        f"Environments differ {where}: {shown}",
        f"{len(keys)} facts differ {where}" + (f" ({listed(odd, 'rank')})" if odd else "") + ". A difference is not yet a cause: "
        "it is where to look if the other checks explain nothing.",
        0.3,
        "hypothesis",
        evidence=evidence,
        remedy=(
            Remedy(
                text="Make the environments equal, then see whether the symptom is still there.",
                risk="medium: needs a restart",
                command="workbench fingerprint --diff A B",
                verify="workbench diagnose SYMPTOM --baseline RUN",
            ),
        ),
    )


def _evidence(case: Case, key: str, values: dict[str, Any]) -> Evidence:
    expected = values.get("most ranks", values.get("baseline"))
    others = {name: value for name, value in values.items() if name not in ("most ranks", "baseline")}
    return case.derived(f"run.json fingerprints.*.{key}", _word(others), _word(expected), note="probes.fingerprint", kind="command")


CHECK = Check(ID, "Environments that differ", mandatory=False, cost=0, test=test, page=__doc__ or "")
