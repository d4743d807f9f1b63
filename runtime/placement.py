"""The versioned map from physical expert slots to logical experts.

Every MoE layer has the same number of slots, split evenly over the ranks in order: rank r owns the slots r*n .. (r+1)*n - 1. The ranks
are split evenly over the hosts in the same way.
An expert may fill several slots (redundant experts). "Layer" here counts MoE layers only, in model order
(`ArchSpec.moe_layers` gives their index in the model).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from traces.errors import UsageError

Layers = tuple[tuple[int, ...], ...]


class BadPlacement(UsageError):
    """A placement that leaves an expert without a slot, or does not fit the ranks."""


@dataclass(frozen=True, slots=True)
class Placement:
    """`physical_to_logical[layer][slot]` is the expert whose weights that slot holds."""

    version: int
    physical_to_logical: Layers
    ranks: int
    source: str = "initial"  # initial | control | rebalance
    reason: str = ""
    hosts: int = 1

    @property
    def layers(self) -> int:
        return len(self.physical_to_logical)

    @property
    def slots(self) -> int:
        """Slots of a layer, over all ranks."""
        return len(self.physical_to_logical[0]) if self.physical_to_logical else 0

    @property
    def slots_per_rank(self) -> int:
        return self.slots // self.ranks

    def local(self, layer: int, rank: int) -> tuple[int, ...]:
        """The experts of one rank's slots, in slot order."""
        n = self.slots_per_rank
        return self.physical_to_logical[layer][rank * n : (rank + 1) * n]

    @classmethod
    def contiguous(cls, layers: int, experts: int, ranks: int, version: int = 0) -> Placement:
        """Expert e in slot e: the layout every engine starts with. `experts` must divide by `ranks`."""
        return cls(version, (tuple(range(experts)),) * layers, ranks, reason="contiguous").checked(experts)

    @classmethod
    def from_json(cls, document: Mapping[str, Any], experts: int, ranks: int, hosts: int = 1) -> Placement:
        """From {"version", "layers", "source", "reason"}; raises BadPlacement."""
        try:
            layers = tuple(tuple(int(e) for e in layer) for layer in document["layers"])
            version = int(document.get("version", 0))
        except (KeyError, TypeError, ValueError) as error:
            raise BadPlacement(f"this is no placement: {error!r}", '{"layers": [[expert of slot 0, ...], ...]} is expected') from error
        source, reason = str(document.get("source", "control")), str(document.get("reason", ""))
        return cls(version, layers, ranks, source, reason, hosts).checked(experts)

    def to_json(self) -> dict[str, Any]:
        layers = [list(layer) for layer in self.physical_to_logical]
        shape = {"ranks": self.ranks, "hosts": self.hosts}
        return {"version": self.version, "layers": layers, "source": self.source, "reason": self.reason, **shape}

    def checked(self, experts: int) -> Placement:
        """Itself, or BadPlacement naming the layer and the experts at fault."""
        if self.slots % self.ranks:
            raise BadPlacement(f"{self.slots} slots cannot be split evenly over {self.ranks} ranks", "choose a divisor of the slots")
        if self.ranks % self.hosts:
            raise BadPlacement(f"{self.ranks} ranks cannot be split evenly over {self.hosts} hosts", "start as many ranks on each host")
        every = set(range(experts))
        for index, layer in enumerate(self.physical_to_logical):
            if len(layer) != self.slots:
                raise BadPlacement(f"MoE layer {index} has {len(layer)} slots, MoE layer 0 has {self.slots}")
            if unknown := sorted(set(layer) - every):
                raise BadPlacement(f"MoE layer {index} names experts {unknown[:8]}; there are {experts}")
            if homeless := sorted(every - set(layer)):
                raise BadPlacement(
                    f"MoE layer {index} leaves experts {homeless[:8]} without a slot", "every expert needs at least one slot"
                )
        return self

    def moved(self, newer: Placement) -> list[int]:
        """Slots per layer whose expert differs in `newer` (all of them when the number of slots differs)."""
        if newer.slots != self.slots:
            return [newer.slots] * newer.layers
        pairs = zip(self.physical_to_logical, newer.physical_to_logical, strict=True)
        return [sum(a != b for a, b in zip(old, new, strict=True)) for old, new in pairs]

