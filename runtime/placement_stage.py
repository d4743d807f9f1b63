"""Changing the placement while serving: the new experts are brought in beside the old ones, then both map and weights are swapped.

Staging needs the memory of this rank's changed layers once more until the switch.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from probes.checkpoint import Checkpoint
from runtime.arch import ArchSpec
from runtime.expert_identity import ExpertIdentity
from runtime.layers.moe import Mixture
from runtime.layers.slot_map import SlotMap
from runtime.loader import Loader
from runtime.placement import Placement
from runtime.plan import plan_experts
from runtime.step_rows import RowSink
from runtime.weight_hash import expert_hash
from runtime.weights import ExpertBank
from traces import schema


@dataclass(frozen=True, slots=True)
class StagedLayer:
    """A layer's new map, and its new weights where this rank's slots change."""

    slots: SlotMap
    bank: ExpertBank | None


@dataclass(frozen=True, slots=True)
class Staged:
    placement: Placement
    layers: dict[int, StagedLayer]  # by model layer


@dataclass(frozen=True, slots=True)
class Switched:
    """What a switch did on this rank."""

    version: int
    moved: int  # slots whose expert changed, over all layers and ranks
    stall: int  # ns for which this rank did not step
    ts: int


@dataclass(frozen=True, slots=True)
class Stager:
    """Brings in the experts of a new placement. Runs in a background thread while the old one serves."""

    checkpoint: Checkpoint
    arch: ArchSpec
    loader: Loader
    identity: ExpertIdentity
    rank: int  # in the expert-parallel group

    def stage(self, old: Placement, new: Placement, mixtures: dict[int, Mixture]) -> Staged:
        """Of the layers of `mixtures`, in this order. CheckpointError when an expert cannot be read, or is not the one that was loaded."""
        layers = {}
        for index, layer in enumerate(mixtures):
            slots = SlotMap(new, index, self.arch.moe.experts, self.rank, self.loader.device)
            before, after = old.local(index, self.rank), new.local(index, self.rank)
            held = mixtures[layer].weights.bank
            assert isinstance(held, ExpertBank), "placements are not staged where experts are in tiers"
            bank = None if before == after else self._bring(index, layer, before, after, held)
            layers[layer] = StagedLayer(slots, bank)
        return Staged(new, layers)

    def _bring(self, index: int, layer: int, before: tuple[int, ...], after: tuple[int, ...], old: ExpertBank) -> ExpertBank:
        """The new weights of one layer: what this rank holds already is copied, the rest is read. Every slot's hash is checked."""
        held = {expert: slot for slot, expert in enumerate(before)}
        wanted = {slot: expert for slot, expert in enumerate(after) if expert not in held}
        plan = plan_experts(self.checkpoint, self.arch, layer, wanted, len(after))
        targets = self.loader.allocate(plan)
        bank = ExpertBank.of(targets, layer)
        self.loader.fill(plan, targets)
        for slot, expert in enumerate(after):
            if expert in held:
                for mine, theirs in zip(bank.parts(), old.parts(), strict=True):
                    mine[slot] = theirs[held[expert]]
            self.identity.check(index, expert, expert_hash([part[slot] for part in bank.parts()]))
        return bank


def swap(staged: Staged, old: Placement, mixtures: dict[int, Mixture]) -> Switched:
    """Puts a staged placement in force, between two steps."""
    begin = time.perf_counter_ns()
    for layer, new in staged.layers.items():
        mixture = mixtures[layer]
        mixture.slots = new.slots
        if new.bank is not None:
            mixture.weights.bank = new.bank
    stall = time.perf_counter_ns() - begin
    return Switched(staged.placement.version, sum(old.moved(staged.placement)), stall, time.time_ns())


def record_placement(
    recorder: RowSink, placement: Placement, moe_layers: tuple[int, ...], identity: ExpertIdentity, step: int, moved: list[int], stall: int
) -> None:
    """One row of `placement` per MoE layer. One rank writes them for all."""
    ts = time.time_ns()
    for index, layer in enumerate(moe_layers):
        recorder.row(
            schema.PLACEMENT,
            placement=placement.version,
            ts=ts,
            step=step,
            layer=layer,
            physical_to_logical=list(placement.physical_to_logical[index]),
            source=placement.source,
            reason=placement.reason,
            moved=moved[index],
            stall=stall,
            slot_hashes=identity.slots(index, placement),
        )
