"""Answers of NCCL's RAS service (`ncclras -f json`): which ranks of a communicator answer, which do not, and how far each has come.

Form: NCCL documentation, troubleshooting/ras; `ncclras` 2.28.7 and later writes JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from probes.foreign.bounds import RANKS, TIMES, within
from traces.errors import UsageError
from traces.schema import EVENT
from traces.table import Table

KIND = "ras.rank"
LARGEST = 64 << 20  # bytes: 100,000 ranks
SECOND = 1_000_000_000


def claims(path: Path, head: bytes) -> bool:
    return head.lstrip().startswith(b"{") and b'"communicators' in head and b'"nccl_version"' in head


def rows(paths: Sequence[Path]) -> tuple[dict[Table, list[tuple[Any, ...]]], dict[Path, int], dict[Path, str]]:
    """An event `ras.rank` for each rank of each communicator: communicator, size, host, pid, missing, unresponsive, dead, errors, counts.

    Raises UsageError that names the file.
    """
    found: list[tuple[Any, ...]] = []
    counts: dict[Path, int] = {}
    for path in paths:
        events = _events(path)
        counts[path] = len(events)
        found += events
    return {EVENT: found}, counts, {}


def _events(path: Path) -> list[tuple[Any, ...]]:
    try:
        if path.stat().st_size > LARGEST:
            raise UsageError(f"{path.name} has more than {LARGEST} bytes", "that is no answer of the RAS service")
        document = json.loads(path.read_bytes())
        ts = within(int(datetime.fromisoformat(document["timestamp"]).timestamp()) * SECOND, TIMES)
        return [
            (ts, 0, "ras", within(int(rank["rank"]), RANKS), KIND, json.dumps(_attributes(communicator, rank, missing)))
            for communicator in document["communicators"]
            for key, missing in (("ranks", False), ("missing_ranks", True))
            for rank in communicator.get(key, ())
        ]
    except OSError as error:
        raise UsageError(f"{path.name} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise UsageError(f"{path.name} is no whole answer of NCCL's RAS: {error}", "write it with `ncclras -f json`") from error


def _attributes(communicator: Mapping[str, Any], rank: Mapping[str, Any], missing: bool) -> dict[str, Any]:
    status = rank.get("status") or {}
    return {
        "communicator": str(communicator["hash"]),
        "size": int(communicator["size"]),
        "host": str(rank.get("host", "")),
        "pid": int(rank.get("pid", 0)),
        "missing": missing,
        "unresponsive": bool(status.get("unresponsive")),
        "dead": bool(status.get("considered_dead")),
        "error": int(status.get("async_error") or 0),
        "aborted": bool(status.get("abort_flag")),
        "counts": {str(name): int(number) for name, number in (rank.get("collective_counts") or {}).items()},
    }
