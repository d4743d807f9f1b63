"""Memory of this process over its phases: resident bytes by kind, the control group's account and limit, the device's numbers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from probes import cgroup
from probes.procfile import ProcFile, fields, kib
from probes.sampler import Sampler
from probes.sink import Sink
from traces import schema


@dataclass(frozen=True, slots=True)
class Resident:
    """Resident bytes of a process (proc(5), /proc/PID/status). `hwm` also counts reclaimable pages of mapped files."""

    anon: int
    file: int
    shmem: int
    hwm: int


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes on the accelerator, as its framework counts them."""

    allocated: int | None = None
    reserved: int | None = None
    free: int | None = None


def resident(status_text: str | None) -> Resident | None:
    """From the text of /proc/PID/status; None where the kernel does not tell (not Linux, a kernel thread, or a dead process)."""
    status = fields(status_text)
    anon, file, shmem, hwm = (kib(status.get(key)) for key in ("RssAnon", "RssFile", "RssShmem", "VmHWM"))
    if anon is None or file is None or shmem is None or hwm is None:
        return None
    return Resident(anon, file, shmem, hwm)


FAST = 0.05  # seconds between samples while a model loads: a peak lasts no longer than the tensor that makes it
LOADING = frozenset({"start", "plan", "load", "kv_cache", "warmup"})


class MemorySampler(Sampler):
    """Writes one `memory` row every `interval` seconds, every `FAST` seconds while a rank loads, and at both ends of every phase.

    `device` is asked for the accelerator's numbers at each sample, so that nothing here imports a framework. About 100 us of CPU a sample.
    """

    def __init__(
        self,
        recorder: Sink,
        rank: int | None = None,
        interval: float = 1.0,
        device: Callable[[], DeviceMemory | None] | None = None,
        phase: str = "start",
    ) -> None:
        super().__init__("memory", interval)
        self._steady = interval
        self._recorder = recorder
        self._rank = rank
        self._device = device
        self._status = ProcFile("/proc/self/status")
        self._group = cgroup.MemoryAccount(cgroup.find("memory"))
        self._lock = threading.Lock()
        self._phase = phase
        self._since = time.time_ns()
        self._pace(phase)

    def _pace(self, phase: str) -> None:
        fast = self._rank is not None and phase in LOADING
        self.interval = min(FAST, self._steady) if fast else self._steady

    @property
    def current_phase(self) -> str:
        return self._phase

    def phase(self, name: str) -> None:
        """Enter a phase: one sample closes the phase before it, one opens this, and an event tells how long the last one took."""
        self.sample()
        now = time.time_ns()
        with self._lock:
            ended, since = self._phase, self._since
            self._phase, self._since = name, now
        self._pace(name)
        attrs = {"phase": ended, "next": name}
        self._recorder.row(schema.EVENT, ts=since, dur=now - since, rank=self._rank, kind="phase", attrs=attrs)
        self.sample()

    def sample(self) -> None:
        process = resident(self._status.read())
        if process is None:
            return
        group = self._group.read()
        device = (self._device() if self._device else None) or DeviceMemory()
        self._recorder.row(
            schema.MEMORY,
            ts=time.time_ns(),
            rank=self._rank,
            phase=self._phase,
            rss_anon=process.anon,
            rss_file=process.file,
            rss_shmem=process.shmem,
            hwm=process.hwm,
            cgroup_anon=group.anon,
            cgroup_file=group.file,
            cgroup_limit=group.limit,
            device_allocated=device.allocated,
            device_reserved=device.reserved,
            device_free=device.free,
        )
