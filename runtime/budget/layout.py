"""How a model is spread over devices: pipeline stages x data-parallel attention x tensor parallelism."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from runtime.inventory.model import Inventory
from runtime.layout_rules import divisors, even_stages, unsplittable
from traces.errors import UsageError

INTO_DENSE = ("gate_proj", "w1")  # how the families call a dense feed-forward's matrix [width, hidden]


@dataclass(frozen=True, slots=True)
class Layout:
    """Ranks are numbered with tp fastest, then dp, then pp. Within a stage the experts are spread over dp x tp."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    redundant: int = 0  # replicas of experts beside the experts themselves, a layer

    @property
    def ep(self) -> int:
        return self.tp * self.dp

    @property
    def world(self) -> int:
        return self.tp * self.pp * self.dp

    def stage_of(self, rank: int) -> int:
        return rank // self.ep

    def slots(self, experts: int) -> int:
        """Expert slots a rank holds in every layer; rounded up, so that every rank has as many."""
        return -(-(experts + self.redundant) // self.ep)

    def __str__(self) -> str:
        extra = f" +{self.redundant} redundant" if self.redundant else ""
        return f"tp{self.tp} pp{self.pp} dp{self.dp} ep{self.ep}{extra}"


@dataclass(frozen=True, slots=True)
class Stage:
    """The layers `first` .. `stop` - 1 of one pipeline stage."""

    index: int
    first: int
    stop: int
    last: bool

    def holds(self, layer: int | None) -> bool:
        return layer is not None and self.first <= layer < self.stop


def stages(layers: int, pp: int, asked: Sequence[int] = ()) -> tuple[Stage, ...]:
    """As many layers a stage as `asked`; else evenly many, the first stages one more where they do not divide."""
    sizes = list(asked) or even_stages(layers, pp)
    starts = [sum(sizes[:i]) for i in range(pp)]
    return tuple(Stage(i, starts[i], starts[i] + sizes[i], i == pp - 1) for i in range(pp))


def refusal(inventory: Inventory, layout: Layout) -> str | None:
    """Why this layout cannot be, or None."""
    if layout.pp > inventory.layers:
        return f"{layout.pp} stages for {inventory.layers} layers"
    for cache in inventory.caches:
        heads = cache.heads if cache.kind == "recurrent" else inventory.heads
        why = unsplittable(layout.tp, heads, cache.heads if cache.kind == "gqa" else None)
        if why is not None:
            return why[0]
    for width in _dense_widths(inventory):
        why = unsplittable(layout.tp, inventory.heads, None, width)
        if why is not None:
            return why[0]
    mixture = inventory.mixture
    if mixture is not None and layout.ep > mixture.experts + layout.redundant:
        return f"{layout.ep} ranks share {mixture.experts} experts: some would hold none"
    return None


def _dense_widths(inventory: Inventory) -> set[int]:
    """Inner widths of dense feed-forwards: rows of the matrices into them, packed or not."""
    return {
        group.shape[0]
        for group in inventory.groups
        if group.kind == "dense" and group.role == "matrix" and any(f".{name}." in group.name for name in INTO_DENSE)
    }


def checked(inventory: Inventory, layout: Layout) -> Layout:
    """Itself, or UsageError."""
    why = refusal(inventory, layout)
    if why is not None:
        raise UsageError(f"the layout {layout} is impossible: {why}", "choose another --tp, --pp, --dp, or let the search choose")
    return layout


def every_layout(devices: int) -> Iterator[Layout]:
    """All products tp x pp x dp of `devices`."""
    for tp in divisors(devices):
        for pp in divisors(devices // tp):
            yield Layout(tp, pp, devices // tp // pp)
