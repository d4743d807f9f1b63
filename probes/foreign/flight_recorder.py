"""PyTorch's flight recorder: what each rank's collective library remembers of its last collectives when a job hangs.

Both forms are read: pickles (TORCH_FR_DUMP_TEMP_FILE, by default /tmp/nccl_trace_rank_N; restricted unpickler) and JSON
(`_dump_fr_trace_json`), of versions 2.x; NCCL, RCCL, HCCL and gloo write the same keys. JSON has 0 and text where the pickle has None and
numbers; gloo leaves the group's ranks empty and never fills started and completed times (torch 2.13: FlightRecorder.hpp).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probes.foreign.restricted_pickle import LARGEST, plain
from traces.errors import UsageError

MOST_ENTRIES = 100_000
MOST_RANKS = 1_000_000
_RANK = re.compile(r"(\d+)(?:\.(?:json|pkl|pickle|pt))?$")
_PEERS = re.compile(r"(send|recv)\s+(\d+)\s*(?:->|<-)\s*(\d+)")


@dataclass(frozen=True, slots=True)
class Entry:
    """One collective or point-to-point operation that a rank enqueued."""

    created: int  # ns since the epoch
    group: str
    group_id: int  # number of the group on this rank
    seq: int  # of the collective, or of the point-to-point operation, in its group
    op: str  # all_to_all, _all_gather_base, send ...
    open: bool  # neither completed nor retired
    state: str  # scheduled | started | completed
    peer: int | None  # of a point-to-point operation, as a rank of the group
    sizes: tuple[tuple[int, ...], ...]  # of its inputs
    dtypes: tuple[str, ...]
    thread: str


@dataclass(frozen=True, slots=True)
class Group:
    """A process group as one rank knows it. `ranks` is empty where the library does not say; None: not known to this rank."""

    name: str
    meaning: str
    ranks: tuple[int, ...]
    enqueued: int | None = None  # sequence number of the last collective enqueued
    completed: int | None = None


@dataclass(frozen=True, slots=True)
class Dump:
    """One rank's file."""

    rank: int
    path: str
    version: str
    library: str
    entries: tuple[Entry, ...]
    groups: tuple[Group, ...]


def claims(path: Path, head: bytes) -> bool:
    """Whether a file looks like a dump, by its first bytes (4 KiB or more)."""
    if head.startswith(b"\x80"):
        return b"version" in head and (b"pg_config" in head or b"entries" in head)
    return head.lstrip().startswith(b"{") and (b'"pg_config"' in head or b'"collective_seq_id"' in head or b'"comm_lib_version"' in head)


def read_dump(path: Path) -> Dump:
    """One file. Raises UsageError that names the file, UnsafePickle among them."""
    found = _RANK.search(path.name)
    if found is None or int(found[1]) > MOST_RANKS:
        raise UsageError(f"{path.name}: the name of a dump ends in its rank", "as in nccl_trace_rank_3")
    try:
        data = _bytes(path)
        document = plain(data) if data.startswith(b"\x80") else json.loads(data)
        return _dump(int(found[1]), path.name, document)
    except UsageError as error:
        raise type(error)(f"{path.name}: {error.message}", error.hint) from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path.name} is no flight-recorder dump: {error}", "a dump holds version, entries and pg_config") from error


def with_status(dumps: Iterable[Dump]) -> list[Dump]:
    """The same dumps, each group's last enqueued and completed numbers filled in also where the ring holds none of its entries.

    A dump states them under the rank's own number of a group, which only its entries tie to a name: a rank without entries is given the
    number on which all other members agree.
    """
    dumps = list(dumps)
    known: dict[str, set[int]] = {}
    for dump in dumps:
        for entry in dump.entries:
            known.setdefault(entry.group, set()).add(entry.group_id)
    return [replace(dump, groups=tuple(_status(group, known, dump) for group in dump.groups if group.name)) for dump in dumps]


def _status(group: Group, known: dict[str, set[int]], dump: Dump) -> Group:
    numbers = {entry.group_id for entry in dump.entries if entry.group == group.name} or known.get(group.name, set())
    by_number = {int(other.meaning): other for other in dump.groups if not other.name}
    status = by_number.get(next(iter(numbers))) if len(numbers) == 1 else None
    return group if status is None else replace(group, enqueued=status.enqueued, completed=status.completed)


def _bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > LARGEST:
            raise UsageError(f"it has {path.stat().st_size} bytes; at most {LARGEST} are read", "lower TORCH_FR_BUFFER_SIZE and dump again")
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"it cannot be read: {error.strerror}") from error


def _dump(rank: int, name: str, document: Any) -> Dump:
    if not isinstance(document, Mapping) or not isinstance(document.get("entries"), list):
        raise ValueError("there is no list of entries")
    if not str(document.get("version", "")).startswith("2."):
        raise UsageError(f"it has version {document.get('version')!r}; versions 2.x are read", "see torch's flight recorder for its format")
    if len(document["entries"]) > MOST_ENTRIES:
        raise UsageError(f"it has {len(document['entries'])} entries; at most {MOST_ENTRIES} are read", "lower TORCH_FR_BUFFER_SIZE")
    library = str(document.get("comm_lib_version") or document.get("nccl_version") or "")
    entries = tuple(_entry(entry) for entry in document["entries"])
    named = {entry.group: Group(entry.group, "", ()) for entry in entries}
    for config in (document.get("pg_config") or {}).values():
        group = Group(str(config["name"]), str(config["desc"]), _ranks(config["ranks"]))
        if group.name:
            named[group.name] = group
    status = tuple(_numbered(number, values) for number, values in (document.get("pg_status") or {}).items())
    return Dump(rank, name, str(document["version"]), library, entries, (*named.values(), *status))


def _numbered(number: str, values: Mapping[str, Any]) -> Group:
    """What a dump states of a group by its number: kept without a name until `with_status` finds it."""
    return Group("", str(int(number)), (), int(values["last_enqueued_collective"]), int(values["last_completed_collective"]))


def _ranks(text: Any) -> tuple[int, ...]:
    """`[0, 1, 2]`, which dumps hold as text."""
    return tuple(int(number) for number in re.findall(r"\d+", str(text)))


def _entry(entry: Mapping[str, Any]) -> Entry:
    name = str(entry["profiling_name"]).split(":", 1)[-1]
    peers = _PEERS.search(name)
    point = bool(entry.get("is_p2p"))
    seq, created = int(entry["p2p_seq_id"] if point else entry["collective_seq_id"]), int(entry["time_created_ns"] or 0)
    if not (0 <= seq < 1 << 62 and 0 <= created < 1 << 62):
        raise ValueError(f"entry {entry.get('record_id')} has number {seq} and time {created}")
    return Entry(
        created=created,
        group=str(entry["process_group"][0]),
        group_id=int(entry["pg_id"]),
        seq=seq,
        op=peers[1] if peers else name.split(" ")[0],
        open=not entry.get("retired") and str(entry["state"]) != "completed",
        state=str(entry["state"]),
        peer=int(peers[3]) if peers else None,
        sizes=tuple(tuple(int(n) for n in size) for size in entry.get("input_sizes") or ()),
        dtypes=tuple(str(dtype) for dtype in entry.get("input_dtypes") or ()),
        thread=str(entry.get("thread_name") or ""),
    )
