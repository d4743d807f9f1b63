"""A rank of a small gloo job that drills make hang: `python -m probes.fabric.job FOLDER CONDUCT`, with torchrun's variables.

It enters collectives of two groups in every step, notes its steps and its environment in FOLDER, and when nothing moves any more dumps
its flight recorder there. CONDUCT is what this rank does in the middle: join (as it should), skip, reorder, sleep.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as recorder

from probes.fingerprint import fingerprint

STEPS, TURN = 40, 5
QUIET = 2.0  # seconds without a step: then nothing moves
PAUSE = 0.05  # seconds between steps: time for whoever stops a rank or pulls a cable


class Job:
    """The worker thread; `step` is what it has reached."""

    def __init__(self, folder: Path, conduct: str) -> None:
        self.folder, self.conduct, self.step = folder, conduct, 0
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.groups = [dist.new_group(list(range(self.world))) for _ in range(2)]

    def run(self) -> None:
        """Collectives whose messages have one size whatever the fault: another size would abort gloo instead of hanging it."""
        for step in range(STEPS):
            odd = self.conduct if step == TURN else "join"
            self._all_to_all()
            if odd == "sleep":
                time.sleep(600)
            if odd == "skip":
                self._all_to_all()
            dist.all_reduce(torch.ones(4))
            for group in reversed(self.groups) if odd == "reorder" else self.groups:
                dist.all_reduce(torch.ones(4), group=group)
            self.step = step + 1
            (self.folder / f"step_{self.rank}").write_text(str(self.step))
            time.sleep(PAUSE)

    def _all_to_all(self) -> None:
        dist.all_to_all_single(torch.empty(2 * self.world), torch.ones(2 * self.world))


def noted() -> bool:
    """The library has written down the end of everything: it does so a moment after the end."""
    text = recorder._dump_fr_trace_json()  # type: ignore[attr-defined]
    return all(entry["retired"] for entry in json.loads(text)["entries"])


def main(folder: Path, conduct: str) -> None:
    dist.init_process_group("gloo")
    job = Job(folder, conduct)
    (folder / f"facts_{job.rank}.json").write_text(json.dumps(fingerprint(), default=str))
    dist.barrier()
    worker = threading.Thread(target=job.run, name="work", daemon=True)
    worker.start()
    seen, since = 0, time.monotonic()
    while worker.is_alive() and (job.step != seen or time.monotonic() - since < QUIET):
        if job.step != seen:
            seen, since = job.step, time.monotonic()
        time.sleep(0.02)
    while not worker.is_alive() and not noted():
        time.sleep(0.01)
    part = folder / f"part_{job.rank}"
    part.write_bytes(recorder._dump_fr_trace())  # type: ignore[attr-defined]
    part.rename(folder / f"gloo_trace_rank_{job.rank}")
    time.sleep(600)  # until it is killed: a process that ends would wake its peers


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
