"""The experts of a rank within a budget of memory: fetched when needed, prefetched for the next layer, computed in the order they are here.

A step computes what is in memory while one thread brings in the rest. Meanwhile the router of the next layer has been asked with the
rows of this one: residual streams change slowly from layer to layer, so that it mostly names the experts that will be needed (the idea
is that of arXiv 2312.17238, section 3.2). What it names is fetched after what is needed now, and never in place of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import torch
from torch import Tensor

from runtime.arch import Activation
from runtime.layers.experts import expert_rows
from runtime.step_rows import RowSink
from runtime.tiers.account import TierAccount
from runtime.tiers.shelf import Key, Shelf
from runtime.tiers.source import ExpertSource
from runtime.weight_hash import expert_hash
from traces.errors import UsageError

LEAST_FRAMES = 2  # one is computed with while another is read


class ExpertTier:
    """All layers of a rank. The step loop's thread calls everything here; one thread of its own reads."""

    def __init__(self, source: ExpertSource, budget: int, recorder: RowSink | None, rank: int) -> None:
        """`budget` in bytes. UsageError when it does not hold two experts."""
        count = min(budget // source.nbytes, len(source.layers) * source.slots)
        if count < LEAST_FRAMES:
            raise UsageError(
                f"--expert-memory {budget} bytes holds {budget // source.nbytes} experts of {source.nbytes} bytes",
                f"give at least {LEAST_FRAMES * source.nbytes} bytes",
            )
        self.source = source
        self.shelf = Shelf(count)
        self.memory = source.frames(count)
        self.account = TierAccount(recorder, rank, count, len(source.layers) * source.slots, source.nbytes)
        self._pending: dict[Key, Future[None]] = {}
        self._ahead: dict[int, set[Key]] = {}  # asked for before its layer began, by layer
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="experts")

    def bank(self, layer: int) -> TieredBank:
        return TieredBank(self, layer)

    def hashes(self) -> Tensor:
        """Identity of every expert of this rank [layers, slots], each read once: the tiers start with those that were read last."""
        found = []
        for layer in self.source.layers:
            for slot in range(self.source.slots):
                key = (layer, slot)
                self.shelf.need([key])
                self._bring(key, must=True)
                frame = self.shelf.frame_of(key)
                assert frame is not None
                found.append(expert_hash([part[frame] for part in self.memory.parts()]))
                self.shelf.release(key)
        return torch.tensor(found, dtype=torch.int64).view(len(self.source.layers), -1)

    def run(self, layer: int, rows: Tensor, counts: list[int], activation: Activation, ahead: Callable[[], None]) -> Tensor:
        """rows [N, H] sorted by slot, counts [slots] -> [N, H], as `runtime.layers.experts.run_experts` computes them. `ahead` is called
        when what is needed now has been asked for: it may `expect` experts of the next layer."""
        active = [(layer, slot) for slot, count in enumerate(counts) if count]
        sizes = [counts[slot] for _, slot in active]
        out = torch.empty_like(rows)
        places = dict(zip(active, zip(rows.split_with_sizes(sizes), out.split_with_sizes(sizes), strict=True), strict=True))
        missing = self.shelf.need(active)
        guessed = self._ahead.pop(layer, set())
        now = self.account.now
        now.needed += len(active)
        now.misses += len(missing)
        now.prefetch_used += len(guessed & set(active))
        for key in missing:
            self._fetch(key, must=True)
        ahead()
        for key in active:
            if key not in missing:
                self._compute(key, *places[key], activation)
        while missing:
            for key in self._arrived(missing):
                missing.remove(key)
                self._compute(key, *places[key], activation)
        return out

    def _compute(self, key: Key, rows: Tensor, out: Tensor, activation: Activation) -> None:
        frame = self.shelf.frame_of(key)
        assert frame is not None
        expert_rows(rows, self.memory, frame, activation, out)
        self.shelf.release(key)

    def expect(self, layer: int, slots: list[int]) -> None:
        """These slots of a layer will likely be needed soon, likeliest first."""
        room = self.shelf.frames // 2  # a guess never holds the better part of the memory
        keys = [(layer, slot) for slot in slots[:room]]
        absent = [key for key in keys if self.shelf.frame_of(key) is None]
        self._ahead[layer] = set(absent)
        self.shelf.expect(keys)
        self.account.now.prefetched += len(absent)
        for key in absent:
            self._fetch(key, must=False)

    def end_step(self, step: int) -> None:
        self.shelf.step = step
        self.account.step(step, self.shelf.resident, self.shelf.demoted)

    def close(self) -> None:
        self.shelf.end()
        self._reader.shutdown(wait=True, cancel_futures=True)
        self.account.flush(self.shelf.resident)

    def _arrived(self, missing: list[Key]) -> list[Key]:
        """Those of `missing` that are here now: waits for one, and counts the wait. Raises what reading raised."""
        here = [key for key in missing if self.shelf.frame_of(key) is not None]
        if here:
            return here
        began = time.perf_counter_ns()
        wait([self._pending[key] for key in missing], return_when=FIRST_COMPLETED)
        self.account.now.stall_ns += time.perf_counter_ns() - began
        for key in missing:
            pending = self._pending[key]
            if pending.done():
                pending.result()
                if self.shelf.frame_of(key) is None:  # it had only been guessed, and there was no room
                    self._fetch(key, must=True)
        return [key for key in missing if self.shelf.frame_of(key) is not None]

    def _fetch(self, key: Key, must: bool) -> None:
        known = self._pending.get(key)
        if known is None or known.done():
            self._pending[key] = self._reader.submit(self._bring, key, must)

    def _bring(self, key: Key, must: bool) -> None:
        if self.shelf.frame_of(key) is not None:
            return
        frame = self.shelf.take(wait=must)
        if frame is None:
            return
        began = time.perf_counter_ns()
        try:
            nbytes = self.source.read(key, self.memory, frame)
        except BaseException:
            self.shelf.give_back(frame)
            raise
        self.shelf.put(key, frame)
        self.account.fetched(nbytes, time.perf_counter_ns() - began)


class TieredBank:
    """The experts of one layer, as its mixture sees them: `run` instead of matrices."""

    __slots__ = ("_layer", "_tier", "slots")

    def __init__(self, tier: ExpertTier, layer: int) -> None:
        self._tier, self._layer = tier, layer
        self.slots = tier.source.slots

    def run(self, rows: Tensor, counts: list[int], activation: Activation, ahead: Callable[[], None]) -> Tensor:
        return self._tier.run(self._layer, rows, counts, activation, ahead)
