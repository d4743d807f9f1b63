"""Pressure of this host and of one process on it: who waits for a CPU, for memory, for a disk, or for its own quota."""

from __future__ import annotations

import math
import os
import resource
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from probes import cgroup
from probes.procfile import ProcFile, fields, kib
from probes.sampler import Sampler
from probes.sink import Sink
from traces import schema

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class CpuTicks:
    """Jiffies of all CPUs since boot: the first line of /proc/stat (proc(5)). `steal` went to other guests of the hypervisor."""

    total: int
    steal: int


def pressure(text: str | None) -> float | None:
    """Share of time (0..1, 10 s average) in which some task waited: `some avg10=` of /proc/pressure/* (kernel doc accounting/psi)."""
    for line in (text or "").splitlines():
        if line.startswith("some "):
            return float(line.split("avg10=")[1].split()[0]) / 100
    return None


def cpu_ticks(stat_text: str | None) -> CpuTicks | None:
    """user nice system idle iowait irq softirq steal; guest time (the rest) is already within user."""
    if not stat_text or not stat_text.startswith("cpu "):
        return None
    ticks = [int(word) for word in stat_text.splitlines()[0].split()[1:9]]
    return CpuTicks(sum(ticks), ticks[7]) if len(ticks) == 8 else None


def steal_share(before: CpuTicks | None, after: CpuTicks | None) -> float | None:
    """Share of CPU time stolen between two readings, 0..1; None without two different readings."""
    if before is None or after is None or after.total <= before.total:
        return None
    return max(0, after.steal - before.steal) / (after.total - before.total)


def run_queue_delay(schedstat_text: str | None) -> int | None:
    """Nanoseconds the main thread waited for a CPU: second field of /proc/PID/schedstat. All zeros: the kernel keeps no account."""
    words = (schedstat_text or "").split()
    return int(words[1]) if len(words) == 3 and any(word != "0" for word in words) else None


def usable_cpus(quota: float | None) -> int:
    """CPUs this process may run on: its affinity, or its control group's quota rounded up where that is smaller."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


class HostSampler(Sampler):
    """Writes one `host` row every `interval` seconds about this host and one process: this one, or `pid`.

    Cumulative columns (throttled, run_queue_delay, involuntary, cpu_time) are totals so far; readers take differences.
    """

    def __init__(self, recorder: Sink, rank: int | None = None, interval: float = 1.0, pid: int | None = None) -> None:
        super().__init__("host", interval)
        self._recorder = recorder
        self._rank = rank
        self._pid = pid
        self._host = socket.gethostname()
        self._pressure = {kind: ProcFile(f"/proc/pressure/{kind}") for kind in ("cpu", "memory", "io")}
        self._stat = ProcFile("/proc/stat")
        self._meminfo = ProcFile("/proc/meminfo")
        self._schedstat = ProcFile(f"/proc/{pid or 'self'}/schedstat")
        group = cgroup.find("cpu", pid or "self")
        self._cpu_stat = ProcFile(group.path / "cpu.stat") if group else None
        self._cpus = usable_cpus(cgroup.cpu_quota(group))
        self._ticks: CpuTicks | None = None

    def sample(self) -> None:
        before, self._ticks = self._ticks, cpu_ticks(self._stat.read())
        self._recorder.row(
            schema.HOST,
            ts=time.time_ns(),
            host=self._host,
            rank=self._rank,
            load1=os.getloadavg()[0],
            cpus=self._cpus,
            psi_cpu=pressure(self._pressure["cpu"].read()),
            psi_memory=pressure(self._pressure["memory"].read()),
            psi_io=pressure(self._pressure["io"].read()),
            steal=steal_share(before, self._ticks),
            throttled=cgroup.throttled(self._cpu_stat.read()) if self._cpu_stat else None,
            run_queue_delay=run_queue_delay(self._schedstat.read()),
            involuntary=self._involuntary(),
            cpu_time=self._cpu_time(),
            available=kib(fields(self._meminfo.read()).get("MemAvailable")),
        )

    def _involuntary(self) -> int | None:
        """Of all threads: getrusage(2) for this process, the sum over live threads for another one."""
        if self._pid is None:
            return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        counts = [fields(_text(path)).get("nonvoluntary_ctxt_switches") for path in Path(f"/proc/{self._pid}/task").glob("*/status")]
        known = [int(count) for count in counts if count is not None]
        return sum(known) if known else None

    def _cpu_time(self) -> int | None:
        if self._pid is None:
            return time.process_time_ns()
        return process_cpu_time(_text(Path(f"/proc/{self._pid}/stat")))


def _text(path: Path) -> str | None:
    file = ProcFile(path)
    text = file.read()
    file.close()
    return text


def process_cpu_time(stat_text: str | None) -> int | None:
    """utime + stime of /proc/PID/stat (fields 14 and 15) in ns, in steps of one clock tick; the name in brackets may hold spaces."""
    if not stat_text:
        return None
    words = stat_text.rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) * (1_000_000_000 // TICKS_PER_SECOND)
