"""Weight bytes of a rank, by kind."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from runtime.budget.layout import Layout, Stage
from runtime.budget.precision import Sizes, stored
from runtime.inventory.model import Inventory
from runtime.inventory.tensors import Kind, Split, TensorGroup

SEEING: frozenset[Kind] = frozenset({"vision", "projector"})


@dataclass(frozen=True, slots=True)
class Lump:
    """Tensors that ranks share alike: a divisor of `nbytes` for every split, and a layer that says which stage."""

    kind: Kind
    split: Split
    layer: int | None
    experts: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a layer's projections: those that tensor parallelism splits, and those that every rank computes."""

    split: int = 0
    whole: int = 0
    feed_forward: int = 0


class Costs:
    """An inventory summed once, so that hundreds of layouts can be asked about. `sizes` says in which precision."""

    def __init__(self, inventory: Inventory, sizes: Sizes = stored) -> None:
        self.inventory = inventory
        self._lumps = _lumps(inventory, sizes)
        self.rows = _rows(inventory)

    def weights(self, layout: Layout, stage: Stage, lane: int = 0) -> dict[Kind, int]:
        """Bytes of each kind on the ranks of a stage and a tensor-parallel lane."""
        sums: Counter[Kind] = Counter()
        for lump in self._lumps:
            if self._holds(lump, stage, lane):
                held, of = self._share(lump, layout)
                sums[lump.kind] += -(-lump.nbytes * held // of)
        return dict(sums)

    def _holds(self, lump: Lump, stage: Stage, lane: int) -> bool:
        """Layers go by number; the embedding is on the first stage; norm, head and draft layers are on the last; pictures are encoded by
        the first lane of the first stage."""
        if lump.kind in SEEING:
            return stage.index == 0 and lane == 0
        if lump.kind == "embed":
            return stage.index == 0 or (self.inventory.tied and stage.last)
        if lump.layer is None or lump.kind == "mtp":
            return stage.last
        return stage.holds(lump.layer)

    def _share(self, lump: Lump, layout: Layout) -> tuple[int, int]:
        """(held, of): the part of a lump that a rank of its stage holds."""
        if lump.split == "expert":
            return layout.slots(lump.experts), lump.experts
        if lump.split == "kv":
            return 1, min(layout.tp, kv_heads(self.inventory, lump.layer))
        return 1, layout.tp if lump.split == "tp" else 1


def kv_heads(inventory: Inventory, layer: int | None) -> int:
    """KV heads of a layer that tensor parallelism can share."""
    if layer is None or layer >= len(inventory.caches):
        return 1
    return inventory.caches[layer].heads


def _lumps(inventory: Inventory, sizes: Sizes) -> tuple[Lump, ...]:
    sums: Counter[tuple[Kind, Split, int | None, int]] = Counter()
    for group in inventory.groups:
        sums[(group.kind, group.split, group.layer, group.experts)] += sizes(group)
    return tuple(Lump(*key, nbytes) for key, nbytes in sums.items())


def _rows(inventory: Inventory) -> dict[int, Rows]:
    """By layer."""
    found: dict[int, Rows] = defaultdict(Rows)
    for group in inventory.groups:
        if group.layer is None or group.role != "matrix" or group.kind not in ("attention", "dense", "shared"):
            continue
        found[group.layer] = _more(found[group.layer], group)
    return dict(found)


def _more(rows: Rows, group: TensorGroup) -> Rows:
    count = group.shape[0]
    if group.kind != "attention":
        return Rows(rows.split, rows.whole, rows.feed_forward + count)
    if group.split == "tp":
        return Rows(rows.split + count, rows.whole, rows.feed_forward)
    return Rows(rows.split, rows.whole + count, rows.feed_forward)
