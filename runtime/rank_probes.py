"""What watches a rank from within: samplers, the fingerprint, phases, and a note of allocations that failed."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType

import torch

from probes.fingerprint import fingerprint
from probes.gc_pauses import GcPauses
from probes.host import HostSampler
from probes.memory import DeviceMemory, MemorySampler
from probes.recorder import Recording
from runtime import messages as m
from runtime.link import Link
from traces.errors import WorkbenchError
from traces.run import Run


def start_probes(stack: ExitStack, recorder: Recording, run: Run, rank: int, memory: MemorySampler) -> None:
    for sampler in (memory, HostSampler(recorder, rank), GcPauses(recorder, rank)):
        sampler.start()
        stack.callback(sampler.stop)

    def take_fingerprint() -> None:
        facts = json.loads(json.dumps(fingerprint(torch_info=True)))  # torch's version is a str of its own kind
        run.add_fingerprint(f"rank{rank}", facts)

    thread = threading.Thread(target=take_fingerprint, name="fingerprint", daemon=True)
    thread.start()
    stack.callback(thread.join, 5.0)


class OomNote:
    """Records an allocation that failed, on the way out."""

    def __init__(self, recorder: Recording, rank: int, memory: MemorySampler) -> None:
        self._recorder, self._rank, self._memory = recorder, rank, memory

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        failed = isinstance(error, MemoryError | torch.OutOfMemoryError)
        # torch raises plain RuntimeErrors: "DefaultCPUAllocator: can't allocate memory", "unable to allocate shared memory(shm) for file"
        if failed or (isinstance(error, RuntimeError | OSError) and re.search("allocate (shared )?memory", str(error))):
            self._memory.sample()
            self._recorder.event("oom", rank=self._rank, phase=self._memory.current_phase, error=str(error).splitlines()[0])
        elif isinstance(error, WorkbenchError):
            self._recorder.event("refused", rank=self._rank, phase=self._memory.current_phase, error=error.message)


def phase_announcer(memory: MemorySampler, link: Link, rank: int, began: float) -> Callable[[str], None]:
    """Enters a phase: for the memory samples, and for the person who waits."""

    def enter(phase: str) -> None:
        memory.phase(phase)
        link.send(m.Progress(rank, phase, seconds=time.time() - began))

    return enter


def device_memory_of(device: torch.device) -> Callable[[], DeviceMemory | None] | None:
    if device.type != "cuda":
        return None

    def read() -> DeviceMemory:
        free, _ = torch.cuda.mem_get_info(device)
        return DeviceMemory(torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device), free)

    return read
