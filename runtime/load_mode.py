"""How a checkpoint is read: settings of the reads, and which of them suit the file system that holds it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from probes.procfile import read_text
from runtime.shard_file import Pread

MODES = ("auto", "direct", "buffered", "network")
NETWORK = ("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "beegfs", "9p", "virtiofs", "afs", "glusterfs", "wekafs")
"""File system types whose files are on another host. FUSE is added by prefix: most stores of models that are mounted so are remote."""


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """How to read. `pread` is os.preadv unless given (a seam for network readers and for tests of failing disks)."""

    threads: int = 4
    chunk: int = 8 << 20  # bytes of one read; also what a thread stages
    retries: int = 3
    direct_from: int | None = 64 << 20  # shards of which fewer bytes are needed go through the page cache: ranks of a host share it
    pread: Pread | None = None


LOCAL = LoadSettings()
BY_MODE = {
    "direct": replace(LOCAL, direct_from=0),
    "buffered": replace(LOCAL, direct_from=None),
    # Buffered, because ranks of a host share what has crossed the wire; fewer and larger requests in file order, which servers read
    # ahead for; more repeats, because a server that fails over answers again after seconds (the waits double: 3 s in all).
    "network": replace(LOCAL, threads=2, chunk=32 << 20, retries=6, direct_from=None),
}


def settings_for(mode: str, folder: Path) -> LoadSettings:
    """Of a mode in MODES; "auto" asks what file system the folder is on."""
    if mode != "auto":
        return BY_MODE[mode]
    return BY_MODE["network"] if is_network(file_system(folder)) else LOCAL


def is_network(kind: str | None) -> bool:
    return kind is not None and (kind in NETWORK or kind == "fuse" or kind.startswith("fuse."))


def file_system(path: Path, mountinfo: str | None = None) -> str | None:
    """Type of the file system that holds `path`, by its device number in /proc/self/mountinfo (proc_pid_mountinfo(5)); None: not listed."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in (mountinfo if mountinfo is not None else read_text("/proc/self/mountinfo") or "").splitlines():
        head, separator, tail = line.partition(" - ")
        if separator and head.split()[2] == wanted:
            return tail.split()[0]
    return None
