"""Tables as arrays. One row of an array is one layer of one step, or one step; one column is one rank; NaN is "no row"."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from playbooks.attribution.frontier import SEGMENTS, Frontier, frontier
from playbooks.window import Period
from traces.store import Store

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Cells that are read at most: the newest detailed steps that fit are taken (0.3 s and 200 MB in numpy).
MOST_ROWS = 1_500_000

_LAYER_VALUES = ("ts", *SEGMENTS, "attention_cpu", "experts_cpu", "tokens_in", "tokens_routed", "active")
_STEP_VALUES = (
    "ts",
    "dur",
    "cpu",
    "sync",
    "prefill_tokens",
    "decode_tokens",
    "context_tokens",
    "running",
    "waiting",
    "kv_used",
    "kv_total",
    "preempted",
    "placement",
)
# Micro-batches of a step are added up; states are those of the last one.
_STEP_SQL = {name: f"max({name}) AS {name}" for name in ("running", "waiting", "kv_used", "kv_total", "placement")}


@dataclass(frozen=True, slots=True)
class Layers:
    """Detailed layers, [n] by (step, layer) and [n, R] by rank; ns, `ts` since the window's start. `key` [n] numbers the steps 0,
    1, 2 ...
    """

    ranks: tuple[int, ...]
    step: Ints
    layer: Ints
    key: Ints
    values: dict[str, Floats]
    clock: str
    steps_left_out: int = 0

    def __getitem__(self, name: str) -> Floats:
        return self.values[name]

    @property
    def segments(self) -> Floats:
        """[n, R, 6] in the order of SEGMENTS."""
        return np.stack([self.values[name] for name in SEGMENTS], axis=2)

    @property
    def steps(self) -> int:
        return int(self.key[-1]) + 1 if len(self.key) else 0

    def per_step(self, values: Floats) -> Floats:
        """[n] summed over the layers of each step -> [steps]."""
        return np.asarray(np.bincount(self.key, weights=values, minlength=self.steps), dtype=np.float64)

    def select(self, rows: NDArray[np.bool_]) -> Layers:
        _, key = np.unique(self.key[rows], return_inverse=True)
        picked = {name: array[rows] for name, array in self.values.items()}
        return Layers(self.ranks, self.step[rows], self.layer[rows], key.astype(np.int64), picked, self.clock, self.steps_left_out)

    def frontier(self, one_clock: bool) -> Frontier:
        return frontier(self.values["ts"], self.segments, one_clock)


@dataclass(frozen=True, slots=True)
class Steps:
    """Every step of the window, [S] by step and [S, R] by rank; ns, `ts` since the window's start."""

    ranks: tuple[int, ...]
    step: Ints
    values: dict[str, Floats]

    def __getitem__(self, name: str) -> Floats:
        return self.values[name]

    @property
    def wall(self) -> Floats:
        """[S] ns: the longest duration over the ranks, which step in lockstep."""
        return np.asarray(np.nanmax(self.values["dur"], axis=1)) if len(self.step) else np.zeros(0)

    @property
    def tokens(self) -> Floats:
        """[S] tokens of all ranks."""
        return np.asarray(np.nansum(self.values["prefill_tokens"] + self.values["decode_tokens"], axis=1))


def layer_sql(period: Period, first: int, columns: str = "*") -> str:
    return f"SELECT {columns} FROM layer WHERE step BETWEEN {first} AND {period.last} AND ts BETWEEN {period.t0} AND {period.t1}"


def read_layers(store: Store, period: Period, first: int) -> Layers:
    """Layers of the detailed steps from `first` on in which some expert received a row."""
    size = store.rows(layer_sql(period, first, "count(*) AS rows, count(DISTINCT step) AS steps"))[0]
    rows, steps = int(size["rows"]), int(size["steps"])
    left_out = 0
    if rows > MOST_ROWS:
        kept = max(1, steps * MOST_ROWS // rows)
        begin = store.rows(f"SELECT step FROM ({layer_sql(period, first, 'DISTINCT step')}) ORDER BY step DESC LIMIT 1 OFFSET {kept - 1}")
        first, left_out = int(begin[0]["step"]), steps - kept
    columns = ", ".join(("step", "micro_batch", "layer", "rank", "clock", _since(period), *_LAYER_VALUES[1:]))
    table = store.query(layer_sql(period, first, columns))
    micro = _ints(table, "micro_batch")
    keys = (_ints(table, "step"), micro, _ints(table, "layer"))
    index, ranks, arrays = _pivot(table, keys, _LAYER_VALUES)
    clock = "device" if "device" in table.column("clock").unique().to_pylist() else "host"
    _, key = np.unique(index[0] * (int(micro.max(initial=0)) + 1) + index[1], return_inverse=True)
    layers = Layers(ranks, index[0], index[2], key.astype(np.int64), arrays, clock, left_out)
    return layers.select(np.nansum(layers["tokens_routed"], axis=1) > 0) if len(layers.step) else layers


def read_steps(store: Store, period: Period) -> Steps:
    values = ", ".join(_STEP_SQL.get(name, f"sum({name}) AS {name}") for name in _STEP_VALUES[1:])
    table = store.query(
        f"SELECT step, rank, min(ts) - {period.t0} AS ts, {values} FROM step "
        f"WHERE step BETWEEN {period.first} AND {period.last} AND ts BETWEEN {period.t0} AND {period.t1} GROUP BY step, rank"
    )
    index, ranks, arrays = _pivot(table, (_ints(table, "step"),), _STEP_VALUES)
    return Steps(ranks, index[0], arrays)


def _since(period: Period) -> str:
    """Start times relative to the window: epoch nanoseconds do not fit in a float64."""
    return f"ts - {period.t0} AS ts"


def _pivot(table: pa.Table, keys: tuple[Ints, ...], values: tuple[str, ...]) -> tuple[list[Ints], tuple[int, ...], dict[str, Floats]]:
    """Long rows -> the sorted distinct keys, the ranks, and one [keys, R] array per value."""
    rank = _ints(table, "rank")
    ranks, column = np.unique(rank, return_inverse=True)
    order = np.lexsort(keys[::-1])
    stacked = np.stack([key[order] for key in keys])
    fresh = np.ones(len(order), dtype=bool)
    fresh[1:] = np.any(stacked[:, 1:] != stacked[:, :-1], axis=0)
    row = np.empty(len(order), dtype=np.int64)
    row[order] = np.cumsum(fresh) - 1
    arrays = {}
    for name in values:
        array = np.full((int(fresh.sum()), len(ranks)), np.nan)
        array[row, column] = floats(table, name)
        arrays[name] = array
    return [key[fresh] for key in stacked], tuple(int(r) for r in ranks), arrays


def _ints(table: pa.Table, name: str) -> Ints:
    return np.asarray(table.column(name).to_numpy(zero_copy_only=False)).astype(np.int64)


def floats(table: pa.Table, name: str) -> Floats:
    """A column as float64; null becomes NaN."""
    return np.asarray(table.column(name).cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)).astype(np.float64)
