"""Flight-recorder dumps as rows of the tables `flight` and `flight_group`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from probes.foreign.flight_recorder import read_dump, with_status
from traces.errors import UsageError
from traces.schema import FLIGHT, FLIGHT_GROUP
from traces.table import Table


def rows(paths: Sequence[Path]) -> tuple[dict[Table, list[tuple[Any, ...]]], dict[Path, int], dict[Path, str]]:
    """Rows of every table, and how many each file gave. Raises UsageError: a damaged file, or two files of one rank."""
    dumps = [read_dump(path) for path in paths]
    ranks: dict[int, str] = {}
    for dump in dumps:
        if dump.rank in ranks:
            raise UsageError(f"{ranks[dump.rank]} and {dump.path} are both of rank {dump.rank}", "import the dumps of one moment only")
        ranks[dump.rank] = dump.path
    flights: list[tuple[Any, ...]] = []
    groups: list[tuple[Any, ...]] = []
    counts: dict[Path, int] = {}
    for path, dump in zip(paths, with_status(dumps), strict=True):
        ours = [
            (e.created, dump.rank, e.group, e.seq, e.op, e.peer, e.open, e.state, list(map(str, e.sizes)), list(e.dtypes), e.thread)
            for e in dump.entries
        ]
        theirs = [(dump.rank, g.name, g.meaning, list(g.ranks), g.enqueued, g.completed, dump.library) for g in dump.groups]
        # A rank that remembers nothing, not even a group, is still a rank that answered.
        theirs = theirs or [(dump.rank, "", "", [], None, None, dump.library)]
        counts[path] = len(ours) + len(theirs)
        flights += ours
        groups += theirs
    return {FLIGHT: flights, FLIGHT_GROUP: groups}, counts, {}
