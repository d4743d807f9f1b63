"""What a run says about its memory while it loaded, rank by rank. Read once; every cause asks the same story."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from playbooks.case import Case
from playbooks.check import Need

NEED = Need(
    "memory samples or an engine's log",
    "(SELECT rank FROM memory WHERE rank IS NOT NULL UNION ALL SELECT rank FROM event WHERE kind IN ('load_plan', 'engine_fact'))",
    1,
    "serve with telemetry on, or give --log FILE (vLLM, SGLang) or --model MODEL --limit SIZE",
    time="",
)
KILLED = -9
BUS_ERROR = -7


@dataclass(frozen=True, slots=True)
class Sample:
    """Bytes at `ts`, ns."""

    ts: int
    phase: str
    anon: int
    file: int
    shmem: int
    cgroup_anon: int | None
    cgroup_file: int | None
    allocated: int | None
    reserved: int | None
    free: int | None


@dataclass(slots=True)
class RankStory:
    """One rank. `plan` holds the facts of its load_plan event; `read` and `kept` are bytes of the loader's own account."""

    rank: int
    samples: list[Sample] = field(default_factory=list)
    plan: dict[str, Any] = field(default_factory=dict)
    reading: int | None = None  # when the first byte was asked for
    placing: dict[str, Any] = field(default_factory=dict)  # what it held when the first value was placed; empty: none was, or not said
    all_read: int | None = None  # when the last one had arrived
    read: int = 0
    kept: int = 0
    error: str = ""  # of an allocation that failed
    error_phase: str = ""
    refused: str = ""  # what it said when it gave up by itself
    exit_code: int | None = None
    shm_free: int | None = None  # of its host, when it died
    served: bool = False

    def fact(self, name: str) -> int | None:
        value = self.plan.get(name)
        return int(value) if isinstance(value, int | float) else None

    @property
    def limit(self) -> int | None:
        """The smallest limit there is, of whatever kind."""
        found = [self.fact(name) for name in ("limit_cgroup", "limit_data", "limit_as", "limit_device", "limit_given")]
        return min((value for value in found if value is not None), default=None)

    @property
    def base(self) -> int:
        """Anonymous memory before loading: interpreter, libraries."""
        before = [sample.anon for sample in self.samples if sample.phase in ("start", "plan")]
        return before[-1] if before else self.fact("base_anon") or 0

    def during(self, *phases: str) -> list[Sample]:
        return [sample for sample in self.samples if sample.phase in phases]

    @property
    def loading(self) -> list[Sample]:
        return self.during("load", "construct", "convert")

    @property
    def peak(self) -> int:
        """Highest rise of anonymous memory above the base while loading."""
        return max((sample.anon - self.base for sample in self.loading), default=0)

    @property
    def built(self) -> int:
        """Rise before the first byte was read: what construction made."""
        before = [s.anon - self.base for s in self.loading if self.reading is None or s.ts <= self.reading]
        return max(before, default=0) if self.reading is not None or self.plan else 0

    @property
    def peak_reading(self) -> int:
        """Highest rise between the first and the last read."""
        return max((s.anon - self.base for s in self._between()), default=0)

    @property
    def file_reading(self) -> int:
        """Most file pages in that time, above those of code and libraries."""
        first = self.samples[0].file if self.samples else 0
        return max((s.file - first for s in self._between()), default=0)

    @property
    def peak_after(self) -> int | None:
        """Highest rise after the last read, while still loading; None when reading never ended."""
        if self.all_read is None:
            return None
        return max((s.anon - self.base for s in self.loading if s.ts >= self.all_read), default=0)

    @property
    def died_in(self) -> str:
        """construction | reading | conversion | the name of a later phase; "" for a rank that lives."""
        if not self.died:
            return ""
        if self.last_phase not in ("start", "plan", "load"):
            return self.last_phase
        if self.reading is None:
            return "construction"
        return "reading" if self.all_read is None else "conversion"

    def _between(self) -> list[Sample]:
        if self.reading is None:
            return []
        end = self.all_read
        return [s for s in self.loading if s.ts >= self.reading and (end is None or s.ts <= end)]

    @property
    def settled(self) -> int | None:
        """Rise that is left when loading has ended; None if it never ended."""
        after = self.during("kv_cache", "warmup", "serve")
        return after[0].anon - self.base if after else None

    @property
    def last_phase(self) -> str:
        return self.samples[-1].phase if self.samples else self.error_phase

    @property
    def died(self) -> bool:
        return bool(self.error) or (self.exit_code is not None and self.exit_code != 0)


@dataclass(slots=True)
class Story:
    """All ranks, and what a foreign engine's log states (`facts`, GiB turned to bytes; `errors` the texts it ended with)."""

    ranks: dict[int, RankStory]
    facts: dict[str, Any]
    errors: list[str]
    foreign: bool

    @property
    def failed(self) -> bool:
        return bool(self.errors) or any(one.died or one.refused for one in self.ranks.values())

    @property
    def worst(self) -> RankStory | None:
        """The rank to look at: the first that died, else the one with the highest rise."""
        dead = [one for one in self.ranks.values() if one.died]
        pool = dead or list(self.ranks.values())
        return max(pool, key=lambda one: (one.peak, -one.rank)) if pool else None

    @property
    def loaded_by_us(self) -> list[RankStory]:
        """Ranks with a plan and memory samples."""
        return [one for one in self.ranks.values() if one.plan and one.loading]


def story(case: Case) -> Story:
    """The story of a run, read when first asked for."""
    found = case.memo.get("memory-story")
    if found is None:
        found = case.memo["memory-story"] = _read(case)
    assert isinstance(found, Story)
    return found


def _read(case: Case) -> Story:
    ranks: dict[int, RankStory] = {}
    for row in case.store.rows(_SAMPLES):
        one = ranks.setdefault(int(row["rank"]), RankStory(int(row["rank"])))
        one.samples.append(
            Sample(
                row["ts"], row["phase"], row["rss_anon"], row["rss_file"], row["rss_shmem"], row["cgroup_anon"], row["cgroup_file"],
                row["device_allocated"], row["device_reserved"], row["device_free"],
            )
        )  # fmt: skip
        one.served = one.served or row["phase"] == "serve"
    facts: dict[str, Any] = {}
    errors: list[str] = []
    for row in case.store.rows(_EVENTS):
        attrs = json.loads(row["attrs"]) if isinstance(row["attrs"], str) else dict(row["attrs"] or {})
        if row["kind"] == "engine_fact":
            facts.update(attrs)
        elif row["kind"] == "engine_error":
            errors.append(str(attrs.get("text", "")))
        elif row["rank"] is not None:
            _event(ranks.setdefault(int(row["rank"]), RankStory(int(row["rank"]))), row["kind"], int(row["ts"]), attrs)
    _loads(case, ranks)
    return Story(dict(sorted(ranks.items())), facts, errors, bool(facts or errors))


def _event(one: RankStory, kind: str, ts: int, attrs: dict[str, Any]) -> None:
    if kind == "load_plan" and not one.plan:  # later ones are of placements that were staged
        one.plan = attrs
    elif kind == "load_reading":
        one.reading = one.reading or ts
    elif kind == "load_placing":
        one.placing = one.placing or attrs
    elif kind == "load_read":
        one.all_read = one.all_read or ts
    elif kind == "oom":
        one.error, one.error_phase = str(attrs.get("error", "")), str(attrs.get("phase", ""))
    elif kind == "refused":
        one.refused = str(attrs.get("error", ""))
    elif kind == "death" and attrs.get("exit_code") is not None:
        one.exit_code, one.shm_free = int(attrs["exit_code"]), attrs.get("shm_free")


def _loads(case: Case, ranks: dict[int, RankStory]) -> None:
    for one in ranks.values():
        ended = max((sample.ts for sample in one.loading), default=None)
        if ended is None:
            continue
        row = case.store.rows(_LOADS, {"rank": one.rank, "ended": ended})[0]
        if row["read"] is not None:
            one.read, one.kept = int(row["read"]), int(row["kept"])


_SAMPLES = """
SELECT ts, rank, phase, rss_anon, rss_file, rss_shmem, cgroup_anon, cgroup_file, device_allocated, device_reserved, device_free
FROM memory WHERE rank IS NOT NULL ORDER BY rank, ts
"""
_EVENTS = """
SELECT rank, kind, ts, attrs FROM event
WHERE kind IN ('load_plan', 'load_reading', 'load_placing', 'load_read', 'oom', 'refused', 'death', 'engine_fact', 'engine_error')
ORDER BY ts
"""
_LOADS = """
SELECT sum(bytes_read) AS read, sum(bytes_kept) AS kept FROM load
WHERE rank = $rank AND ts <= $ended
"""
