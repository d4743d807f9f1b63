"""From a plan of chunks to the ragged batch of a forward pass."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from runtime.batch import ForwardBatch
from runtime.scheduler import Chunk, Plan


def assemble(plan: Plan, device: torch.device) -> ForwardBatch:
    """Chunks in the plan's order. Images of the chunks must have been encoded."""
    if not plan.chunks:
        return ForwardBatch.empty()
    chunks = plan.chunks
    tokens = [token for c in chunks for token in c.sequence.tokens[c.start : c.start + c.length]]
    positions = np.concatenate([c.sequence.positions_of(c.start, c.length) for c in chunks], axis=1)
    starts = np.cumsum([0, *(c.length for c in chunks)])
    batch = ForwardBatch(
        tokens=_ids(tokens, device),
        positions=torch.from_numpy(positions).to(device),
        query_starts=torch.from_numpy(starts),
        cached=torch.tensor([c.start for c in chunks], dtype=torch.int64),
        block_tables=[_ids(c.sequence.blocks, device) for c in chunks],
        logits_at=_ids([int(end) - 1 for c, end in zip(chunks, starts[1:], strict=True) if c.samples], device),
        state_slots=torch.tensor([c.sequence.slot for c in chunks]),
    )
    _add_images(batch, chunks, starts.tolist())
    return batch


def _add_images(batch: ForwardBatch, chunks: list[Chunk], starts: list[int]) -> None:
    """The rows of image embeddings that fall into the chunks."""
    rows: list[Tensor] = []
    embeds: list[Tensor] = []
    deepstack: list[list[Tensor]] = []
    for chunk, start in zip(chunks, starts, strict=False):
        images = chunk.sequence.embeddings
        if images is None:
            continue
        bounds = torch.tensor([chunk.start, chunk.start + chunk.length])
        first, last = torch.searchsorted(images.rows, bounds).tolist()
        if first == last:
            continue
        rows.append(images.rows[first:last] - chunk.start + start)
        embeds.append(images.embeds[first:last])
        deepstack.append([layer[first:last] for layer in images.deepstack])
    if rows:
        batch.image_rows = torch.cat(rows).to(batch.tokens.device)
        batch.image_embeds = torch.cat(embeds)
        batch.deepstack = [torch.cat(layer) for layer in zip(*deepstack, strict=True)]


def _ids(values: list[int], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)
