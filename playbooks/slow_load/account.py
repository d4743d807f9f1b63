"""What a start consisted of: seconds of each phase, and of each rank's load the reads, faults and bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from playbooks.case import Case
from playbooks.check import Need, Result
from playbooks.document import Impact, Remedy
from playbooks.finding import finding, subject

NEED = Need(
    "phases of a start, or an engine's log",
    "(SELECT rank FROM event WHERE kind IN ('load_read', 'engine_fact'))",
    1,
    "serve with telemetry on until it answers, or give --log FILE (vLLM, SGLang)",
    time="",
)
SERIOUS = 0.30  # of the start: a finding of this share is an error, below a warning, below SMALL a note (our choice)
SMALL = 0.10
FEW_SECONDS = 0.25  # what is gained must be worth a word (our choice)


@dataclass(slots=True)
class RankStart:
    """One rank: seconds by phase, and its load's account (runtime.load_account)."""

    rank: int
    phases: dict[str, float] = field(default_factory=dict)
    planned_read: int = 0
    load: dict[str, Any] = field(default_factory=dict)
    read_at: int | None = None
    load_ended: int | None = None
    file_pages: int = 0  # highest rise of file pages while loading

    def number(self, name: str) -> float:
        value = self.load.get(name)
        return float(value) if isinstance(value, int | float) else 0.0

    @property
    def seconds(self) -> float:
        """Of the load, from its first to its last byte."""
        return self.number("wall_ns") / 1e9

    @property
    def reading(self) -> float:
        """Reads in flight, on average, while loading."""
        return self.number("read_ns") / max(self.number("wall_ns"), 1.0)

    @property
    def calls_over_needed(self) -> float:
        """Bytes that came through read calls over bytes that were needed."""
        return self.number("by_calls") / max(self.planned_read, 1)

    @property
    def after(self) -> float:
        """Seconds of phase `load` after the last byte."""
        if self.read_at is None or self.load_ended is None:
            return 0.0
        return max(0.0, (self.load_ended - self.read_at) / 1e9)


@dataclass(slots=True)
class Start:
    """All ranks; `facts` are a foreign engine's seconds."""

    ranks: dict[int, RankStart]
    facts: dict[str, Any]

    @property
    def loaded(self) -> list[RankStart]:
        return [one for one in self.ranks.values() if one.load]

    @property
    def seconds(self) -> float:
        """Of the whole start, of the slowest rank (or as the log says)."""
        ours = max((sum(one.phases.values()) for one in self.ranks.values()), default=0.0)
        stated = sum(float(self.facts.get(f"{name}_seconds") or 0) for name in ("download", "load", "init"))
        return max(ours, stated)


def start(case: Case) -> Start:
    """Read when first asked for."""
    found = case.memo.get("start")
    if found is None:
        found = case.memo["start"] = _read(case)
    assert isinstance(found, Start)
    return found


def _read(case: Case) -> Start:
    ranks: dict[int, RankStart] = {}
    facts: dict[str, Any] = {}
    for row in case.store.rows(_EVENTS):
        attrs = json.loads(row["attrs"]) if isinstance(row["attrs"], str) else dict(row["attrs"] or {})
        if row["kind"] == "engine_fact":
            facts.update(attrs)
        elif row["rank"] is not None:
            _event(ranks.setdefault(int(row["rank"]), RankStart(int(row["rank"]))), row, attrs)
    for row in case.store.rows(_PAGES):
        if int(row["rank"]) in ranks:
            ranks[int(row["rank"])].file_pages = int(row["pages"] or 0)
    return Start(dict(sorted(ranks.items())), facts)


def _event(one: RankStart, row: dict[str, Any], attrs: dict[str, Any]) -> None:
    if row["kind"] == "phase":
        name = str(attrs.get("phase"))
        if name in ("plan", "load", "kv_cache", "warmup"):
            one.phases.setdefault(name, int(row["dur"]) / 1e9)
            if name == "load" and one.load_ended is None:
                one.load_ended = int(row["ts"]) + int(row["dur"])
    elif row["kind"] == "load_plan":
        one.planned_read = one.planned_read or int(attrs.get("planned_read") or 0)
    elif not one.load:
        one.load, one.read_at = attrs, int(row["ts"])


_EVENTS = """
SELECT rank, kind, ts, dur, attrs FROM event WHERE kind IN ('phase', 'load_plan', 'load_read', 'engine_fact') ORDER BY ts
"""
_PAGES = """
SELECT rank, max(rss_file) FILTER (WHERE phase = 'load') - min(rss_file) AS pages FROM memory WHERE rank IS NOT NULL GROUP BY rank
"""


def slow(
    case: Case, cause: str, title: str, ranks: list[int], lost: float, said: str, observed: float, threshold: float, unit: str,
    remedy: Remedy, score: float = 0.9,
) -> Result:
    """A cause that costs `lost` seconds of the start."""
    total = max(start(case).seconds, 1e-9)
    share = min(1.0, lost / total)
    severity: Any = "info" if share < SMALL or lost < FEW_SECONDS else "error" if share >= SERIOUS else "warning"
    found = finding(
        case, cause, severity, subject("rank", ranks[0] if ranks else 0, ranks=ranks), title, said, score, "established",
        impact=Impact(metric="start", value=round(lost, 3), unit="s", share=round(share, 4), alone=round(lost, 3)),
        evidence=(case.derived("playbooks.slow_load.account.start", round(observed, 3), threshold, unit, f"start {total:.2f} s"),),
        remedy=(remedy,),
    )  # fmt: skip
    outcome: Any = {"error": "fail", "warning": "warn", "info": "pass"}[severity]
    return Result(outcome, said, round(observed, 3), threshold, unit, (found,))
