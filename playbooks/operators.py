"""Operators of the profiler windows of a run: what each took, over all ranks, per computed token."""

from __future__ import annotations

from dataclasses import dataclass

from traces.store import Store


@dataclass(frozen=True, slots=True)
class Window:
    """A profiler window: steps, ranks that wrote it, and the tokens they computed together."""

    first: int
    last: int
    ranks: tuple[int, ...]
    tokens: int

    @property
    def steps(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Operator:
    """All calls of one operator: self time over all ranks (device time where there is a device, else CPU-side), ns."""

    name: str
    calls: int
    self_ns: int
    slowest_rank: int
    slowest_ns: int  # of that rank


@dataclass(frozen=True, slots=True)
class Profile:
    window: Window
    operators: tuple[Operator, ...]  # the longest first

    @property
    def total(self) -> int:
        return sum(one.self_ns for one in self.operators)

    def per_token(self) -> dict[str, float]:
        """ns of self time per computed token."""
        return {one.name: one.self_ns / max(1, self.window.tokens) for one in self.operators}


WINDOWS = (
    "SELECT step_first, step_last, list_sort(list(rank)) AS ranks, sum(tokens)::BIGINT AS tokens "
    "FROM (SELECT DISTINCT step_first, step_last, rank, tokens FROM operator) GROUP BY step_first, step_last ORDER BY step_last DESC"
)


def operators_sql(window: Window) -> str:
    return (
        "WITH one AS (SELECT name, rank, sum(calls) AS calls, sum(coalesce(self_device, self_cpu)) AS ns FROM operator "
        f"WHERE step_first = {window.first} AND step_last = {window.last} GROUP BY name, rank) "
        "SELECT name, sum(calls)::BIGINT AS calls, sum(ns)::BIGINT AS ns, arg_max(rank, (ns, -rank)) AS rank, max(ns)::BIGINT AS slowest "
        "FROM one GROUP BY name ORDER BY ns DESC, name"
    )


def latest(store: Store, first: int | None = None) -> Profile | None:
    """The newest profile of a run, or the one that begins at step `first`; None where there is none."""
    for row in store.rows(WINDOWS):
        window = Window(int(row["step_first"]), int(row["step_last"]), tuple(int(rank) for rank in row["ranks"]), int(row["tokens"]))
        if first in (None, window.first):
            found = store.rows(operators_sql(window))
            made = tuple(Operator(*(one[name] for name in ("name", "calls", "ns", "rank", "slowest"))) for one in found)
            return Profile(window, made)
    return None
