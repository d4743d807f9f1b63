"""A simulated engine whose faults are known: ranks in lockstep, a scheduler, a router with natural skew, a host that takes cores away.

It writes real rows into real DuckDB stores through the schema and the views. What is injected is a property of the simulated machine;
nothing in the store names it. Expected verdicts come from the injection, and from the machine's true costs, never from the code under
test.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict, deque
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from traces import schema
from traces.database import connect
from traces.run import Run, create_run

MS = 1_000_000
T0 = 1_790_000_000_000_000_000


@dataclass(frozen=True)
class Machine:
    """Costs in ns. Defaults resemble the shipped model on CPU ranks."""

    ranks: int = 4
    layers: int = 4
    experts: int = 16
    top_k: int = 2
    max_tokens: int = 192
    max_sequences: int = 12
    attention: float = 6_000.0  # per token
    context: float = 12.0  # per cached token
    attention_fixed: float = 300_000.0
    row: float = 14_000.0
    active: float = 45_000.0
    router: float = 90_000.0
    tiny: float = 180_000.0
    header: float = 250_000.0
    other: float = 600_000.0
    bytes_per_row: int = 512
    bandwidth: float = 1.2e9
    noise: float = 0.06
    hosts: tuple[str, ...] = ("node0",) * 4
    detail_every: int = 1
    cpu_clock: bool = True
    remember: bool = False  # keeps what each fault really cost


@dataclass(frozen=True)
class Fault:
    """What is wrong with the machine. Defaults: nothing."""

    packed: float = 0.0  # 0..1: how far the hottest experts sit together on rank `where`
    hot: float = 1.0  # the first expert of rank `where` is this much more popular than its like, in every layer
    slow: float = 1.0  # rank `where` computes this much slower, CPU time too
    interrupted: float = 1.0  # rank `where` is stopped by its quota until its wall time is this multiple of its CPU time
    gc_ms: float = 0.0  # pause of rank `where`
    gc_every: int = 20  # steps
    contended: float = 0.0  # chance per ms of CPU of losing the core for a slice, on all ranks
    slow_link: float = 1.0  # rank `where` sends and receives at this fraction of the bandwidth
    rebalance_every: int = 0  # steps
    rebalance_ms: float = 0.0
    drift: bool = False  # rank `where` has another collective library
    encode_ms: float = 0.0  # a picture is encoded inside the step that admits it
    sticky: float = 0.0  # chance that the router sends a request to rank `where`, whatever the loads
    compile_ms: float = 0.0  # the first step of every shape stops all ranks
    compile_told: bool = True  # ... and the engine records it
    where: int = 2


@dataclass(frozen=True)
class Traffic:
    """Arrivals per second over all ranks, lengths in tokens, and the share of requests with a picture."""

    rate: float = 12.0
    prompt: float = 160.0
    answer: float = 14.0
    image_share: float = 0.4
    image_tokens: int = 96
    requests: int = 220


@dataclass
class Sequence:
    trace: str
    arrival: float
    rank: int
    text: int
    image: int
    answer: int
    admitted: float = -1.0
    cached: int = 0
    produced: int = 0
    first: float = -1.0
    encoded: tuple[float, float] | None = None
    tokens: list[tuple[float, int]] = field(default_factory=list)

    @property
    def prompt(self) -> int:
        return self.text + self.image


class Engine:
    """Runs the traffic and keeps rows by table. `truth` holds the real costs of what was injected, per step."""

    def __init__(self, machine: Machine, fault: Fault, traffic: Traffic, seed: int, placement: str = "contiguous", start: int = T0) -> None:
        self.machine, self.fault, self.traffic = machine, fault, traffic
        self.rng = np.random.default_rng(seed)
        self.rows: dict[str, list[dict]] = defaultdict(list)
        self.popularity = self._popularity()
        self.slots = self._placement(placement)
        self.version, self.step, self.start = 0, 0, start
        self.clock = np.zeros(machine.ranks)
        self.truth: dict[str, list[float]] = defaultdict(list)
        self.cost: dict[str, float] = defaultdict(float)
        self.compiled: set[tuple[int, ...]] = set()
        self.window = self._fresh_window()
        self.sent_sample = 0.0
        self.throttled = np.zeros(machine.ranks)
        self.queue_delay = np.zeros(machine.ranks)

    # -- the model ------------------------------------------------------------------------------------------------------------------

    def _popularity(self) -> np.ndarray:
        """[layer, modality, expert] natural skew: text cv 0.25-0.4, image tokens prefer few experts (demo_model.md section 8)."""
        machine = self.machine
        text = self.rng.lognormal(0.0, 0.30, (machine.layers, machine.experts))
        image = self.rng.lognormal(0.0, 0.85, (machine.layers, machine.experts))
        both = np.stack([text, image], axis=1)
        both[:, :, self.fault.where * machine.experts // machine.ranks] *= self.fault.hot
        return both / both.sum(axis=2, keepdims=True)

    def _load(self, layer: int) -> np.ndarray:
        """[E] expected share of rows per expert in this traffic (sampling without replacement flattens it a little; close enough here)."""
        images = self.traffic.image_share * self.traffic.image_tokens
        text = self.traffic.prompt + self.traffic.answer
        return (self.popularity[layer, 0] * text + self.popularity[layer, 1] * images) / (text + images)

    def _placement(self, kind: str) -> np.ndarray:
        """[L, S] slot -> expert."""
        machine = self.machine
        size = machine.experts // machine.ranks
        slots = np.tile(np.arange(machine.experts), (machine.layers, 1))
        for layer in range(machine.layers):
            order = np.argsort(-self._load(layer))
            if kind == "balanced":
                slots[layer] = _spread(self._load(layer), machine.ranks)
            if self.fault.packed > 0:
                hot = list(order[: max(1, round(size * self.fault.packed))])
                rest = [e for e in slots[layer] if e not in hot]
                where = self.fault.where * size
                slots[layer] = [*rest[:where], *hot, *rest[where:]]
        return slots

    def _route(self, layer: int, text: np.ndarray, image: np.ndarray) -> np.ndarray:
        """[R, E] assignments made by each rank's tokens: k distinct experts a token, by Gumbel top-k."""
        machine = self.machine
        counts = np.zeros((machine.ranks, machine.experts))
        for modality, tokens in ((0, text), (1, image)):
            total = int(tokens.sum())
            if not total:
                continue
            scores = np.log(self.popularity[layer, modality]) + self.rng.gumbel(size=(total, machine.experts))
            chosen = np.argpartition(-scores, machine.top_k - 1, axis=1)[:, : machine.top_k]
            owner = np.repeat(np.arange(machine.ranks), tokens)
            np.add.at(counts, (owner[:, None], chosen), 1)
        return counts

    # -- the host -------------------------------------------------------------------------------------------------------------------

    def _run(self, cpu: np.ndarray, speed: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """CPU ns of each rank for `cpu` ns of work, and the wall ns it takes on this host."""
        fault, machine = self.fault, self.machine
        cpu = cpu * np.exp(self.rng.normal(0.0, machine.noise, machine.ranks))
        if speed:
            cpu[fault.where] *= fault.slow
        wall = cpu * (1.0 + 0.02 * self.rng.random(machine.ranks))
        if fault.contended:
            slices = self.rng.poisson(cpu / MS * fault.contended)
            lost = np.array([self.rng.exponential(2.5 * MS, n).sum() for n in slices])
            self.queue_delay += lost
            wall += lost
        if fault.interrupted > 1.0:
            stops = self.rng.poisson(cpu[fault.where] * (fault.interrupted - 1.0) / (12.0 * MS))
            lost = self.rng.exponential(12.0 * MS, stops).sum()
            self.throttled[fault.where] += lost
            wall[fault.where] += lost
        return cpu, wall

    def _wake(self) -> np.ndarray:
        late = 0.35 * MS if self.fault.contended else 0.02 * MS
        return self.rng.exponential(late, self.machine.ranks)

    # -- a step ---------------------------------------------------------------------------------------------------------------------

    def run(self) -> Engine:
        sequences = self._arrivals()
        running: list[list[Sequence]] = [[] for _ in range(self.machine.ranks)]
        waiting: list[deque[Sequence]] = [deque() for _ in range(self.machine.ranks)]
        coming = deque(sequences)
        while coming or any(running) or any(waiting):
            now = float(self.clock.max())
            if not any(running) and not any(waiting) and coming and coming[0].arrival > now:
                self.clock[:] = coming[0].arrival
                now = coming[0].arrival
            while coming and coming[0].arrival <= now:
                sequence = coming.popleft()
                sequence.rank = min(
                    range(self.machine.ranks), key=lambda r: (len(running[r]) + len(waiting[r]), (r + self.step) % self.machine.ranks)
                )
                if self.fault.sticky and self.rng.random() < self.fault.sticky:
                    sequence.rank = self.fault.where
                waiting[sequence.rank].append(sequence)
            self._step(running, waiting, now)
        self._flush_window(float(self.clock.max()))
        self._requests(sequences)
        return self

    def _arrivals(self) -> list[Sequence]:
        traffic, rng = self.traffic, self.rng
        times = np.cumsum(rng.exponential(1e9 / traffic.rate, traffic.requests)) + float(self.clock.max())
        return [
            Sequence(
                trace=f"{rng.integers(1 << 62):032x}",
                arrival=float(time),
                rank=0,
                text=max(4, int(rng.lognormal(np.log(traffic.prompt), 0.5))),
                image=traffic.image_tokens if rng.random() < traffic.image_share else 0,
                answer=1 + int(rng.geometric(1 / traffic.answer)),
            )
            for time in times
        ]

    def _schedule(self, running: list[Sequence], waiting: deque[Sequence], now: float) -> list[tuple[Sequence, int]]:
        budget, chunks = self.machine.max_tokens, []
        for sequence in running:
            need = 1 if sequence.cached >= sequence.prompt else min(sequence.prompt - sequence.cached, budget)
            if budget <= 0:
                break
            chunks.append((sequence, need))
            budget -= need
        while waiting and budget > 0 and len(running) < self.machine.max_sequences:
            sequence = waiting.popleft()
            sequence.admitted = now
            running.append(sequence)
            chunks.append((sequence, min(sequence.prompt, budget)))
            budget -= chunks[-1][1]
        return chunks

    def _step(self, running: list[list[Sequence]], waiting: list[deque[Sequence]], now: float) -> None:
        machine, fault = self.machine, self.fault
        start = self.clock.copy()
        plans = [self._schedule(running[r], waiting[r], now) for r in range(machine.ranks)]
        entered = self.clock.copy()
        self.clock = np.full(machine.ranks, entered.max()) + machine.header + self._wake()
        sync = self.clock - entered
        self._encode(plans, now)
        text, image, context, prefill, decode = self._batch(plans)
        self._compile(prefill, decode)
        pauses = self._collections()
        cpu_total = np.zeros(machine.ranks)
        excess = 0.0
        for layer in range(machine.layers):
            pause = np.where(np.arange(machine.ranks) == fault.where, pauses[layer], 0.0)
            cpu, ideal, actual = self._layer(layer, text, image, context, pause)
            cpu_total += cpu
            excess += actual - ideal
            self.truth["rows"].append(float((text + image).sum() * machine.top_k))
        cpu, wall = self._run(np.full(machine.ranks, machine.other))
        self.clock += wall
        cpu_total += cpu
        self.truth["excess"].append(excess)
        self._advance(plans, running)
        held = np.array([[len(running[r]), len(waiting[r])] for r in range(machine.ranks)])
        for rank in range(machine.ranks):
            self.rows["step"].append(
                {
                    "step": self.step,
                    "rank": rank,
                    "stage": 0,
                    "micro_batch": 0,
                    "ts": self._ns(start[rank]),
                    "dur": int(self.clock[rank] - start[rank]),
                    "cpu": int(cpu_total[rank]) if machine.cpu_clock else None,
                    "sync": int(sync[rank]),
                    "prefill_tokens": int(prefill[rank]),
                    "decode_tokens": int(decode[rank]),
                    "context_tokens": int(context[rank]),
                    "running": int(held[rank, 0]),
                    "waiting": int(held[rank, 1]),
                    "kv_used": int(held[rank, 0]) * 10,
                    "kv_total": 400,
                    "preempted": 0,
                    "graph": None,
                    "placement": self.version,
                    "requests": [sequence.trace for sequence, _ in plans[rank]],
                }
            )
        self.truth["wall"].append(float((self.clock - start).max()))
        self._between_steps()
        self.step += 1

    def _encode(self, plans: list[list[tuple[Sequence, int]]], now: float) -> None:
        for rank, plan in enumerate(plans if self.fault.encode_ms else []):
            for sequence, _ in plan:
                if sequence.image and not sequence.encoded:
                    begin = float(self.clock[rank])
                    self.clock[rank] += self.fault.encode_ms * MS * float(self.rng.uniform(0.9, 1.1))
                    sequence.encoded = (begin, float(self.clock[rank]))

    def _compile(self, prefill: np.ndarray, decode: np.ndarray) -> None:
        shape = tuple(int(np.ceil(np.log2(count.max() + 1))) for count in (prefill, decode))
        if not self.fault.compile_ms or shape in self.compiled:
            return
        self.compiled.add(shape)
        begin, dur = float(self.clock.max()), self.fault.compile_ms * MS
        self.clock = np.full(self.machine.ranks, begin + dur)
        if self.fault.compile_told:
            row = {"ts": self._ns(begin), "dur": int(dur), "resource_id": "rank0", "rank": 0, "kind": "compile", "attrs": "{}"}
            self.rows["event"].append(row)

    def _batch(self, plans: list[list[tuple[Sequence, int]]]) -> tuple[np.ndarray, ...]:
        ranks = self.machine.ranks
        text, image, context, prefill, decode = (np.zeros(ranks, dtype=np.int64) for _ in range(5))
        for rank, plan in enumerate(plans):
            for sequence, need in plan:
                context[rank] += sequence.cached
                if sequence.cached >= sequence.prompt:
                    decode[rank] += 1
                    text[rank] += 1
                    continue
                prefill[rank] += need
                pictured = max(0, min(sequence.image, sequence.cached + need) - min(sequence.image, sequence.cached))
                image[rank] += pictured
                text[rank] += need - pictured
        return text, image, context, prefill, decode

    def _collections(self) -> np.ndarray:
        """[L] ns of garbage collection in each layer of rank `where`, with its event."""
        pauses = np.zeros(self.machine.layers)
        if self.fault.gc_ms and self.step % self.fault.gc_every == self.fault.gc_every - 1:
            dur = self.fault.gc_ms * MS * float(self.rng.uniform(0.9, 1.1))
            pauses[self.rng.integers(self.machine.layers)] = dur
        return pauses

    def _layer(
        self, layer: int, text: np.ndarray, image: np.ndarray, context: np.ndarray, pause: np.ndarray
    ) -> tuple[np.ndarray, float, float]:
        machine = self.machine
        begin, tokens = self.clock.copy(), text + image
        counts = self._route(layer, text, image)
        slots = self.slots[layer]
        per_slot = counts[:, slots]  # [R, S]
        size = machine.experts // machine.ranks
        to_rank = per_slot.reshape(machine.ranks, machine.ranks, size).sum(axis=2)  # [source, destination]
        physical = per_slot.sum(axis=0).reshape(machine.ranks, size)
        rows, active = physical.sum(axis=1), (physical > 0).sum(axis=1)
        attention_cpu, attention = self._run(
            np.where(tokens > 0, machine.attention_fixed, 20_000.0) + machine.attention * tokens + machine.context * context
        )
        if pause.any():
            rank = int(np.argmax(pause))
            self.rows["event"].append(
                {
                    "ts": self._ns(begin[rank]),
                    "dur": int(pause.max()),
                    "resource_id": f"rank{rank}",
                    "rank": rank,
                    "kind": "gc",
                    "attrs": json.dumps({"generation": 2, "collected": 0}),
                }
            )
        attention, attention_cpu = attention + pause, attention_cpu + pause
        router_cpu, router = self._run(np.full(machine.ranks, machine.router))
        before_experts = attention + router
        times = [begin, begin + attention, begin + attention + router]
        times.append(np.full(machine.ranks, times[-1].max()) + machine.tiny + self._wake())
        times.append(self._transfer(times[-1], to_rank))
        work = machine.row * rows + machine.active * active
        experts_cpu, experts = self._run(work)
        if machine.remember:
            self._remember(before_experts, experts, pause, work)
        times.append(times[-1] + experts)
        times.append(self._transfer(times[-1], to_rank.T))
        self.clock = times[-1]
        segments = np.diff(np.stack(times), axis=0)
        if self.step % machine.detail_every == 0:
            self._layer_rows(layer, begin, segments, attention_cpu, experts_cpu, tokens, rows, active)
            self._collective_rows(layer, times, to_rank)
        self._count(layer, counts, physical, tokens)
        slow = np.ones(machine.ranks)
        slow[self.fault.where] = self.fault.slow
        return attention_cpu + router_cpu + experts_cpu, float((work * 1.0).mean()), float(work.max())

    def _remember(self, attention: np.ndarray, experts: np.ndarray, pause: np.ndarray, work: np.ndarray) -> None:
        """What each fault really cost in this layer, ns: its mean effect over all orders of mending, from the machine's own numbers."""
        slow = np.ones(self.machine.ranks)
        slow[self.fault.where] = self.fault.slow

        def computing(present: set[str]) -> float:
            first, second = attention - pause, experts.copy()
            if "speed" not in present:
                first, second = first / slow, second / slow
            if "imbalance" not in present:
                second = second * np.where(work > 0, work.mean() / np.maximum(work, 1.0), 0.0)
            if "pause" in present:
                first = first + pause
            return float(first.max() + second.max())

        names = ("imbalance", "speed", "pause")
        known = {frozenset(some): computing(set(some)) for size in range(4) for some in itertools.combinations(names, size)}
        for order in itertools.permutations(names):
            present = frozenset(names)
            for name in order:
                self.cost[name] += (known[present] - known[present - {name}]) / 6
                present = present - {name}

    def _transfer(self, enter: np.ndarray, to_rank: np.ndarray) -> np.ndarray:
        machine = self.machine
        speed = np.full(machine.ranks, machine.bandwidth)
        speed[self.fault.where] *= self.fault.slow_link
        out = (to_rank.sum(axis=1) - np.diag(to_rank)) * machine.bytes_per_row
        came = (to_rank.sum(axis=0) - np.diag(to_rank)) * machine.bytes_per_row
        slowest = float(np.max(np.maximum(out, came) / speed)) * 1e9
        return np.full(machine.ranks, enter.max()) + machine.tiny + slowest + self._wake()

    def _ns(self, at: float) -> int:
        return self.start + int(at)

    def _layer_rows(self, layer, begin, segments, attention_cpu, experts_cpu, tokens, rows, active) -> None:
        names = ("attention", "router", "exchange", "dispatch", "experts", "combine")
        known = self.machine.cpu_clock
        for rank in range(self.machine.ranks):
            self.rows["layer"].append(
                {
                    "step": self.step,
                    "rank": rank,
                    "stage": 0,
                    "micro_batch": 0,
                    "layer": layer,
                    "ts": self._ns(begin[rank]),
                    **{name: int(segments[i, rank]) for i, name in enumerate(names)},
                    "attention_cpu": int(attention_cpu[rank]) if known else None,
                    "experts_cpu": int(experts_cpu[rank]) if known else None,
                    "tokens_in": int(tokens[rank]),
                    "tokens_routed": int(rows[rank]),
                    "active": int(active[rank]),
                    "clock": "host",
                }
            )

    def _collective_rows(self, layer: int, times: list[np.ndarray], to_rank: np.ndarray) -> None:
        for number, (op, place) in enumerate((("exchange", 2), ("dispatch", 3), ("combine", 5))):
            moved = to_rank if op == "dispatch" else to_rank.T if op == "combine" else np.zeros_like(to_rank)
            for rank in range(self.machine.ranks):
                self.rows["collective"].append(
                    {
                        "step": self.step,
                        "rank": rank,
                        "group": "ep",
                        "seq": (self.step * self.machine.layers + layer) * 3 + number,
                        "layer": layer,
                        "op": op,
                        "enter": self._ns(times[place][rank]),
                        "exit": self._ns(times[place + 1][rank]),
                        "sent": (moved[rank] * self.machine.bytes_per_row).astype(int).tolist(),
                        "received": (moved[:, rank] * self.machine.bytes_per_row).astype(int).tolist(),
                        "clock": "host",
                    }
                )

    # -- windows, placements, the host --------------------------------------------------------------------------------------------------

    def _fresh_window(self) -> dict:
        machine = self.machine
        size = machine.experts // machine.ranks
        return {
            "first": self.step if hasattr(self, "step") else 0,
            "tokens": np.zeros((machine.layers, machine.ranks, machine.experts)),
            "physical": np.zeros((machine.layers, machine.ranks, size)),
            "in": np.zeros((machine.layers, machine.ranks)),
            "opened": float(self.clock.max()) if hasattr(self, "clock") else 0.0,
        }

    def _count(self, layer: int, counts: np.ndarray, physical: np.ndarray, tokens: np.ndarray) -> None:
        self.window["tokens"][layer] += counts
        self.window["physical"][layer] += physical
        self.window["in"][layer] += tokens

    def _flush_window(self, now: float) -> None:
        window, last = self.window, self.step - 1
        if last < window["first"]:
            return
        for layer in range(self.machine.layers):
            for rank in range(self.machine.ranks):
                self.rows["expert_load"].append(
                    {
                        "ts": self._ns(now),
                        "step_first": window["first"],
                        "step_last": last,
                        "rank": rank,
                        "layer": layer,
                        "placement": self.version,
                        "steps": last - window["first"] + 1,
                        "tokens_in": int(window["in"][layer, rank]),
                        "tokens": window["tokens"][layer, rank].astype(int).tolist(),
                        "physical": window["physical"][layer, rank].astype(int).tolist(),
                        "dropped": 0,
                        "padding": 0,
                        "imbalance_p50": None,
                        "imbalance_p99": None,
                        "above_null": None,
                    }
                )
        self.window = self._fresh_window()

    def switch(self, slots: np.ndarray, stall_ms: float, source: str = "rebalance") -> None:
        """A new placement between two steps."""
        self._flush_window(float(self.clock.max()))
        self.slots, self.version = slots, self.version + 1
        self.clock = np.full(self.machine.ranks, self.clock.max() + stall_ms * MS)
        self._placement_rows(source, stall_ms)

    def _placement_rows(self, source: str, stall_ms: float) -> None:
        for layer in range(self.machine.layers):
            self.rows["placement"].append(
                {
                    "placement": self.version,
                    "ts": self._ns(self.clock.max()),
                    "step": self.step,
                    "layer": layer,
                    "physical_to_logical": self.slots[layer].astype(int).tolist(),
                    "source": source,
                    "reason": "",
                    "moved": 0,
                    "stall": int(stall_ms * MS),
                    "slot_hashes": [],
                }
            )

    def _between_steps(self) -> None:
        now, fault = float(self.clock.max()), self.fault
        if self.step == 0:
            self.rows["placement"] += []
        if now - self.window["opened"] > 1e9:
            self.step += 1
            self._flush_window(now)
            self.step -= 1
            self.window["first"] = self.step + 1
        if now - self.sent_sample > 1e9:
            self.sent_sample = now
            self._host_rows(now)
        if fault.rebalance_every and self.step and self.step % fault.rebalance_every == 0:
            self.step += 1
            self.switch(self.slots, fault.rebalance_ms)
            self.step -= 1
            self.window["first"] = self.step + 1

    def _host_rows(self, now: float) -> None:
        psi = float(np.clip(self.rng.normal(0.75, 0.1) if self.fault.contended else self.rng.normal(0.08, 0.03), 0.0, 1.0))
        for rank in range(self.machine.ranks):
            self.rows["host"].append(
                {
                    "ts": self._ns(now),
                    "host": self.machine.hosts[rank],
                    "rank": rank,
                    "load1": 4.0,
                    "cpus": 4,
                    "psi_cpu": psi,
                    "psi_memory": 0.0,
                    "psi_io": 0.0,
                    "steal": 0.0,
                    "throttled": int(self.throttled[rank]),
                    "run_queue_delay": int(self.queue_delay[rank]),
                    "involuntary": 0,
                    "cpu_time": int(now),
                    "available": 1 << 34,
                }
            )
        self.rows["event"].append(
            {
                "ts": self._ns(now),
                "dur": int(0.05 * MS),
                "resource_id": "rank0",
                "rank": 0,
                "kind": "gc_short",
                "attrs": json.dumps({"pauses": 3}),
            }
        )

    # -- requests -------------------------------------------------------------------------------------------------------------------

    def _advance(self, plans: list[list[tuple[Sequence, int]]], running: list[list[Sequence]]) -> None:
        for rank, plan in enumerate(plans):
            now = float(self.clock[rank])
            for sequence, need in plan:
                sequence.cached += need
                if sequence.cached >= sequence.prompt:
                    sequence.tokens.append((now, self.step))
                    if sequence.first < 0:
                        sequence.first = now
                    sequence.produced += 1
            running[rank] = [sequence for sequence in running[rank] if sequence.produced < sequence.answer]

    def _requests(self, sequences: list[Sequence]) -> None:
        spans = itertools.count(1)
        for sequence in sequences:
            root = f"{next(spans):016x}"
            end = sequence.tokens[-1][0] + 0.3 * MS
            stages = [
                ("request", None, sequence.arrival, end),
                ("queue", root, sequence.arrival, sequence.admitted),
                ("prefill", root, sequence.admitted, sequence.first),
                ("decode", root, sequence.first, sequence.tokens[-1][0]),
            ]
            if sequence.encoded:
                stages.append(("image.encode", root, *sequence.encoded))
            for name, parent, begin, stop in stages:
                attrs = {}
                if parent is None:
                    attrs = {
                        "gen_ai.usage.input_tokens": sequence.prompt,
                        "gen_ai.usage.output_tokens": sequence.produced,
                        "moe.rank": sequence.rank,
                        "moe.image_tokens": sequence.image,
                    }
                self.rows["span"].append(
                    {
                        "ts": self._ns(begin),
                        "dur": max(0, int(stop - begin)),
                        "trace_id": sequence.trace,
                        "span_id": root if parent is None else f"{next(spans):016x}",
                        "parent_id": parent,
                        "name": name,
                        "kind": "server" if parent is None else "internal",
                        "resource_id": "api",
                        "status": "ok",
                        "attrs": json.dumps(attrs),
                    }
                )
            for index, (at, step) in enumerate(sequence.tokens):
                self.rows["token"].append(
                    {"ts": self._ns(at), "trace_id": sequence.trace, "index": index, "step": step, "rank": sequence.rank}
                )

    # -- the store ------------------------------------------------------------------------------------------------------------------

    def true_share(self) -> float:
        """What moving experts would gain: expected rows of the hottest rank over those under an even placement, as a share of the steps.

        From the machine's own costs and the true popularity: noise of small batches, which no placement cures, is left out.
        """
        machine = self.machine
        rows = sum(self.truth["rows"]) / machine.layers
        gain = 0.0
        for layer in range(machine.layers):
            load = self._load(layer)
            shares = [
                load[np.asarray(slots)].reshape(machine.ranks, -1).sum(axis=1).max()
                for slots in (self.slots[layer], _spread(load, machine.ranks))
            ]
            gain += max(0.0, shares[0] - shares[1])
        return float(gain * rows * machine.row / sum(self.truth["wall"]))

    def hot_experts(self, layer: int) -> list[int]:
        size = self.machine.experts // self.machine.ranks
        where = self.fault.where * size
        return [int(e) for e in self.slots[layer][where : where + size]]


def _spread(load: np.ndarray, ranks: int) -> list[int]:
    """An even placement by snake order: not the algorithm under test."""
    held: list[list[int]] = [[] for _ in range(ranks)]
    for place, expert in enumerate(np.argsort(-load)):
        lap, column = divmod(place, ranks)
        held[column if lap % 2 == 0 else ranks - 1 - column].append(int(expert))
    return [expert for owned in held for expert in owned]


def fingerprints(machine: Machine, fault: Fault) -> dict[str, dict]:
    made = {}
    for rank in range(machine.ranks):
        version = "2.27.3" if fault.drift and rank == fault.where else "2.27.5"
        made[f"rank{rank}"] = {
            "taken": T0 + rank,
            "host": {"pid": 100 + rank},
            "packages": {"torch": "2.13.0", "nvidia-nccl-cu13": version},
            "python": {"version": "3.11.7"},
            "env": {"RANK": str(rank), "OMP_NUM_THREADS": "1"},
            "cpu": {"model": "x", "usable": 4},
        }
    return made


def store_rows(run: Run, rows: dict[str, list[dict]]) -> None:
    """Rows into the run's DuckDB file, made by `traces.database` with the schema and the views."""
    with connect(run.database) as connection:
        for table in schema.TABLES.values():
            if rows.get(table.name):
                connection.register("batch", pa.Table.from_pylist(rows[table.name], schema=table.arrow))
                names = ", ".join(f'"{column.name}"' for column in table.columns)
                connection.execute(f'INSERT INTO "{table.name}" ({names}) SELECT {names} FROM batch')


def record(root: Path, engine: Engine) -> Run:
    """The run of a simulated engine, closed."""
    machine = engine.machine
    run = create_run(
        engine="workbench",
        model="simulated",
        root=root,
        world_size=machine.ranks,
        fingerprints=fingerprints(machine, engine.fault),
        layout={"ep": machine.ranks, "dp": machine.ranks},
    )
    rows = dict(engine.rows)
    rows["resource"] = [
        {
            "resource_id": f"rank{rank}",
            "ts": engine.start,
            "host": machine.hosts[rank],
            "rank": rank,
            "tp": 0,
            "pp": 0,
            "dp": rank,
            "ep": rank,
            "pid": 100 + rank,
            "role": "rank",
            "device": "cpu",
            "attrs": "{}",
        }
        for rank in range(machine.ranks)
    ]
    store_rows(run, rows)
    run.update(state="closed")
    return run


def simulate(
    fault: Fault | None = None, traffic: Traffic | None = None, machine: Machine | None = None, seed: int = 0, placement: str = "contiguous"
) -> Engine:
    engine = Engine(machine or Machine(), fault or Fault(), traffic or Traffic(), seed, placement)
    engine._placement_rows("initial", 0.0)
    return engine.run()


@dataclass(frozen=True)
class Lab:
    """What the tests use: `lab.run(fault, ...)` simulates and records; `lab.engine` is the last simulated engine."""

    root: Path
    engines: list[Engine]

    Machine = Machine
    Fault = Fault
    Traffic = Traffic

    def make(
        self,
        fault: Fault | None = None,
        traffic: Traffic | None = None,
        machine: Machine | None = None,
        seed: int = 0,
        placement="contiguous",
    ):
        """An engine that has not run yet; it may run several times, with switches in between."""
        engine = Engine(machine or Machine(), fault or Fault(), traffic or Traffic(), seed, placement)
        engine._placement_rows("initial", 0.0)
        return engine

    def record(self, engine: Engine) -> Run:
        return record(self.root, engine)

    def run(self, fault: Fault | None = None, **options) -> Run:
        engine = simulate(fault, **options)
        self.engines.append(engine)
        return record(self.root, engine)

    @property
    def engine(self) -> Engine:
        return self.engines[-1]

    def with_rows(self, rows: dict[str, list[dict]], **fields) -> Run:
        run = create_run(engine="workbench", model="hand-made", root=self.root, **fields)
        store_rows(run, rows)
        run.update(state="closed")
        return run


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "runs", [])
