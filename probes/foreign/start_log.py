"""What the text of a start says when it does not get to its first collective: shared memory that is full, ranks that never meet.

Texts: torch 2.13 (c10d TCPStore, elastic, its allocator of shared memory), gloo's context.cc, NCCL's shm.h and shmutils.cc (NVIDIA/nccl
issues 290 and 342), the kernel's words for SIGBUS, and our own launcher of several hosts. Warnings of attempts that are repeated stand in
the logs of good starts too: they explain a failure and are none (`fatal`).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from traces import schema
from traces.errors import UsageError
from traces.table import Table

SIGN = "start_sign"
"""Kind of event; its attributes are those of Sign."""
LARGEST = 64 << 20  # bytes read of one log: a start is at its beginning
MOST_SIGNS = 200  # of one file: every rank repeats what another has said


class Sign(msgspec.Struct, frozen=True):
    """One line. Numbers are null where the line does not say them."""

    kind: str  # shm | bus-error | joined | connect | why | name | port-taken | absent | outside | nodes | rendezvous | waiting
    text: str
    source: str  # name of the file
    fatal: bool
    rank: int | None = None
    address: str = ""  # host:port
    ranks: int | None = None  # that came; the rank that is waited for or is outside
    world: int | None = None  # that were expected
    size: int | None = None  # bytes that were asked for
    why: str = ""


_ERROR = re.compile(r"\b[A-Z]\w*(?:Error|Exception)\b")
_RANK = re.compile(r"\[rank(\d+)\]|\brank:? (\d+),")
_BLOCK = re.compile(r"^\s*rank\s*: (\d+) \(local_rank")  # a line of torchrun's summary; the exit code follows
_FULL = r"No space left on device"
_COUNT = r"world_size=(?P<world>\d+), (?:worker_count|num_workers_joined)=(?P<ranks>\d+)"
# (kind, whether a line that is no exception counts as a failure by itself, pattern)
_FORMS = tuple(
    (kind, always, re.compile(pattern))
    for kind, pattern, always in (
        ("shm", rf"unable to (?:allocate shared memory\(shm\) for|write to) file </torch_[^>]*>.*{_FULL}", True),
        ("shm", rf"NCCL WARN Call to posix_fallocate failed ?: {_FULL}", True),
        ("shm", rf"failed to extend /dev/shm/\S+ to (?P<size>\d+) bytes(?:, error: {_FULL}.*)?$", True),
        ("shm", rf"Error while creating shared memory segment \S+ \(size (?P<size>\d+)\)(?:, error: {_FULL}.*)?$", True),
        ("shm", rf"{_FULL}.*(?:/dev/shm|/psm_|/torch_|/sem\.)|/dev/shm/.*{_FULL}", True),
        # torch adds to these that shared memory may be short: it guesses.
        ("bus-error", r"\(SIGBUS\)|killed by signal: Bus error|(?:^|\d |: )Bus error\b|signal 7 \(Bus error|Unexpected bus error", True),
        ("joined", r"waiting for clients\. (?P<ranks>\d+)/(?P<world>\d+) clients joined", False),
        ("joined", rf"Timed out initializing process group .*{_COUNT}", True),
        ("waiting", rf"Waiting in store based barrier .*{_COUNT}", False),
        ("connect", r"client socket has timed out after \d+m?s while trying to connect to \((?P<host>[^,]+), (?P<port>\d+)\)", False),
        ("connect", r"the head node at (?P<address>\S+:\d+) does not answer(?:: (?P<why>.*))?", True),
        ("why", r"failed to connect to \[?(?P<host>[^\]\s]+)\]?:(?P<port>\d+) \(errno: \d+ - (?P<why>[^)]*)\)", False),
        ("name", r"addresses of \((?P<host>[^,]+), (?P<port>\d+)\) cannot be retrieved \(gai error: -?\d+ - (?P<why>[^)]*)\)", False),
        ("port-taken", r"server socket has failed to listen .*port: (?P<port>\d+).*EADDRINUSE", False),
        ("absent", r"wait timeout after \d+ms, keys: /default_pg/\d+//\w+//\d+/(?P<ranks>\d+)\b", False),
        ("nodes", r"(?P<why>node \d+ expects \d+ nodes, the head \d+|there is no node \d+ among \d+|node \d+ is here already.*)", True),
        ("outside", r"rank < size\. (?P<ranks>\d+) vs (?P<world>\d+)", False),
        ("rendezvous", r"RendezvousTimeoutError|RendezvousClosedError|connection to the C10d store has failed", False),
    )
)  # fmt: skip


def claims(path: Path, head: bytes) -> bool:
    """A text in whose beginning a start fails or waits. What fails later in a long log is read with `diagnose hang --log`."""
    return any(True for _ in signs(head.decode(errors="replace").splitlines(), path.name))


def signs(lines: Iterable[str], source: str) -> Iterator[Sign]:
    """In the order of the lines, at most MOST_SIGNS; the same text of the same rank once."""
    seen: set[tuple[object, ...]] = set()
    block: int | None = None
    for line in lines:
        if found := _BLOCK.match(line):
            block = int(found[1])
        one = next((_sign(kind, always, hit, line, source, block) for kind, always, form in _FORMS if (hit := form.search(line))), None)
        if one is None:
            continue
        key = (one.kind, one.fatal, one.rank, one.address, one.ranks)
        if key not in seen:
            seen.add(key)
            yield one
        if len(seen) >= MOST_SIGNS:
            return


def _sign(kind: str, always: bool, found: re.Match[str], line: str, source: str, block: int | None) -> Sign:
    part = {name: value for name, value in found.groupdict().items() if value is not None}
    spoke = _RANK.search(line)
    address = part.get("address") or ":".join(part[name] for name in ("host", "port") if name in part)
    numbers = {name: int(part[name]) if name in part else None for name in ("ranks", "world", "size")}
    rank = int(spoke[1] or spoke[2]) if spoke else block if kind == "bus-error" else None
    return Sign(kind, line.strip()[:300], source, always or bool(_ERROR.search(line)), rank, address, why=part.get("why", ""), **numbers)


def read(path: Path) -> list[Sign]:
    """The signs of a file. Raises UsageError when it cannot be read."""
    try:
        with path.open(errors="replace") as file:
            return list(signs(file.readlines(LARGEST), path.name))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def events(found: Iterable[Sign]) -> list[tuple[Any, ...]]:
    """Rows of `event`. The time is that of reading: lines of a start are dated in too many ways."""
    now = time.time_ns()
    return [(now, 0, "log", one.rank, SIGN, json.dumps(msgspec.to_builtins(one))) for one in found]


def rows(paths: Sequence[Path]) -> tuple[dict[Table, list[tuple[Any, ...]]], dict[Path, int], dict[Path, str]]:
    """Rows of `event`, and how many each file gave."""
    found = {path: read(path) for path in paths}
    return {schema.EVENT: events(one for some in found.values() for one in some)}, {path: len(some) for path, some in found.items()}, {}
