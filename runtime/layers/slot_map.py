"""From the experts a token chose to the physical slots its rows go to, for one layer of a placement."""

from __future__ import annotations

import torch
from torch import Tensor

from runtime.placement import Placement
from runtime.replica_turns import PERIOD, turns


class SlotMap:
    """Tables of one layer on one rank. With redundant experts the rows of an expert are dealt to its slots in turn, near ones first."""

    def __init__(self, placement: Placement, index: int, experts: int, rank: int, device: torch.device) -> None:
        """`index` counts MoE layers, `rank` the placement's ranks."""
        slots = placement.physical_to_logical[index]
        self.slots = len(slots)
        self._rank = rank
        self._identity = slots == tuple(range(experts))
        table = torch.from_numpy(turns(slots, experts, rank, placement.ranks, placement.hosts)).to(device)  # [E, PERIOD]
        self._only = table[:, 0].contiguous()  # [E]
        self._turns = table if self.slots > experts else None

    def __call__(self, experts: Tensor) -> Tensor:
        """experts [T, k] -> slots [T * k]. Slots of an expert hold equal weights, so the choice does not change the answer."""
        flat = experts.flatten()
        if self._identity:
            return flat
        if self._turns is None:
            return self._only[flat]
        # Dealt by token, offset by rank: two ranks with equal traffic do not load the same slot.
        turn = torch.arange(flat.shape[0], device=flat.device) // experts.shape[1] + self._rank
        return self._turns[flat, turn % PERIOD]
