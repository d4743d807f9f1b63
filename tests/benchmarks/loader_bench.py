"""Loading against a direct sequential read and against transformers: one 2 GB sharded checkpoint, caches dropped, interleaved.

    python tests/benchmarks/loader_bench.py [--gigabytes 2] [--rounds 3] [--dtype bfloat16] [--folder FOLDER] [--no-transformers]

Every measurement is a process of its own that states its seconds (of the load alone, without imports), its highest anonymous memory above
what it had before, what it keeps, and the CPU seconds it took: where cores are shared, these say what the seconds cannot. A round is dd
with O_DIRECT, our loader on one rank, dd again, rank 0 of four, and transformers; the fastest of the rounds counts, because a shared disk
and shared cores only add. Targets: DESIGN.md section 9.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from playbooks.drills.checkpoint import config_of, write_checkpoint
from playbooks.drills.start import drop_pages
from probes.memory import resident
from probes.procfile import read_text

BLOCK = 8 << 20
POLL = 0.005


class AnonPeak:
    """Highest anonymous memory of this process above the one at the start."""

    def __enter__(self) -> AnonPeak:
        self.base = self.peak = _anon()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(POLL):
            self.peak = max(self.peak, _anon())

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self.peak = max(self.peak, _anon())

    @property
    def rise(self) -> int:
        return self.peak - self.base


def _anon() -> int:
    now = resident(read_text("/proc/self/status"))
    return 0 if now is None else now.anon


def ours(folder: Path, ranks: int, dtype: str) -> dict[str, Any]:
    import torch

    from probes.checkpoint import Checkpoint
    from runtime.arch import read_arch
    from runtime.loader import Loader
    from runtime.placement import Placement
    from runtime.plan import plan_rank

    torch.set_num_threads(1)
    checkpoint = Checkpoint.open(folder)
    arch = read_arch(checkpoint.config)
    plan = plan_rank(checkpoint, arch, Placement.contiguous(len(arch.moe_layers), arch.moe.experts, ranks), 0)
    loader = Loader(folder, getattr(torch, dtype))
    with AnonPeak() as memory:
        began, worked = time.perf_counter(), time.process_time()
        targets = loader.load(plan)
        seconds, cpu = time.perf_counter() - began, time.process_time() - worked
    kept = sum(target.nbytes for target in targets.values())
    return {"seconds": seconds, "cpu": cpu, "read": plan.bytes_read, "kept": kept, "peak": memory.rise}


def theirs(folder: Path, dtype: str) -> dict[str, Any]:
    import torch
    import transformers

    with AnonPeak() as memory:
        began, worked = time.perf_counter(), time.process_time()
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        seconds, cpu = time.perf_counter() - began, time.process_time() - worked
    kept = sum(parameter.nbytes for parameter in model.parameters())
    return {"seconds": seconds, "cpu": cpu, "read": kept, "kept": kept, "peak": memory.rise}


def direct(folder: Path) -> dict[str, Any]:
    """dd of every shard with O_DIRECT, one after the other."""
    files = sorted(folder.glob("*.safetensors"))
    size = sum(path.stat().st_size for path in files)
    began = time.perf_counter()
    for path in files:
        subprocess.run(["dd", f"if={path}", "of=/dev/null", f"bs={BLOCK}", "iflag=direct", "status=none"], check=True)
    return {"seconds": time.perf_counter() - began, "cpu": 0.0, "read": size, "kept": 0, "peak": 0}


def measured(folder: Path, what: str, dtype: str) -> dict[str, Any]:
    """One measurement with cold files."""
    for path in folder.glob("*.safetensors"):
        drop_pages(path)
    if what == "dd":
        return direct(folder)
    command = [sys.executable, __file__, "--one", what, "--folder", str(folder), "--dtype", dtype]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--no-transformers", action="store_true")
    parser.add_argument("--one", choices=["ours", "quarter", "transformers"], help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        ranks = 4 if asked.one == "quarter" else 1
        found = theirs(asked.folder, asked.dtype) if asked.one == "transformers" else ours(asked.folder, ranks, asked.dtype)
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory(prefix="wb-bench-", dir=asked.folder) as scratch:
        folder = write_checkpoint(Path(scratch) / "model", config_of(int(asked.gigabytes * 1e9), 1024, 8, 32), 0, 400 << 20)
        report(folder, asked)


def report(folder: Path, asked: argparse.Namespace) -> None:
    kinds = ["dd", "ours", "dd", "quarter"] + ([] if asked.no_transformers else ["transformers"])
    best: dict[str, dict[str, Any]] = {}
    for number in range(asked.rounds):
        for what in kinds:
            found = measured(folder, what, asked.dtype)
            speed = found["read"] / found["seconds"] / 1e6
            print(f"round {number} {what}: {found['seconds']:.2f} s, {speed:.0f} MB/s, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
            if what not in best or found["seconds"] < best[what]["seconds"]:
                best[what] = found
    rate = {what: found["read"] / found["seconds"] for what, found in best.items()}
    stored = best["dd"]["read"]
    print(f"checkpoint {stored / 1e9:.2f} GB, computed in {asked.dtype}")
    for what, found in best.items():
        cpu = found["cpu"] / found["read"] * 1e9
        sizes = f"{cpu:5.2f} CPU s/GB  kept {found['kept'] / 1e6:7.0f} MB  peak {found['peak'] / 1e6:7.0f} MB"
        print(f"{what:<13} {found['seconds']:6.2f} s {rate[what] / 1e6:7.0f} MB/s  {sizes}")
    print(f"ours / direct sequential read      {rate['ours'] / rate['dd']:.2f}   (target >= 0.9)")
    print(f"peak anonymous - kept              {(best['ours']['peak'] - best['ours']['kept']) / (1 << 20):.0f} MiB   (target <= 256)")
    print(f"EP4 rank reads of the checkpoint   {best['quarter']['read'] / stored:.2f}   (target <= 0.30)")
    if "transformers" in best:
        print(f"ours / transformers                {best['transformers']['seconds'] / best['ours']['seconds']:.1f}x   (target >= 4)")


if __name__ == "__main__":
    main()
