"""A rank of a really hung gloo job: enters collectives, goes wrong as told, and dumps its flight recorder.

    python hung_ranks.py RANK WORLD PORT FOLDER FAULT

FAULT: skip (rank 1 leaves one all_reduce out and sleeps), shape (rank 1 brings another shape), stall (rank 2 stays in host code),
none (all collectives complete).
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

HANG_SECONDS = 3.0


def work(rank: int, fault: str) -> None:
    for step in range(6):
        dist.all_to_all_single(torch.empty(6), torch.ones(6))
        if step == 4 and fault == "stall" and rank == 2:
            time.sleep(60)
        if step == 4 and fault == "skip" and rank == 1:
            dist.all_to_all_single(torch.empty(6), torch.ones(6))
        size = 8 if fault == "shape" and step == 4 and rank == 1 else 4
        dist.all_reduce(torch.ones(size))


def noted() -> bool:
    """The library has written down the end of everything: it does so a moment after the end."""
    return all(entry["retired"] for entry in json.loads(torch._C._distributed_c10d._dump_fr_trace_json())["entries"])


def main() -> None:
    rank, world, port, folder, fault = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]), sys.argv[5]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": str(rank), "WORLD_SIZE": str(world)}
    dist.init_process_group("gloo")
    dist.barrier()
    worker = threading.Thread(target=work, args=(rank, fault), daemon=True)
    worker.start()
    worker.join(HANG_SECONDS)
    while fault == "none" and not noted():
        time.sleep(0.01)
    dump = torch._C._distributed_c10d._dump_fr_trace()
    (folder / f"gloo_trace_rank_{rank}").write_bytes(dump)
    (folder / f"done_{rank}").touch()
    while len(list(folder.glob("done_*"))) < world:
        time.sleep(0.05)
    os._exit(0)


if __name__ == "__main__":
    main()
