"""Expert load of a window: tokens per layer and expert, rows per rank and slot, and the placement that serves them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.tui.data.ask import ask
from workbench.tui.data.windows import SECOND, Span, since
from workbench.tui.feed import Reads

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Experts:
    """`tokens` [layers, experts]: assignments. `rows` [layers, ranks x slots]: rows computed, rank after rank.

    `served` [layers, ranks x slots]: the logical expert of each slot, -1 where no placement was recorded. `above_null`
    [layers]: share of steps whose rank imbalance exceeds what a uniform router gives, NaN where not measured.
    """

    span: Span
    layers: tuple[int, ...]
    ranks: tuple[int, ...]
    tokens: Counts
    rows: Counts
    served: Counts
    above_null: NDArray[np.float64]
    placement: int

    @property
    def slots(self) -> int:
        """Slots of one rank."""
        return int(self.rows.shape[1]) // max(len(self.ranks), 1)

    @property
    def rank_rows(self) -> Counts:
        """[layers, ranks]: rows computed."""
        total: Counts = self.rows.reshape(len(self.layers), len(self.ranks), -1).sum(axis=2)
        return total

    @property
    def rank_imbalance(self) -> NDArray[np.float64]:
        """[layers]: rows of the busiest rank over the mean, of the whole window; NaN for a layer without rows."""
        rows = self.rank_rows.astype(float)
        mean = rows.mean(axis=1) if rows.size else np.zeros(len(self.layers))
        return _divide(rows.max(axis=1, initial=0.0), mean)

    def slots_of(self, row: int, expert: int) -> tuple[tuple[int, int], ...]:
        """Where an expert of a layer (by index) is served: (rank, local slot), one for each replica."""
        found = np.flatnonzero(self.served[row] == expert)
        return tuple((self.ranks[slot // self.slots], int(slot % self.slots)) for slot in found)


def ratio(counts: Counts) -> NDArray[np.float64]:
    """Counts over the mean of their row; NaN for a row without counts."""
    mean = counts.mean(axis=1, keepdims=True) if counts.size else counts.astype(float)
    return _divide(counts, np.broadcast_to(mean, counts.shape))


def _divide(counts: NDArray[Any], mean: NDArray[Any]) -> NDArray[np.float64]:
    share: NDArray[np.float64] = np.divide(counts, mean, out=np.full(counts.shape, np.nan), where=mean > 0)
    return share


def read(store: Reads, window: int | None, now: int) -> Experts | None:
    """None where no expert load was recorded in the window. Rows, and what they say of ranks, are of the newest placement in it."""
    span = since(store, window, now)
    # A row is the end of a window of about a second: the last one of a recorded run may lie just after its last step.
    bounds = [span.start, span.end + 2 * SECOND]
    logical = ask(
        store,
        "SELECT layer, e AS expert, sum(t) AS n FROM (SELECT layer, unnest(tokens) AS t, unnest(range(len(tokens))) AS e"
        " FROM expert_load WHERE ts > ? AND ts <= ?) GROUP BY ALL",
        bounds,
    )
    if not logical:
        return None
    placement = int(ask(store, "SELECT max(placement) AS v FROM expert_load WHERE ts > ? AND ts <= ?", bounds)[0]["v"])
    layers = tuple(sorted({row["layer"] for row in logical}))
    at = {layer: index for index, layer in enumerate(layers)}
    tokens = np.zeros((len(layers), max(row["expert"] for row in logical) + 1), dtype=np.int64)
    for row in logical:
        tokens[at[row["layer"]], row["expert"]] = row["n"]
    ranks, rows = _rows(store, at, [*bounds, placement])
    served = _served(store, at, rows.shape, placement)
    return Experts(span, layers, ranks, tokens, rows, served, _above_null(store, at, [*bounds, placement]), placement)


def _rows(store: Reads, at: dict[int, int], bounds: list[int]) -> tuple[tuple[int, ...], Counts]:
    """The ranks, and [layers, ranks x slots] rows computed under one placement."""
    physical = ask(
        store,
        "SELECT layer, rank, s AS slot, sum(t) AS n FROM (SELECT layer, rank, unnest(physical) AS t,"
        " unnest(range(len(physical))) AS s FROM expert_load WHERE ts > ? AND ts <= ? AND placement = ?) GROUP BY ALL",
        bounds,
    )
    ranks = tuple(sorted({row["rank"] for row in physical}))
    slots = max((row["slot"] for row in physical), default=0) + 1
    rows = np.zeros((len(at), len(ranks) * slots), dtype=np.int64)
    for row in physical:
        rows[at[row["layer"]], ranks.index(row["rank"]) * slots + row["slot"]] = row["n"]
    return ranks, rows


def _served(store: Reads, at: dict[int, int], shape: tuple[int, ...], placement: int) -> Counts:
    """The map of every layer under a version."""
    served = np.full(shape, -1, dtype=np.int64)
    for row in ask(
        store,
        "SELECT layer, arg_max(physical_to_logical, placement) AS slots FROM placement WHERE placement <= ? GROUP BY layer",
        [placement],
    ):
        if row["layer"] in at and len(row["slots"]) == shape[1]:
            served[at[row["layer"]]] = row["slots"]
    return served


def _above_null(store: Reads, at: dict[int, int], bounds: list[int]) -> NDArray[np.float64]:
    shares = np.full(len(at), np.nan)
    for row in ask(
        store,
        "SELECT layer, sum(above_null * steps) / nullif(sum(steps), 0) AS share FROM expert_load"
        " WHERE ts > ? AND ts <= ? AND placement = ? AND above_null IS NOT NULL GROUP BY layer",
        bounds,
    ):
        if row["layer"] in at and row["share"] is not None:
            shares[at[row["layer"]]] = row["share"]
    return shares
