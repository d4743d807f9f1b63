"""Our forward pass over several ranks of this host that hold the same tokens (lanes), as the first of them saw it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from probes.fabric.launch import free_port
from runtime.taps.capture import Capture
from traces.errors import UsageError

MOST = 8
WAIT = 300.0  # seconds that ranks wait for one another
# What a lane holds only in part, until it is reduced: no tap of the whole.
PARTIAL = ("attention", "key_before_rope", "key", "value", "latent")


def record_on_lanes(folder: Path, ids: list[int], ranks: int, dtype: torch.dtype) -> Capture:
    """Taps of the stream, the router and the mixture, on `ranks` lanes. UsageError when a rank fails."""
    if not 1 < ranks <= MOST:
        raise UsageError(f"{ranks} ranks", f"compare one rank with 2 to {MOST}")
    from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, spawn

    with tempfile.TemporaryDirectory(prefix="wb-lanes-") as scratch:
        target = Path(scratch) / "taps.safetensors"
        arguments = (ranks, free_port(), str(folder), ids, dtype, str(target))
        try:
            spawn(_lane, args=arguments, nprocs=ranks, join=True)  # type: ignore[no-untyped-call]
        except (ProcessRaisedException, ProcessExitedException) as error:
            last = str(error).strip().splitlines()[-1]
            raise UsageError(
                f"the forward pass on {ranks} ranks failed: {last}", "look whether the model's heads divide by the ranks"
            ) from error
        return Capture.load(target)


def _lane(rank: int, ranks: int, port: int, folder: str, ids: list[int], dtype: torch.dtype, target: str) -> None:
    from datetime import timedelta

    import torch.distributed as dist

    from probes.checkpoint import Checkpoint
    from runtime.arch import read_arch
    from runtime.layout import Layout
    from runtime.mesh import Mesh
    from runtime.model import MoeModel
    from runtime.taps.tapped_model import TappedModel, record

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks, timeout=timedelta(seconds=WAIT))
    try:
        checkpoint = Checkpoint.open(folder)
        model = TappedModel.over(MoeModel.load(checkpoint, read_arch(checkpoint.config), Mesh.join(Layout(tp=ranks)), dtype=dtype))
        capture = record(model, ids)
        dist.barrier()
        if rank == 0:
            dense = {f"layers.{i}.ffn" for i, layer in enumerate(model.arch.layers) if layer.moe is None}
            kept = {n: t for n, t in capture.taps.items() if n.rpartition(".")[2] not in PARTIAL and n not in dense}
            Capture(capture.ids, kept, capture.facts).save(Path(target))
    finally:
        dist.destroy_process_group()
