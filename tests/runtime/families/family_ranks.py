"""Ranks of the family tests: `family_ranks.py FOLDER WORLD RANK` computes every job of jobs.pt and writes outN.pt."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rank_program import Lists, Rank, random_placement

from probes.checkpoint import Checkpoint
from runtime.arch import read_arch
from runtime.mesh import Mesh
from runtime.model import MoeModel


def compute(path: str | Path, prompts: list[list[int]], world: int, rank: int) -> dict[str, Any]:
    """Logits of this rank's prompts (every world-th): ragged batch, alone, in chunks, decoded, and after placements were switched."""
    checkpoint = Checkpoint.open(path)
    model = MoeModel.load(checkpoint, read_arch(checkpoint.config), Mesh.current())
    mine = [{"tokens": tokens, "positions": None, "patches": None} for tokens in prompts[rank::world]]
    program = Rank(model, mine, Lists())
    longest = max(len(tokens) for tokens in prompts)
    out: dict[str, Any] = {"whole": program.whole(), "alone": program.alone(-(-len(prompts) // world))}
    out["chunked"] = {size: program.chunked(size, -(-longest // size)) for size in (7, 16)}
    out["greedy"], out["cached"] = program.decoded(4)
    model.stage_placement(random_placement(model.arch, world, 1, world, seed=1))
    if world > 1:
        dist.barrier()
    model.switch_placement(program.step + 1)
    program.counter.rebind(model.placement)
    out["switched"] = program.whole()
    return out


def main(folder: Path, world: int, rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    jobs = torch.load(folder / "jobs.pt", weights_only=False)
    torch.save({name: compute(path, prompts, world, rank) for name, (path, prompts) in jobs.items()}, folder / f"out{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
