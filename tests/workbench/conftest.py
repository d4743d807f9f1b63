"""A small recorded run, written through the real recorder: four ranks, four layers, sixteen experts, three placements."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from traces import schema
from traces.producer import Recorder
from traces.run import Run, create_run

RANKS, LAYERS, EXPERTS, TOP_K = 4, 4, 16, 2
MS = 1_000_000
T0 = 1_790_000_000 * 10**9
STEPS = 240
STEP_NS = 50 * MS
HOSTILE = '<script>alert("x")</script>'  # a name that must never reach a page or a terminal as markup


@dataclass
class Writer:
    """Writes one run. Expert popularity is skewed; placement 1 packs the popular ones on rank 2, placement 2 spreads them again."""

    run: Run
    random: random.Random = field(default_factory=lambda: random.Random(7))

    def write(self) -> None:
        self.popularity = [[self.random.paretovariate(1.5) for _ in range(EXPERTS)] for _ in range(LAYERS)]
        self.recorders = [Recorder.open(self.run, f"rank{rank}", ship=False) for rank in range(RANKS)]
        self.api = Recorder.open(self.run, "api", ship=False)
        self.client = Recorder.open(self.run, "traffic-1", ship=False)
        self._register()
        self._placements()
        for step in range(STEPS):
            self._step(step)
        self._loads()
        self._requests()
        self._memory()
        for recorder in (*self.recorders, self.api, self.client):
            recorder.close()

    def _register(self) -> None:
        for rank, recorder in enumerate(self.recorders):
            recorder.register("rank", rank=rank, ep=rank, dp=rank)
        self.api.register("api")
        self.client.register("client")

    def slots(self, placement: int, layer: int) -> list[int]:
        """Logical experts slot by slot."""
        order = sorted(range(EXPERTS), key=lambda e: -self.popularity[layer][e])
        if placement == 0:
            return list(range(EXPERTS))
        if placement == 1:
            others = order[4:]
            return others[:8] + order[:4] + others[8:]
        return [order[i] for rank in range(RANKS) for i in (rank, 7 - rank, 8 + rank, 15 - rank)]

    def placement(self, step: int) -> int:
        return min(2, step * 3 // STEPS)

    def _placements(self) -> None:
        sources = (("initial", "contiguous"), ("control", HOSTILE), ("rebalance", "balanced"))
        for version, (source, reason) in enumerate(sources):
            step = version * STEPS // 3
            for layer in range(LAYERS):
                self.recorders[0].row(
                    schema.PLACEMENT, placement=version, ts=T0 + step * STEP_NS, step=step, layer=layer,
                    physical_to_logical=self.slots(version, layer), source=source, reason=reason, moved=12 if version else 0,
                    stall=2 * MS if version else 0, slot_hashes=["0"] * EXPERTS)  # fmt: skip

    def rows(self, step: int, layer: int, tokens: int) -> list[int]:
        """Rows per rank of one layer."""
        slots = self.slots(self.placement(step), layer)
        total = sum(self.popularity[layer])
        share = [sum(self.popularity[layer][e] for e in slots[rank * 4 : rank * 4 + 4]) / total for rank in range(RANKS)]
        rows = [int(tokens * TOP_K * part) for part in share]
        rows[0] += tokens * TOP_K - sum(rows)
        return rows

    def _step(self, step: int) -> None:
        prefill = 96 if step % 3 == 0 else 0
        tokens = RANKS * (prefill + 4)
        begin = T0 + step * STEP_NS
        for rank, recorder in enumerate(self.recorders):
            recorder.row(
                schema.STEP, step=step, rank=rank, stage=0, micro_batch=0, ts=begin, dur=30 * MS, cpu=20 * MS, sync=MS,
                prefill_tokens=prefill, decode_tokens=4, context_tokens=400, running=4, waiting=rank, kv_used=20, kv_total=100, preempted=0,
                placement=self.placement(step), requests=[f"{(step // 4):032x}"])  # fmt: skip
        if step % 2 == 0:
            self._detail(step, begin, tokens)

    def _detail(self, step: int, begin: int, tokens: int) -> None:
        at = [begin + rank * 50_000 for rank in range(RANKS)]
        for layer in range(LAYERS):
            rows = self.rows(step, layer, tokens)
            work = [int(n * 9_000) for n in rows]
            last = max(at[r] + MS + work[r] for r in range(RANKS))
            for rank, recorder in enumerate(self.recorders):
                experts_end = at[rank] + MS + work[rank]
                combine = last - experts_end + 300_000
                recorder.row(
                    schema.LAYER, step=step, rank=rank, stage=0, micro_batch=0, layer=layer, ts=at[rank], attention=500_000, router=200_000,
                    exchange=100_000, dispatch=200_000, experts=work[rank], combine=combine, attention_cpu=480_000, experts_cpu=work[rank],
                    tokens_in=tokens // RANKS, tokens_routed=rows[rank], active=4, clock="host")  # fmt: skip
                recorder.row(
                    schema.COLLECTIVE, step=step, rank=rank, group="ep", seq=step * LAYERS + layer, layer=layer, op="combine",
                    enter=experts_end, exit=last + 300_000, sent=[4096] * RANKS, received=[4096] * RANKS, clock="host")  # fmt: skip
                at[rank] = experts_end + combine

    def _loads(self) -> None:
        for second in range(STEPS // 20):
            first = second * 20
            for layer in range(LAYERS):
                total = sum(self.popularity[layer])
                for rank, recorder in enumerate(self.recorders):
                    tokens = [int(800 * p / total) for p in self.popularity[layer]]
                    slots = self.slots(self.placement(first), layer)[rank * 4 : rank * 4 + 4]
                    recorder.row(
                        schema.EXPERT_LOAD, ts=T0 + (second + 1) * 10**9 - 1, step_first=first, step_last=first + 19, rank=rank,
                        layer=layer, placement=self.placement(first), steps=20, tokens_in=400, tokens=tokens,
                        physical=[tokens[e] * RANKS for e in slots], dropped=0, padding=0,
                        imbalance_p50=1.2, imbalance_p99=1.4, above_null=0.1)  # fmt: skip

    def _requests(self) -> None:
        for number in range(STEPS // 2):
            trace, root = f"{number:032x}", f"{number:016x}"
            begin = T0 + number * 2 * STEP_NS
            picture = number % 4 == 0
            seen = [("image.preprocess", 3), ("image.encode", 8)] if picture else []
            stages = [("queue", 2), ("tokenize", 1), *seen, ("prefill", 30), ("decode", 40)]
            usage = {"gen_ai.usage.input_tokens": 90, "gen_ai.usage.output_tokens": 5, "moe.image_tokens": 9 * picture}
            total = sum(ms for _, ms in stages) * MS + number * 20_000
            self.api.row(
                schema.SPAN, ts=begin, dur=total, trace_id=trace, span_id=root, parent_id=None, name="request", kind="server", status="ok",
                attrs={"moe.rank": number % 4, **usage})  # fmt: skip
            at = begin
            for index, (name, ms) in enumerate(stages):
                self.api.row(
                    schema.SPAN, ts=at, dur=ms * MS, trace_id=trace, span_id=f"{number * 16 + index + 1:016x}", parent_id=root, name=name,
                    kind="internal", status="ok", attrs={})  # fmt: skip
                at += ms * MS
            for index in range(5):
                self.recorders[number % 4].row(
                    schema.TOKEN, ts=begin + (40 + 8 * index) * MS, trace_id=trace, index=index, step=number, rank=number % 4)  # fmt: skip
            self.client.row(
                schema.SPAN, ts=begin - MS, dur=total + 2 * MS, trace_id=trace, span_id=f"c{number:015x}", parent_id=None,
                name="client.request", kind="client", status="ok",
                attrs={"workbench.kind": "image" if picture else "text", "workbench.phase": "before", "ttft_ns": 42 * MS})  # fmt: skip

    def _memory(self) -> None:
        for index, phase in enumerate(("start", "load", "kv_cache", "serve")):
            for rank, recorder in enumerate(self.recorders):
                recorder.row(
                    schema.MEMORY, ts=T0 - (4 - index) * 10**9, rank=rank, phase=phase, rss_anon=(200 + 40 * index) << 20,
                    rss_file=90 << 20, rss_shmem=1 << 20, hwm=400 << 20)  # fmt: skip


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def recorded(runs_folder: Path) -> Run:
    """A run whose producers are gone and whose collector never ran: spools and rings only, as after a crash of everything."""
    model = f"shapes-moe {HOSTILE}"
    run = create_run(engine="workbench", model=model, root=runs_folder, world_size=RANKS, layout={"ep": RANKS, "dp": RANKS})
    Writer(run).write()
    return run


@pytest.fixture
def runs(runs_folder: Path, recorded: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the recorded run, as the one the command line looks in."""
    monkeypatch.setenv("WORKBENCH_RUNS", str(runs_folder))
    yield runs_folder


