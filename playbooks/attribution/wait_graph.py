"""Who waits for whom in a hang, from what each rank's flight recorder remembers.

A collective that must wait for all its members (all-to-all, all-gather, reduce-scatter, all-reduce, barrier) orders them: when one member
has completed it, every member had entered it; while one has not entered it, nobody completes it. From that alone follow

- *stuck*: a rank on which such a collective is still open although another member has completed it. Its peers got its data; its own device
  or library stopped finishing work.
- *missing*: a rank that has not entered a collective in which others wait. It is a root when it waits for nobody itself: it sits in host
  code. Otherwise it is a victim of whoever it waits for.

Collectives with one source (broadcast, reduce, gather, scatter) may complete on some members early, so that nothing follows from it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

SYMMETRIC = ("all_to_all", "alltoall", "all_gather", "allgather", "reduce_scatter", "all_reduce", "allreduce", "barrier")
UNEVEN = ("all_to_all", "alltoall")  # each rank may bring another size

Standing = Literal["open", "completed", "missing", "unknown"]


@dataclass(frozen=True, slots=True)
class Op:
    """An entry. `peer` is a rank of the world, None for collectives."""

    rank: int
    group: str
    seq: int
    op: str
    open: bool
    peer: int | None = None
    sizes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()

    @property
    def symmetric(self) -> bool:
        return self.peer is None and any(name in self.op for name in SYMMETRIC)


@dataclass(frozen=True, slots=True)
class Membership:
    """A group. `enqueued` and `completed` by rank, where its recorder says so."""

    name: str
    meaning: str
    ranks: tuple[int, ...]
    enqueued: dict[int, int] = field(default_factory=dict)
    completed: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wait:
    """`rank` waits in an operation for `others`, who have not entered it."""

    rank: int
    op: Op
    others: tuple[int, ...]


@dataclass
class WaitGraph:
    """All ranks that dumped, their operations and groups."""

    ranks: tuple[int, ...]
    ops: tuple[Op, ...]
    groups: dict[str, Membership]

    @cached_property
    def _entries(self) -> dict[tuple[int, str], dict[int, Op]]:
        """(rank, group) -> seq -> its collective."""
        found: dict[tuple[int, str], dict[int, Op]] = defaultdict(dict)
        for op in self.ops:
            if op.peer is None:
                found[op.rank, op.group][op.seq] = op
        return dict(found)

    def members(self, group: str) -> tuple[int, ...]:
        """As the recorders say, else all ranks that have entries of it."""
        known = self.groups.get(group)
        return known.ranks if known is not None and known.ranks else tuple(sorted({op.rank for op in self.ops if op.group == group}))

    def standing(self, rank: int, group: str, seq: int) -> Standing:
        """Where a rank stands with a collective. A group's collectives are entered and completed in order."""
        entries = self._entries.get((rank, group), {})
        if seq in entries:
            return "open" if entries[seq].open else "completed"
        if rank not in self.ranks:
            return "unknown"
        if entries and seq < max(entries):
            return "completed"  # it has entered later ones, and this one is no longer remembered
        known = self.groups.get(group)
        enqueued = known.enqueued.get(rank) if known else None
        if enqueued is not None and enqueued >= seq:
            completed = known.completed.get(rank) if known else None
            return "completed" if completed is not None and completed >= seq else "unknown"
        return "missing" if entries or enqueued is not None else "unknown"

    @cached_property
    def open_collectives(self) -> tuple[Op, ...]:
        return tuple(op for op in self.ops if op.open and op.peer is None)

    @cached_property
    def stuck(self) -> dict[int, tuple[Op, ...]]:
        """Rank -> its open collectives that another member has completed."""
        found: dict[int, list[Op]] = defaultdict(list)
        for op in self.open_collectives:
            others = (rank for rank in self.members(op.group) if rank != op.rank)
            if op.symmetric and any(self.standing(rank, op.group, op.seq) == "completed" for rank in others):
                found[op.rank].append(op)
        return {rank: tuple(sorted(ops, key=lambda op: (op.group, op.seq))) for rank, ops in found.items()}

    @cached_property
    def waits(self) -> tuple[Wait, ...]:
        """Everybody who waits for somebody."""
        return tuple(wait for op in self.ops if op.open and (wait := self._wait(op)) is not None)

    def _wait(self, op: Op) -> Wait | None:
        if op.peer is not None:
            answered = any(o.open and o.rank == op.peer and o.peer == op.rank and o.op != op.op for o in self._points.get(op.group, ()))
            return None if answered or op.peer not in self.ranks else Wait(op.rank, op, (op.peer,))
        missing = tuple(rank for rank in self.members(op.group) if self.standing(rank, op.group, op.seq) == "missing")
        return Wait(op.rank, op, missing) if missing else None

    @cached_property
    def _points(self) -> dict[str, list[Op]]:
        found: dict[str, list[Op]] = defaultdict(list)
        for op in self.ops:
            if op.peer is not None:
                found[op.group].append(op)
        return found

    @cached_property
    def missing(self) -> dict[int, tuple[Wait, ...]]:
        """Rank -> the collectives that others wait for it in. Ranks that wait for nobody, and are not stuck, only."""
        waited: dict[int, list[Wait]] = defaultdict(list)
        for wait in self.waits:
            for other in wait.others:
                if wait.op.peer is None:
                    waited[other].append(wait)
        waiting = {wait.rank for wait in self.waits}
        return {rank: tuple(waits) for rank, waits in waited.items() if rank not in waiting and rank not in self.stuck}

    @cached_property
    def ring(self) -> tuple[Wait, ...]:
        """Collectives in which ranks wait for one another all the way round; empty when every chain of waits ends at a root."""
        after: dict[int, list[tuple[int, Wait]]] = defaultdict(list)
        for wait in self.waits:
            if wait.op.peer is None:
                after[wait.rank] += [(other, wait) for other in wait.others]
        for start in sorted(after):
            path: dict[int, Wait] = {}
            rank = start
            while after.get(rank) and rank not in path:
                # Any edge may be followed: only a chain that never reaches a root can return to itself on every choice.
                rank_next, path[rank] = min(after[rank], key=lambda edge: (not after.get(edge[0]), edge[0]))
                rank = rank_next
            if rank in path and not self._roots_from(start, after):
                ranks = list(path)
                return tuple(path[member] for member in ranks[ranks.index(rank) :])
        return ()

    def _roots_from(self, start: int, after: dict[int, list[tuple[int, Wait]]]) -> bool:
        """Whether some chain of waits from `start` ends at a rank that waits for nobody, or that is stuck."""
        seen, todo = {start}, [start]
        while todo:
            for other, _ in after.get(todo.pop(), ()):
                if not after.get(other) or other in self.stuck:
                    return True
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
        return False

    @cached_property
    def silent(self) -> tuple[int, ...]:
        """Members of groups that did not dump at all."""
        named = {rank for group in self.groups.values() for rank in group.ranks}
        return tuple(sorted(named - set(self.ranks)))

    @cached_property
    def mismatches(self) -> dict[tuple[str, int], dict[str, tuple[int, ...]]]:
        """(group, seq) -> what is called -> ranks, where members call different things under one number."""
        called: dict[tuple[str, int], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for op in self.ops:
            if op.peer is None:
                called[op.group, op.seq][_signature(op)].append(op.rank)
        return {key: {what: tuple(sorted(ranks)) for what, ranks in words.items()} for key, words in called.items() if len(words) > 1}

    @cached_property
    def everybody_in(self) -> tuple[tuple[str, int, str], ...]:
        """(group, seq, op) of open collectives that every member has entered and none has completed."""
        found: dict[tuple[str, int, str], None] = {}
        for op in self.open_collectives:
            if all(self.standing(rank, op.group, op.seq) == "open" for rank in self.members(op.group)):
                found[op.group, op.seq, op.op] = None
        return tuple(found)


def _signature(op: Op) -> str:
    """Operation, dtypes, and sizes where all members must bring the same."""
    sizes = "" if any(name in op.op for name in UNEVEN) else f" {' '.join(op.sizes)}"
    return f"{op.op}{sizes} {' '.join(op.dtypes)}".strip()


def minority(words: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    """The ranks that do not call what most call; empty when no call has a majority of its own."""
    most = Counter({what: len(ranks) for what, ranks in words.items()}).most_common(2)
    if len(most) > 1 and most[0][1] == most[1][1]:
        return ()
    return tuple(sorted(rank for what, ranks in words.items() if what != most[0][0] for rank in ranks))


def of(ranks: Iterable[int], ops: Iterable[Op], groups: Iterable[Membership]) -> WaitGraph:
    return WaitGraph(tuple(sorted(set(ranks))), tuple(ops), {group.name: group for group in groups})
