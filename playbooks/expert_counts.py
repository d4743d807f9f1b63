"""Expert counts and slot maps of the present placement, as arrays: what the null, the hot experts and a better placement derive from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from playbooks.attribution.placement_gain import Map
from playbooks.measured import Floats
from playbooks.window import SECOND, Period
from traces.store import Store

# Counts are judged in windows of this length: the runtime flushes them every second, not at the same instant on all ranks.
BUCKET = 2 * SECOND


@dataclass(frozen=True, slots=True)
class ExpertCounts:
    """Per MoE layer of the model: the slot map in force and rows per logical expert [W, E] in W buckets of time."""

    version: int
    ranks: int
    maps: dict[int, Map]
    counts: dict[int, Floats]

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers with a map and with counts, in model order."""
        return tuple(sorted(layer for layer in self.maps if self.counts.get(layer) is not None))


def map_sql(version: int) -> str:
    return (
        f"SELECT layer, max(placement) AS placement, arg_max(physical_to_logical, placement) AS slots FROM placement "
        f"WHERE placement <= {version} GROUP BY layer ORDER BY layer"
    )


def counts_sql(period: Period, version: int) -> str:
    return (
        f"SELECT ts // {BUCKET} AS bucket, layer, tokens FROM expert_load "
        f"WHERE placement = {version} AND ts BETWEEN {period.t0} AND {period.t1 + 2 * SECOND} AND step_last >= {period.first}"
    )


def read(store: Store, period: Period, version: int, ranks: int) -> ExpertCounts:
    """A window of counts that ends up to two seconds after the last step belongs to it: it is written when it is full."""
    maps = {int(row["layer"]): tuple(int(e) for e in row["slots"]) for row in store.rows(map_sql(version))}
    gathered: dict[int, dict[int, Floats]] = {}
    for row in store.rows(counts_sql(period, version)):
        buckets = gathered.setdefault(int(row["layer"]), {})
        tokens = np.asarray(row["tokens"], dtype=np.float64)
        buckets[int(row["bucket"])] = buckets.get(int(row["bucket"]), 0.0) + tokens
    counts = {layer: np.stack([buckets[b] for b in sorted(buckets)]) for layer, buckets in gathered.items()}
    return ExpertCounts(version, ranks, maps, counts)
