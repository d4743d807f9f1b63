"""The layouts of a parity test: `mesh_program.py FOLDER`. Reads job.pt; forks the ranks of each layout in turn, so that torch is imported
once; rank R of layout N writes outN-R.pt.

Each rank computes logits by the forward pass alone, and then answers requests through the engine, with a link that is a list.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from rank_program import Lists, Sequence, batch_of, random_placement

from probes.checkpoint import Checkpoint
from runtime import messages as m
from runtime.arch import read_arch
from runtime.batch import StepContext
from runtime.layout import Layout
from runtime.mesh import Mesh
from runtime.micro_batch import MicroBatch
from runtime.model import MoeModel
from runtime.placement_switch import PlacementSwitch
from runtime.rank_start import _engine
from runtime.serve_config import ServeConfig
from runtime.sharing import Sharing
from runtime.step_rows import RowWriters


class Recorder(Lists):
    def event(self, kind: str, **attrs: Any) -> None:
        self.rows.setdefault("event", []).append({"kind": kind, **attrs})


class ListLink:
    """Gives the requests at once, and the stop when all are answered."""

    def __init__(self, requests: list[m.Submit]) -> None:
        self.inbox: list[Any] = list(requests)
        self.open = {request.id for request in requests}
        self.sent: list[Any] = []
        self.stopped = False

    def poll(self) -> list[Any]:
        found, self.inbox = self.inbox, []
        if not self.open and not self.stopped:
            self.stopped = True
            found.append(m.Stop(2))
        return found

    def send(self, message: Any) -> None:
        self.sent.append(message)
        if isinstance(message, m.StepOutput):
            self.open -= {token.id for token in message.tokens if token.finish}

    def wait(self, timeout: float) -> bool:
        time.sleep(min(timeout, 0.001))
        return True


def submit(number: int, prompt: dict[str, Any], image: int | None, tokens: int, temperature: float) -> m.Submit:
    images = []
    if prompt["patches"] is not None:
        ids = np.array(prompt["tokens"])
        runs = np.flatnonzero((ids == image) & (np.roll(ids, 1) != image))
        at = 0
        for (t, h, w), start in zip(prompt["grids"], runs, strict=True):
            patches = prompt["patches"][at : at + t * h * w]
            images.append(m.ImagePatches(patches.tobytes(), patches.shape[1], (t, h, w), int(start), t * h * w // 4))
            at += t * h * w
    positions = b"" if prompt["positions"] is None else prompt["positions"].astype(np.int64).tobytes()
    sampling = m.Sampling(temperature=temperature, seed=number, logprobs=2)
    return m.Submit(number, f"{number:032x}", prompt["tokens"], tokens, [], sampling, time.time_ns(), 1, positions, images)


class Rank:
    def __init__(self, job: dict[str, Any], layout: Layout, lists: Recorder) -> None:
        checkpoint = Checkpoint.open(job["checkpoint"])
        self.arch = read_arch(checkpoint.config)
        layout.checked(self.arch)
        self.mesh = Mesh.current(layout)
        self.model = MoeModel.load(checkpoint, self.arch, self.mesh, recorder=lists)
        self.prompts = job["prompts"][self.mesh.place.dp :: layout.dp]
        self.numbers = list(range(len(job["prompts"])))[self.mesh.place.dp :: layout.dp]
        self.sharing = Sharing(self.mesh, self.arch, self.model.dtype, self.model.device)
        self.writers = RowWriters.of(lists)
        self.lists = lists

    def whole(self, step: int) -> list[torch.Tensor]:
        """Logits of all prompts of the replica, in two micro-batches of whole prompts."""
        kv = self.model.kv_cache(64, 16)
        planned: list[MicroBatch] = []
        if self.mesh.leads:
            sequences = [Sequence(self.model, kv, prompt, slot) for slot, prompt in enumerate(self.prompts)]
            half = len(sequences) // 2
            parts = (sequences[:half], sequences[half:])
            planned = [MicroBatch(batch_of([(s, len(s.tokens)) for s in part]), []) for part in parts]
        answers: list[torch.Tensor] = []
        for index, work in enumerate(self.sharing.share(planned)):
            context = StepContext(step, True, self.mesh.rank, self.mesh.place.pp, index, writers=self.writers)
            logits = self.model.forward(work.batch, kv, context)
            if logits.shape[0]:
                answers += logits.split(work.batch.query_starts.diff().tolist())
        self.mesh.settle()
        return answers

    def served(self) -> dict[str, Any]:
        """Requests through scheduler, header, sharing and pipeline, in small chunks."""
        layout = self.mesh.layout
        config = ServeConfig(
            model="m", tp=layout.tp, pp=layout.pp, dp=layout.dp, max_tokens_per_step=40, max_sequences=8, detail_every=1, micro_batches=3
        )
        image = self.arch.tokens.image
        requests = []
        if self.mesh.leads:
            pairs = zip(self.numbers, self.prompts, strict=True)
            requests = [submit(n, prompt, image, 6, 0.8 if n == 0 else 0.0) for n, prompt in pairs]
        link: Any = ListLink(requests)
        switch = PlacementSwitch(self.model, link, self.mesh.rank, layout.ep, lambda phase: None)
        engine = _engine(config, self.model, self.model.kv_cache(40, 8), self.lists, link, switch)
        engine.run()
        engine.record.close()
        tokens: dict[int, list[Any]] = {}
        for output in link.sent:
            for token in output.tokens:
                tokens.setdefault(token.id, []).append((token.token, token.logprob, token.top))
        free = engine.scheduler.allocator.available
        return {"tokens": tokens, "steps": engine.step, "free": free}


def rank_main(folder: Path, number: int, layout: Layout, rank: int) -> None:
    if layout.world > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous{number}", rank=rank, world_size=layout.world)
    lists = Recorder()
    program = Rank(torch.load(folder / "job.pt", weights_only=False), layout, lists)
    out: dict[str, Any] = {"place": program.mesh.place, "whole": program.whole(1)}
    out["loaded"] = sum(row["bytes_kept"] for row in lists.rows["load"])
    out["collectives"] = list(lists.rows["collective"])
    out |= program.served()
    program.model.stage_placement(random_placement(program.arch, layout.ep, 1, layout.ep, seed=3))
    if layout.world > 1:
        dist.barrier()
    program.model.switch_placement(100)
    out["switched"] = program.whole(100)
    out["tables"] = lists.rows
    torch.save(out, folder / f"out{number}-{rank}.pt")
    if layout.world > 1:
        dist.destroy_process_group()


def fork(folder: Path, number: int, layout: Layout, rank: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        rank_main(folder, number, layout, rank)
        code = 0
    except Exception:  # noqa: BLE001
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main(folder: Path) -> int:
    torch.set_num_threads(1)
    layouts = [Layout(**sizes) for sizes in torch.load(folder / "job.pt", weights_only=False)["layouts"]]
    for number, layout in enumerate(layouts):
        children = [fork(folder, number, layout, rank) for rank in range(layout.world)]
        for _ in children:
            _, status = os.wait()
            if status:
                sys.stderr.write(f"layout {layout} failed\n")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
