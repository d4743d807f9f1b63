"""What a recurrent layer remembers of every running sequence. Its size does not depend on how long a sequence is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.arch import KdaSpec


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """Of one layer; the first dimension is the sequence's slot. Both float32: errors of a state accumulate."""

    window: Tensor  # [slots, taps - 1, 3 * heads * D], the last inputs of the convolutions
    memory: Tensor  # [slots, heads, D, D]

    @classmethod
    def create(cls, spec: KdaSpec, slots: int, device: torch.device) -> RecurrentState:
        window = torch.zeros(slots, spec.conv - 1, 3 * spec.width, device=device)
        return cls(window, torch.zeros(slots, spec.heads, spec.head_dim, spec.head_dim, device=device))

    @property
    def nbytes(self) -> int:
        return self.window.nbytes + self.memory.nbytes

    def clear(self, slots: Tensor) -> None:
        self.window.index_fill_(0, slots, 0.0)
        self.memory.index_fill_(0, slots, 0.0)


def state_bytes(spec: KdaSpec) -> int:
    """Bytes of one sequence in one layer."""
    return 4 * ((spec.conv - 1) * 3 * spec.width + spec.heads * spec.head_dim**2)
