"""A rank that drills start and that goes no further: `python -m probes.fabric.starting FOLDER WHAT`, with torchrun's variables.

It notes its environment in FOLDER, then does WHAT: meet (the others, as torch.distributed does it), share (a tensor with other processes,
by torch) or ring (a buffer between processes, as message queues of engines make it). The last two ask for SEGMENT bytes of shared memory.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from multiprocessing import shared_memory
from pathlib import Path

import torch
import torch.distributed as dist

from probes.fingerprint import fingerprint

SEGMENT = 16 << 20
PATIENCE = timedelta(seconds=3)


def meet() -> None:
    dist.init_process_group("gloo", timeout=PATIENCE)
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


def share() -> None:
    torch.ones(SEGMENT, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]


def ring() -> None:
    """The segment is larger than the file system: the kernel notices when it is written to, and kills with SIGBUS."""
    segment = shared_memory.SharedMemory(create=True, size=SEGMENT)
    try:
        assert segment.buf is not None
        segment.buf[:] = bytes(SEGMENT)
    finally:
        segment.close()
        segment.unlink()


WHAT = {"meet": meet, "share": share, "ring": ring}


def main(folder: Path, what: str) -> None:
    (folder / f"facts_{os.environ['RANK']}.json").write_text(json.dumps(fingerprint(), default=str))
    WHAT[what]()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
