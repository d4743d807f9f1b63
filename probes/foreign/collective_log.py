"""Debug lines of NCCL and its kin (RCCL, MCCL): which transport every channel got, and what the library found when it started.

Line forms: sources of NCCL, init.cc and transport/{net,p2p,shm}.cc; a launcher's prefix (`[1,0]<stdout>:` of mpirun, `1: ` of srun) and
a time stamp may stand in front. Wanted: NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=INIT,NET,ENV.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from traces.errors import UsageError

LARGEST = 2 << 30  # bytes of one log
_LINE = re.compile(
    r"(?P<host>[A-Za-z0-9_.-]+):(?P<pid>\d+):\d+ \[(?P<device>\d+)\] (?:\S+\.cc:\d+ )?"
    r"(?P<library>NCCL|RCCL|MCCL) (?P<level>INFO|WARN|VERSION|ABORT|TRACE) (?P<text>.*)"
)
_CHANNEL = re.compile(
    r"Channel (?P<channel>\d+)(?:/\d+)? : (?P<src>\d+)\[\w+\] -> (?P<dst>\d+)\[\w+\] (?:\[(?P<direction>send|receive)\] )?via (?P<via>.+)"
)
_NET = re.compile(r"NET/(?P<network>.+?)/(?P<nic>\d+)(?:\(\d+\))?(?P<more>/.*)?$")
# (name of the fact, pattern with the value as its group). What differs between hosts has caused real hangs and slow links.
_FACTS = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("library", r"NCCL version (\S+)"),
        ("driver", r"cudaDriverVersion (\d+)"),
        ("plugin", r"NET/OFI Initializing (aws-ofi-nccl \S+)"),
        ("libfabric", r"Using Libfabric version (\S+)"),
        ("provider", r"Selected Provider is (\S+)"),
        ("network", r"Using network (\S.*)"),
        ("bootstrap", r"Bootstrap : Using ([^:\s]+):"),
        ("nics", r"NET/IB : Using (.*?)(?: ; OOB|$)"),
        ("completion-error", r"NET/IB ?: Got completion from peer \S+ with (?:error|status=\D*) ?\(?(\d+)"),
        ("local-gid", r"Got completion from peer .*localGid:? ?([0-9A-Fa-f:.]+)"),
        ("trouble", r"(Failed to initialize any NET plugin|NET/IB : No device found|Failed to open libibverbs\S*)"),
    )
)
_SETTING = re.compile(r"(NCCL_\w+|RCCL_\w+|MCCL_\w+) set by environment to (.*?)\.?$")


@dataclass(frozen=True, slots=True)
class Channel:
    """One direction of one channel, as one of its ends logged it. `nic` and `gdr` are null unless the transport is NET."""

    host: str
    channel: int
    src: int
    dst: int
    direction: str  # send | receive; empty inside a host
    transport: str  # NET | P2P | SHM | COLLNET | NVLS ...
    network: str  # IB, Socket, AWS Libfabric ...; what P2P or SHM went through otherwise
    nic: int | None
    gdr: bool | None


@dataclass(frozen=True, slots=True)
class Fact:
    """Something the library said of itself, its network or its settings on a host."""

    host: str
    name: str  # library, driver, network ... or env.NCCL_X
    value: str


def claims(path: Path, head: bytes) -> bool:
    return any(_LINE.search(line) for line in head.decode(errors="replace").splitlines()[:200])


def read(path: Path) -> Iterator[Channel | Fact]:
    """What a log says, in its order. Raises UsageError when it is too large or cannot be read."""
    try:
        if path.stat().st_size > LARGEST:
            raise UsageError(f"{path.name} has {path.stat().st_size} bytes; at most {LARGEST} are read", "keep the start of the log")
        with path.open(errors="replace") as file:
            for line in file:
                yield from _line(line)
    except OSError as error:
        raise UsageError(f"{path.name} cannot be read: {error.strerror}") from error


def _line(line: str) -> Iterator[Channel | Fact]:
    found = _LINE.search(line)
    if found is None:
        return
    host, text = found["host"], found["text"].strip()
    if channel := _CHANNEL.match(text):
        yield _channel(host, channel)
        return
    if setting := _SETTING.search(text):
        yield Fact(host, f"env.{setting[1]}", setting[2])
        return
    for name, pattern in _FACTS:
        if value := pattern.search(text):
            yield Fact(host, name, value[1].strip())


def _channel(host: str, found: re.Match[str]) -> Channel:
    via = found["via"].strip()
    net = _NET.match(via)
    transport, _, rest = via.partition("/")
    return Channel(
        host,
        int(found["channel"]),
        int(found["src"]),
        int(found["dst"]),
        found["direction"] or "",
        "NET" if net else transport,
        net["network"] if net else rest,
        int(net["nic"]) if net else None,
        "GDRDMA" in (net["more"] or "") if net else None,
    )
