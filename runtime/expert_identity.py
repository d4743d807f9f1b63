"""The hash of every logical expert, agreed by all ranks when the model is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from runtime.batch import StepContext
from runtime.parallel import Group
from runtime.placement import Placement
from runtime.weight_hash import hex_hash
from traces.errors import CheckpointError

_NO_STEP = StepContext(step=-1)


@dataclass(frozen=True, slots=True)
class ExpertIdentity:
    """`hashes[layer][expert]`, MoE layers in order."""

    hashes: list[list[int]]

    @classmethod
    def agree(cls, local: Tensor, placement: Placement, group: Group) -> ExpertIdentity:
        """local [layers, slots of this rank] of every rank -> the identity. A collective: every rank calls it.

        CheckpointError when two slots of one expert differ: the ranks did not read the same file.
        """
        layers, slots = local.shape
        everywhere = group.all_gather(local.flatten().to(group.device), "hashes", _NO_STEP).cpu()  # [ranks, layers * slots]
        physical = everywhere.view(group.size, layers, slots).transpose(0, 1).reshape(layers, -1).tolist()
        experts = len(set(placement.physical_to_logical[0]))
        hashes = [[0] * experts for _ in range(layers)]
        for index, logical in enumerate(placement.physical_to_logical):
            seen: dict[int, int] = {}
            for slot, expert in enumerate(logical):
                hashes[index][expert] = value = physical[index][slot]
                if seen.setdefault(expert, value) != value:
                    message = f"expert {expert} of MoE layer {index} differs between its slots"
                    raise CheckpointError(message, "the ranks read different files: give all of them the same checkpoint")
        return cls(hashes)

    def check(self, index: int, expert: int, found: int) -> None:
        """CheckpointError unless `found` is the hash of that expert."""
        if self.hashes[index][expert] != found:
            message = f"expert {expert} of MoE layer {index} is not what was loaded: {hex_hash(found)}, expected {self.text(index, expert)}"
            raise CheckpointError(message, "the checkpoint changed on disk while it was served; restart the server")

    def text(self, index: int, expert: int) -> str:
        return hex_hash(self.hashes[index][expert])

    def slots(self, index: int, placement: Placement) -> list[str]:
        """Hash of every physical slot of a layer."""
        return [self.text(index, expert) for expert in placement.physical_to_logical[index]]
