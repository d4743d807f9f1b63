"""Where cold experts come from: the checkpoint's files, through the loader, one expert at a time.

Reads are buffered: the page cache is the tier between memory and disk, and the kernel takes it back when it needs it.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from probes.checkpoint import Checkpoint
from runtime.arch import ArchSpec
from runtime.loader import Loader
from runtime.placement import Placement
from runtime.plan import plan_experts
from runtime.planner import RankPlan
from runtime.tiers.shelf import Key
from runtime.weights import ExpertBank
from traces.errors import CheckpointError, UsageError

READERS = 2  # threads for one expert: its matrices lie in a few runs


class ExpertSource:
    """`layers` are the model layers with mixtures of this rank's stage; experts by local slot, as `placement` (of the stage) has them."""

    def __init__(self, checkpoint: Checkpoint, arch: ArchSpec, loader: Loader, placement: Placement, rank: int, layers: tuple[int, ...]):
        settings = replace(loader.settings, threads=READERS, direct_from=None)
        self._loader = Loader(loader.root, loader.dtype, loader.device, loader.rank, None, None, settings)
        self._plans: dict[Key, RankPlan] = {}
        for index, layer in enumerate(layers):
            local = placement.local(index, rank)
            whole = plan_experts(checkpoint, arch, layer, dict(enumerate(local)), len(local))
            self._plans.update({(layer, slot): plan for slot, plan in enumerate(_one_each(whole, len(local)))})
        shapes = {tuple(sorted(_shapes(plan).items())) for plan in self._plans.values()}
        if len(shapes) != 1:
            raise UsageError("the mixtures of this model differ in size", "--expert-memory needs experts that fit the same frames")
        self.layers = layers
        self.slots = placement.slots_per_rank
        one = next(iter(self._plans.values()))
        self.nbytes = sum(math.prod(shape) * self._loader.dtype.itemsize for shape in one.targets.values())  # of an expert in memory
        self._files = {part.file: _stamp(loader.root / part.file) for plan in self._plans.values() for part in plan.parts}

    def frames(self, count: int) -> ExpertBank:
        """Empty memory for `count` experts, laid out as the loader lays out experts."""
        layer = self.layers[0]
        one = self._plans[layer, 0]
        shapes = {name: (count, *shape[1:]) for name, shape in one.targets.items()}
        return ExpertBank.of(self._loader.allocate(RankPlan(targets=shapes, matrices=one.matrices)), layer)

    def read(self, key: Key, frames: ExpertBank, frame: int) -> int:
        """Brings an expert into a frame; bytes read. CheckpointError when it cannot be read, or the files are not those that were
        loaded."""
        plan = self._plans[key]
        for file in {part.file for part in plan.parts}:
            if _stamp(self._loader.root / file) != self._files[file]:
                raise CheckpointError(f"{file} changed while it was served", "restart the server: its experts would be of two checkpoints")
        parts: dict[str, Tensor | None] = {
            "gate_up": frames.gate_up, "down": frames.down, "gate_up_bias": frames.gate_up_bias, "down_bias": frames.down_bias,
        }  # fmt: skip
        targets = {}
        for name in plan.targets:
            whole = parts[name.rsplit(".", 1)[1]]
            assert whole is not None
            targets[name] = whole[frame : frame + 1]
        self._loader.fill(plan, targets)
        return plan.bytes_read


def _one_each(whole: RankPlan, slots: int) -> list[RankPlan]:
    """The plan of a layer's experts as one plan a slot, each with a single slot."""
    shapes = {name: (1, *shape[1:]) for name, shape in whole.targets.items()}
    plans = [RankPlan(targets=shapes, matrices=whole.matrices) for _ in range(slots)]
    for part in whole.parts:
        slot, *rest = part.index
        assert isinstance(slot, int)
        plans[slot].parts.append(replace(part, index=(0, *rest)))
    return plans


def _shapes(plan: RankPlan) -> dict[str, tuple[int, ...]]:
    return {name.rsplit(".", 1)[1]: shape for name, shape in plan.targets.items()}


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError as error:
        raise CheckpointError(f"{path.name} is gone: {error.strerror}", "cold experts are read from it: put it back") from error
    return found.st_ino, found.st_size, found.st_mtime_ns
