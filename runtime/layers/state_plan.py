"""Which tokens of a batch move which sequence's recurrent state on: computed once a step for all recurrent layers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from runtime.batch import ForwardBatch
from runtime.recurrent import RecurrentState


@dataclass(frozen=True, slots=True)
class StateSpan:
    """A chunk of several tokens of one sequence, whose state lies in `slot`."""

    start: int
    stop: int
    slot: int


@dataclass(frozen=True, slots=True)
class StatePlan:
    spans: list[StateSpan]
    singles: Tensor | None  # [N] indices into T of chunks of one token
    single_slots: Tensor  # [N]
    fresh: Tensor  # slots of sequences that begin in this step

    def begin(self, states: list[RecurrentState]) -> None:
        """A sequence that begins (again) finds an empty state, whoever had the slot before."""
        if self.fresh.shape[0]:
            for state in states:
                state.clear(self.fresh)


def plan_states(batch: ForwardBatch, device: torch.device) -> StatePlan:
    """Raises ValueError when the batch names no slots."""
    if batch.state_slots is None:
        raise ValueError("a model with recurrent layers needs ForwardBatch.state_slots")
    starts, slots = batch.query_starts.tolist(), batch.state_slots.tolist()
    lengths = [stop - start for start, stop in pairwise(starts)]
    spans = [StateSpan(start, start + n, slot) for start, n, slot in zip(starts, lengths, slots, strict=False) if n > 1]
    single = [(start, slot) for start, n, slot in zip(starts, lengths, slots, strict=False) if n == 1]
    tokens = torch.tensor([start for start, _ in single], device=device) if single else None
    fresh = [slot for slot, n, cached in zip(slots, lengths, batch.cached.tolist(), strict=True) if n and not cached]
    return StatePlan(spans, tokens, _ids([slot for _, slot in single], device), _ids(fresh, device))


def _ids(values: list[int], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)
