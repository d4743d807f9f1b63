"""One rank of a parity test: `rank_program.py FOLDER WORLD RANK`. Reads job.pt, computes its share of the prompts, writes outN.pt.

Sequence i belongs to rank i % world, so that ranks have unequal work, and in some steps none.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from probes.checkpoint import Checkpoint
from runtime.arch import read_arch
from runtime.batch import ForwardBatch, StepContext
from runtime.kv import KVCache
from runtime.load_window import ExpertCounter
from runtime.mesh import Mesh
from runtime.model import MoeModel
from runtime.placement import Placement
from runtime.step_rows import RowWriters


class Lists:
    """Keeps the rows a recorder would be given."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Any]] = {}

    def writer(self, table: Any) -> Any:
        names = [column.name for column in table.columns]
        rows = self.rows.setdefault(table.name, [])

        def write(*values: Any) -> None:
            assert len(values) == len(names)
            rows.append(dict(zip(names, values, strict=True)))

        return write

    def row(self, table: Any, **values: Any) -> None:
        unknown = set(values) - {column.name for column in table.columns}
        assert not unknown, unknown
        self.rows.setdefault(table.name, []).append(values)


class Sequence:
    """A prompt with its blocks; `cached` tokens are in the cache."""

    def __init__(self, model: MoeModel, kv: KVCache, prompt: dict[str, Any], slot: int) -> None:
        self.prompt = prompt
        self.slot = slot  # of its recurrent state
        self.tokens = list(prompt["tokens"])
        count = len(self.tokens)
        given = prompt["positions"]
        self.positions = torch.arange(count).expand(3, -1) if given is None else torch.from_numpy(given)
        self.next = int(self.positions.max()) + 1
        self.cached = 0
        blocks = kv.allocator.allocate(kv.blocks_for(count + 8))
        assert blocks is not None
        random.Random(count).shuffle(blocks)  # pages out of order: the table must be used
        self.blocks = torch.tensor(blocks)
        self.embeds: torch.Tensor | None = None
        self.side: list[torch.Tensor] = []
        self.image_rows = torch.zeros(0, dtype=torch.int64)
        if prompt["patches"] is not None:
            self.embeds, self.side = model.encode_images(torch.from_numpy(prompt["patches"]), prompt["grids"])
            self.image_rows = (torch.tensor(self.tokens) == model.arch.tokens.image).nonzero().flatten()

    def append(self, token: int) -> None:
        self.tokens.append(token)
        self.positions = torch.cat((self.positions, torch.full((3, 1), self.next)), 1)
        self.next += 1


def batch_of(chunks: list[tuple[Sequence, int]]) -> ForwardBatch:
    """The next `n` tokens of each sequence; logits of all of them."""
    if not chunks:
        return ForwardBatch.empty()
    tokens, positions, starts, rows, embeds, side = [], [], [0], [], [], []
    for sequence, n in chunks:
        first, stop = sequence.cached, sequence.cached + n
        tokens += sequence.tokens[first:stop]
        positions.append(sequence.positions[:, first:stop])
        inside = (sequence.image_rows >= first) & (sequence.image_rows < stop)
        if inside.any():
            rows.append(sequence.image_rows[inside] - first + starts[-1])
            embeds.append(sequence.embeds[inside])
            side.append([layer[inside] for layer in sequence.side])
        starts.append(starts[-1] + n)
    return ForwardBatch(
        torch.tensor(tokens),
        torch.cat(positions, 1),
        torch.tensor(starts),
        torch.tensor([s.cached for s, _ in chunks]),
        [s.blocks for s, _ in chunks],
        torch.arange(len(tokens)),
        torch.cat(rows) if rows else None,
        torch.cat(embeds) if embeds else None,
        [torch.cat(layer) for layer in zip(*side, strict=True)],
        torch.tensor([s.slot for s, _ in chunks]),
    )


class Rank:
    """Steps in lockstep with the other ranks."""

    def __init__(self, model: MoeModel, prompts: list[dict[str, Any]], lists: Lists) -> None:
        self.model = model
        self.prompts = prompts
        self.step = 0
        self.writers = RowWriters.of(lists)
        arch = model.arch
        self.counter = ExpertCounter(model.placement, arch.moe_layers, arch.moe.experts, model.mesh.rank)
        self.rows: list[list[int]] = []
        self.tokens: list[int] = []

    def sequences(self) -> tuple[KVCache, list[Sequence]]:
        kv = self.model.kv_cache(64, 16)
        return kv, [Sequence(self.model, kv, prompt, slot) for slot, prompt in enumerate(self.prompts)]

    def forward(self, kv: KVCache, chunks: list[tuple[Sequence, int]]) -> list[torch.Tensor]:
        self.step += 1
        batch = batch_of(chunks)
        context = StepContext(self.step, True, self.model.mesh.rank, counter=self.counter, writers=self.writers)
        self.counter.begin(self.step, batch.tokens.shape[0])
        logits = self.model.forward(batch, kv, context)
        for sequence, n in chunks:
            sequence.cached += n
        self.rows.append(context.rows_received)
        self.tokens.append(batch.tokens.shape[0])
        return list(logits.split([n for _, n in chunks]))

    def whole(self) -> list[torch.Tensor]:
        """All prompts of this rank in one step: a ragged batch."""
        kv, sequences = self.sequences()
        return self.forward(kv, [(s, len(s.tokens)) for s in sequences])

    def alone(self, most: int) -> list[torch.Tensor]:
        """One prompt a step; ranks with fewer prompts than `most` step with an empty batch."""
        kv, sequences = self.sequences()
        answers = []
        for i in range(most):
            answers += self.forward(kv, [(s, len(s.tokens)) for s in sequences[i : i + 1]])
        return answers

    def chunked(self, size: int, steps: int) -> list[torch.Tensor]:
        """Chunks of `size` tokens of all unfinished prompts together."""
        kv, sequences = self.sequences()
        parts: dict[int, list[torch.Tensor]] = {i: [] for i in range(len(sequences))}
        for _ in range(steps):
            todo = [(i, s) for i, s in enumerate(sequences) if s.cached < len(s.tokens)]
            logits = self.forward(kv, [(s, min(size, len(s.tokens) - s.cached)) for _, s in todo])
            for (i, _), part in zip(todo, logits, strict=True):
                parts[i].append(part)
        return [torch.cat(p) for p in parts.values()]

    def decoded(self, steps: int) -> tuple[list[list[int]], list[torch.Tensor]]:
        """Greedy tokens from the cache, mixed with a late prefill of the last sequence; and the logits they came from."""
        kv, sequences = self.sequences()
        early = sequences[:-1] if len(sequences) > 1 else sequences
        last = self.forward(kv, [(s, len(s.tokens)) for s in early])
        seen = {id(s): [] for s in sequences}
        for turn in range(steps):
            for s, logits in zip(early, last, strict=True):
                seen[id(s)].append(logits[-1])
                s.append(int(logits[-1].argmax()))
            late = [(sequences[-1], len(sequences[-1].tokens))] if turn == 1 and len(sequences) > 1 else []
            last = self.forward(kv, [(s, 1) for s in early[:1]] + late + [(s, 1) for s in early[1:]])
            if late:
                last.pop(1)
        return [s.tokens for s in early], [torch.stack(seen[id(s)]) for s in early]


def random_placement(arch: Any, ranks: int, version: int, extra: int, seed: int) -> Placement:
    rng = random.Random(seed)
    layers = []
    for _ in arch.moe_layers:
        experts = list(range(arch.moe.experts)) + [rng.randrange(arch.moe.experts) for _ in range(extra)]
        rng.shuffle(experts)
        layers.append(tuple(experts))
    hosts = 2 if ranks == 4 else 1  # replicas on the own host are preferred then
    return Placement(version, tuple(layers), ranks, "control", "test", hosts).checked(arch.moe.experts)


def main(folder: Path, world: int, rank: int) -> None:
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    job = torch.load(folder / "job.pt", weights_only=False)
    checkpoint = Checkpoint.open(job["checkpoint"])
    lists = Lists()
    model = MoeModel.load(checkpoint, read_arch(checkpoint.config), Mesh.current(), recorder=lists)
    program = Rank(model, job["prompts"][rank::world], lists)
    most = -(-len(job["prompts"]) // world)
    longest = max(len(p["tokens"]) for p in job["prompts"])
    out: dict[str, Any] = {"whole": program.whole(), "alone": program.alone(most)}
    out["chunked"] = {size: program.chunked(size, -(-longest // size)) for size in (7, 16)}
    out["greedy"], out["cached"] = program.decoded(4)
    out["windows"] = program.counter.flush()
    out["steps"] = {"rows": program.rows, "tokens": program.tokens}
    out["switched"] = []
    for version, extra in ((1, 0), (2, world), (3, 0)):
        placement = random_placement(model.arch, world, version, extra, seed=version)
        model.stage_placement(placement)
        assert model.staged_version == version
        if world > 1:
            dist.barrier()
        out["moved"] = model.switch_placement(program.step + 1).moved
        program.counter.rebind(model.placement)
        out["switched"].append(program.whole())
        out.setdefault("switched_windows", []).append(program.counter.flush())
    out["tables"] = lists.rows
    torch.save(out, folder / f"out{rank}.pt")
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
