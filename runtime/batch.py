"""What one forward pass is given: the ragged batch, and the context of the step it belongs to."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from runtime.load_window import ExpertCounter
from runtime.step_rows import RowWriters


@dataclass(slots=True)
class ForwardBatch:
    """T tokens of B sequences, ragged, concatenated. T may be 0: the rank still takes part in the collectives.

    A sequence may appear once. Its chunk covers the cache positions cached .. cached + length - 1, and its block table must
    hold blocks for all of them (a longer table is fine).
    """

    tokens: Tensor  # [T] int64
    positions: Tensor  # [3, T] int64, mrope rows t, h, w (text: the three rows are equal)
    query_starts: Tensor  # [B+1] int64 offsets into T
    cached: Tensor  # [B] int64, tokens already in the KV cache before this chunk
    block_tables: list[Tensor]  # B tensors of int64 block ids
    logits_at: Tensor  # [K] int64 indices into T
    image_rows: Tensor | None = None  # [M] int64 indices into T whose embedding is replaced
    image_embeds: Tensor | None = None  # [M, H]
    deepstack: list[Tensor] = field(default_factory=list)  # per deepstack layer [M, H]
    state_slots: Tensor | None = None  # [B] int64, where each sequence's recurrent state lies; None: no layer has one

    @classmethod
    def empty(cls) -> ForwardBatch:
        """The batch of a rank that has nothing to do in a step."""
        none = torch.zeros(0, dtype=torch.int64)
        return cls(none, none.view(1, 0).expand(3, 0), torch.zeros(1, dtype=torch.int64), none, [], none, state_slots=none)


@dataclass(slots=True)
class StepContext:
    """One step on one rank. The forward fills `rows_received` always, and writes `layer` and `collective` rows when `detail`."""

    step: int
    detail: bool = False
    rank: int = 0
    stage: int = 0
    micro_batch: int = 0
    counter: ExpertCounter | None = None  # accumulates expert counts over steps; None: not counted
    writers: RowWriters | None = None  # needed when detail
    rows_received: list[int] = field(default_factory=list)  # per MoE layer: rows this rank's experts computed in this step
