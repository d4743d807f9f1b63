"""The plan against what a run of ours really used, per rank and phase."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from probes.checkpoint import read_config
from runtime.arch import read_arch
from runtime.budget.cache import state_bytes
from runtime.budget.compared import ComparedLine, Comparison
from runtime.budget.layout import Layout, Stage, stages
from runtime.budget.precision import computed
from runtime.budget.weights import SEEING, Costs
from runtime.inventory.model import Inventory
from runtime.inventory.opening import open_inventory
from traces.errors import UsageError
from traces.run import Run
from traces.store import Store, open_run

TOLERANCE = 0.05
JUDGED_FROM = 32 << 20
"""Bytes from which a rise of resident memory is compared: thread stacks, allocator arenas and code make a few MiB of noise."""
TAIL_ITEM = 4  # convolution tails are kept in float32 (runtime/recurrent.py)
FLOAT8_ITEM = 1 + 4 / 64  # a byte, and a float32 scale for every 64 values (runtime/kv_pool.py)
ITEM = {"float32": 4, "bfloat16": 2, "float16": 2}

_KEPT = """
SELECT load.rank AS rank, sum(load.bytes_kept) AS value FROM load
JOIN (SELECT rank, max(ts) AS ended FROM memory WHERE phase = 'load' GROUP BY rank) AS phase ON phase.rank = load.rank
WHERE load.ts <= phase.ended GROUP BY load.rank
"""  # without what a later placement brought in


@dataclass(frozen=True, slots=True)
class Served:
    """What a run says about itself."""

    layout: Layout
    item: int  # bytes of a weight, as computed
    block_size: int
    kv_item: float  # bytes of a cached value
    sequences: int  # that may run at once, each with a recurrent state where the model has one
    sees: bool = True  # its vision tower was loaded
    stage_layers: tuple[int, ...] = ()  # layers of each stage; empty: evenly many


def compare(run: Run) -> tuple[Inventory, Served, Comparison]:
    """UsageError for a run of another engine, or one that recorded no memory."""
    info = run.info
    if info.engine != "workbench" or not info.model_path:
        raise UsageError(f"run {run.id} was not served by this runtime ({info.engine or 'no engine'})", "verify a run of `workbench serve`")
    inventory = open_inventory(info.model_path)
    with open_run(run) as store:
        served = _served(run, store, inventory)
        lines = list(_lines(store, inventory, served))
    if not lines:
        raise UsageError(f"run {run.id} holds no memory samples", "serve without --no-telemetry")
    judged = [line.within for line in lines if line.within is not None]
    return inventory, served, Comparison(run.id, TOLERANCE, all(judged) if judged else None, lines)


def _served(run: Run, store: Store, inventory: Inventory) -> Served:
    config = run.info.config
    sizes = run.info.layout
    dtype = str(config.get("dtype", "auto"))
    if dtype == "auto":
        rows = store.rows("SELECT any_value(device) AS device FROM resource WHERE rank IS NOT NULL")
        on_cpu = not rows or str(rows[0]["device"]).startswith("cpu")
        dtype = "float32" if on_cpu else "bfloat16"
    tp, pp, dp = (int(sizes.get(name, 1)) for name in ("tp", "pp", "dp"))
    slots = store.rows("SELECT max(len(physical_to_logical)) AS slots FROM placement")[0]["slots"]
    experts = inventory.mixture.experts if inventory.mixture else 0
    redundant = max(0, int(slots or experts) - experts)
    item, block, sequences = ITEM[dtype], int(config.get("block_size", 16)), int(config.get("max_sequences", 64))
    kv_item = FLOAT8_ITEM if config.get("kv_dtype") == "fp8" else item
    sees = read_arch(read_config(run.info.model_path)).vision is not None
    return Served(Layout(tp, pp, dp, redundant), item, block, kv_item, sequences, sees, tuple(config.get("stage_layers") or ()))


def _lines(store: Store, inventory: Inventory, served: Served) -> Iterable[ComparedLine]:
    layout = served.layout
    costs = Costs(inventory, computed(served.item))
    # Known and not loaded (ArchSpec.skipped): draft layers, and a vision tower that the config does not describe.
    unused = {"mtp"} if served.sees else {"mtp", *SEEING}
    plan = stages(inventory.layers, layout.pp, served.stage_layers)
    rises = _rises(store)
    kept = _by_rank(store, _KEPT)
    blocks = _by_rank(store, "SELECT rank, max(kv_total) AS value FROM step GROUP BY rank")
    for rank in sorted({rank for rank, _ in rises}):
        stage = plan[layout.stage_of(rank)]
        weights = sum(size for kind, size in costs.weights(layout, stage, rank % layout.tp).items() if kind not in unused)
        yield _line(rank, "load", "weights", "bytes the loader kept", weights, kept.get(rank), always=True)
        yield _line(rank, "load", "weights", "rise of anonymous or device memory", weights, rises.get((rank, "load")))
        if rank in blocks:
            cache = cached_bytes(inventory, served, stage, blocks[rank] * served.block_size)
            yield _line(rank, "kv_cache", "kv", "rise of anonymous or device memory", cache, rises.get((rank, "kv_cache")))


def cached_bytes(inventory: Inventory, served: Served, stage: Stage, tokens: int) -> int:
    """What this runtime keeps on a rank of `stage` for `tokens` tokens: all of them behind a window too, and a state for every sequence."""
    layout = served.layout
    whole = sum(cache.values / min(layout.tp, cache.heads) for cache in inventory.caches[stage.first : stage.stop]) * tokens
    return math.ceil(whole * served.kv_item) + served.sequences * state_bytes(inventory, layout, stage, TAIL_ITEM)


def _rises(store: Store) -> dict[tuple[int, str], int]:
    """(rank, phase) -> bytes that memory rose by from the first to the last sample of the phase; of the device where it is counted."""
    query = (
        "SELECT rank, phase, arg_max(rss_anon, ts) - arg_min(rss_anon, ts) AS anon, "
        "arg_max(device_allocated, ts) - arg_min(device_allocated, ts) AS device FROM memory WHERE rank IS NOT NULL GROUP BY rank, phase"
    )
    rows: list[dict[str, Any]] = store.rows(query)
    return {(int(row["rank"]), str(row["phase"])): int(row["anon"] if row["device"] is None else row["device"]) for row in rows}


def _by_rank(store: Store, query: str) -> dict[int, int]:
    return {int(row["rank"]): int(row["value"]) for row in store.rows(query) if row["rank"] is not None and row["value"] is not None}


def _line(rank: int, phase: str, line: str, measure: str, planned: int, used: int | None, always: bool = False) -> ComparedLine:
    difference = None if used is None or not planned else (used - planned) / planned
    judged = difference is not None and (always or planned >= JUDGED_FROM)
    return ComparedLine(
        rank, phase, line, measure, planned, used, difference, abs(difference) <= TOLERANCE if judged and difference is not None else None
    )
