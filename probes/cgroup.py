"""Limits and accounts of the control group a process lives in, for cgroup v1, v2 and both at once.

The folder of a controller is found through /proc/PID/cgroup and /proc/self/mountinfo (cgroups(7)): inside a container the mount's
root is the container's own group, so the path in /proc/PID/cgroup must be taken relative to it. A limit may stand in any ancestor;
the smallest holds. No limit is None: v1 writes 2^63 rounded down to a page, v2 writes "max".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from probes.procfile import ProcFile, fields, read_int, read_text

NO_LIMIT = 1 << 60  # anything above an exbibyte is v1's way to write "no limit"


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One controller's folder. `top` is the mount point, the last folder in which a limit of ours can stand."""

    version: int
    path: Path
    top: Path

    def upwards(self) -> Iterator[Path]:
        """This folder and its ancestors up to the mount point."""
        yield self.path
        if self.path != self.top:
            for parent in self.path.parents:
                yield parent
                if parent == self.top:
                    return


@dataclass(frozen=True, slots=True)
class CgroupMemory:
    """Bytes; `file` counts the page cache including shared memory."""

    anon: int | None
    file: int | None
    limit: int | None


@dataclass(frozen=True, slots=True)
class _Mount:
    version: int
    root: str
    point: Path
    controllers: frozenset[str]


def _mounts(proc: Path) -> Iterator[_Mount]:
    for line in (read_text(proc / "self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        kind, *rest = after.split()
        if kind in ("cgroup", "cgroup2"):
            _, _, _, root, point, *_ = before.split()
            yield _Mount(1 if kind == "cgroup" else 2, root, Path(point), frozenset(rest[-1].split(",")))


def _folder(mount: _Mount, group: str) -> Path:
    """Folder of `group` below a mount; the mount point itself where the group is outside what this mount shows."""
    root = mount.root.rstrip("/")
    if group.startswith("/..") or not (group == root or group.startswith(f"{root}/")):
        return mount.point
    folder = mount.point / group[len(root) :].lstrip("/")
    return folder if folder.is_dir() else mount.point


def find(controller: str, pid: int | str = "self", proc: Path = Path("/proc")) -> Cgroup | None:
    """Folder of a controller ("memory", "cpu") for a process, or None where there is none."""
    groups: dict[str, str] = {}
    for line in (read_text(proc / str(pid) / "cgroup") or "").splitlines():
        _, names, group = line.split(":", 2)
        groups.update(dict.fromkeys(names.split(","), group))
    mounts = list(_mounts(proc))
    for mount in mounts:
        if mount.version == 1 and controller in mount.controllers and controller in groups:
            return Cgroup(1, _folder(mount, groups[controller]), mount.point)
    for mount in mounts:
        if mount.version == 2 and "" in groups:
            folder = _folder(mount, groups[""])
            if controller in (read_text(folder / "cgroup.controllers") or "").split():
                return Cgroup(2, folder, mount.point)
    return None


class MemoryAccount:
    """Reads one group's memory numbers again and again: the account of its subtree, and the smallest limit above it.

    v1: `total_rss`, `total_cache` of memory.stat and memory.limit_in_bytes; v2: `anon`, `file` and memory.max.
    """

    def __init__(self, group: Cgroup | None) -> None:
        v1 = group is not None and group.version == 1
        self._keys = ("total_rss ", "total_cache ") if v1 else ("anon ", "file ")
        self._stat = ProcFile(group.path / "memory.stat") if group else None
        name = "memory.limit_in_bytes" if v1 else "memory.max"
        self._limits = [ProcFile(folder / name) for folder in group.upwards() if (folder / name).exists()] if group else []

    def read(self) -> CgroupMemory:
        lines = (self._stat.read() or "").splitlines() if self._stat else []
        anon, file = (next((int(line[len(key) :]) for line in lines if line.startswith(key)), None) for key in self._keys)
        limits = [limit for text in self._limits if (limit := _limit(text.read())) is not None]
        return CgroupMemory(anon, file, min(limits, default=None))


def _limit(text: str | None) -> int | None:
    if text is None or not text.strip().isdigit():  # "max"
        return None
    value = int(text)
    return value if value < NO_LIMIT else None


def memory(group: Cgroup | None) -> CgroupMemory:
    """The numbers now."""
    return MemoryAccount(group).read()


def cpu_quota(group: Cgroup | None) -> float | None:
    """CPUs the group may use (2.5 is two and a half), or None where there is no quota."""
    if group is None:
        return None
    quotas: list[float] = []
    for folder in group.upwards():
        if group.version == 1:
            quota, period = read_int(folder / "cpu.cfs_quota_us"), read_int(folder / "cpu.cfs_period_us")
        else:
            words = (read_text(folder / "cpu.max") or "max 0").split()
            quota, period = (None if words[0] == "max" else int(words[0])), int(words[1])
        if quota is not None and quota > 0 and period:
            quotas.append(quota / period)
    return min(quotas, default=None)


def throttled(stat_text: str | None) -> int | None:
    """Nanoseconds of throttling in a cpu.stat: v1 `throttled_time` (ns), v2 `throttled_usec`."""
    stat = fields(stat_text)
    microseconds = _number(stat, "throttled_usec")
    return _number(stat, "throttled_time") if microseconds is None else microseconds * 1000


def _number(stat: dict[str, str], key: str) -> int | None:
    return int(stat[key]) if key in stat else None
