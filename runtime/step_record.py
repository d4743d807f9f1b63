"""Everything the step loop records: a row a step, tokens, the header collective, load windows and rollups."""

from __future__ import annotations

import time
from typing import Any

from probes.recorder import Recording
from runtime.batch import StepContext
from runtime.header import Agreed
from runtime.load_window import ExpertCounter
from runtime.mesh import Mesh
from runtime.micro_batch import MicroBatch
from runtime.placement import Placement
from runtime.rollup import Rollup
from runtime.scheduler import Plan, Scheduler
from runtime.sequence import Sequence
from runtime.step_marks import StepMarks
from runtime.step_rows import RowWriters
from traces import schema

WINDOW_NS = 1_000_000_000
ROLLUP_NS = 10_000_000_000
FIRST_DURATION = next(i for i, c in enumerate(schema.LAYER.columns) if c.name == "attention")
LAYER_COLUMN = next(i for i, c in enumerate(schema.LAYER.columns) if c.name == "layer")


class StepRecord:
    """Belongs to the step loop. `counter` gathers expert counts in every step.

    The ranks of a replica compute the same tokens. In `step` a lane counts the part it routes to experts, so that the lanes of a stage
    add up to the tokens there were; sequences, requests and blocks are counted by the replica's first rank alone.
    """

    def __init__(self, recorder: Recording, mesh: Mesh, counter: ExpertCounter, scheduler: Scheduler) -> None:
        self._recorder = recorder
        self._mesh = mesh
        self._rank = mesh.rank
        self._place = mesh.place
        self._counter = counter
        self._scheduler = scheduler
        self._rollup = Rollup(mesh.rank)
        self._step = recorder.writer(schema.STEP)
        self._token = recorder.writer(schema.TOKEN)
        self._load = recorder.writer(schema.EXPERT_LOAD)
        rows = RowWriters.of(recorder)
        self._collective, self._layer = rows.collective, rows.layer
        self._writers = RowWriters(layer=self._layer_row, collective=rows.collective)
        self._window_since = self._rollup_since = time.time_ns()

    def begin(self, step: int, detail: bool, agreed: Agreed, micro_batches: list[MicroBatch]) -> list[StepContext]:
        """The contexts of a step's micro-batches. The step's header has been exchanged."""
        self._counter.begin(step, sum(self._mesh.lane_tokens(m.batch.tokens.shape[0]) for m in micro_batches))
        if detail:
            sizes = [agreed.bytes] * self._mesh.ranks
            self._collective(step, self._rank, "world", agreed.seq, None, "header", agreed.enter, agreed.exit, sizes, sizes, "host")
        count, stage = len(micro_batches), self._place.pp
        return [StepContext(step, detail, self._rank, stage, i, self._counter, self._writers) for i in range(count)]

    def observe(self, rows: list[list[int]]) -> None:
        """rows[rank][layer] of the step before, layers counted in each rank's stage."""
        layers = len(self._counter.moe_layers)
        self._counter.observe([rows[rank][:layers] for rank in self._mesh.layout.stage_ranks(self._place.pp)])

    def end(
        self,
        contexts: list[StepContext],
        micro_batches: list[MicroBatch],
        plan: Plan,
        fresh: list[tuple[Sequence, int]],
        marks: StepMarks,
    ) -> None:
        step = contexts[0].step
        for sequence, index in fresh:
            self._token(marks.points[-1][0], sequence.trace_id, index, step, self._rank)
        scheduler, allocator = self._scheduler, self._scheduler.allocator
        state = (len(scheduler.running), len(scheduler.waiting), allocator.used, allocator.used + allocator.available)
        for micro_batch, context, (begin, cpu), (end, cpu_end) in zip(
            micro_batches, contexts, marks.points, marks.points[1:], strict=False
        ):
            first = context.micro_batch == 0  # what is of the whole step is told once
            self._step(
                step, self._rank, context.stage, context.micro_batch, begin, end - begin, cpu_end - cpu, marks.sync if first else 0,
                self._part(micro_batch.prefill), self._part(micro_batch.decode), self._part(micro_batch.context), *state,
                len(plan.preempted) if first else 0, None, self._counter.placement.version, micro_batch.requests,
                plan.cached_tokens if first else 0, allocator.kept, plan.long_tokens if first else 0,
            )  # fmt: skip
        if plan.preempted:
            victims, gainers = ([s.trace_id for s in who] for who in (plan.preempted, plan.preempted_for))
            self._recorder.event("preemption", rank=self._rank, step=step, requests=victims, needed_by=gainers)
        self.idle()

    def _part(self, count: int) -> int:
        """Of `count` things that the lanes compute together: the parts add up to it, and those of the first lanes are not smaller."""
        lanes, lane = self._mesh.layout.tp, self._place.tp
        return (count + lanes - 1 - lane) // lanes

    def idle(self) -> None:
        """Writes the windows that are over."""
        now = time.time_ns()
        if now - self._window_since >= WINDOW_NS:
            self.flush_window()
        if now - self._rollup_since >= ROLLUP_NS:
            self.flush_rollup()

    def flush_window(self) -> None:
        self._window_since = now = time.time_ns()
        for w in self._counter.flush():
            self._load(
                now, w.step_first, w.step_last, self._rank, w.layer, w.placement, w.steps, w.tokens_in, w.tokens, w.physical,
                w.dropped, w.padding, w.imbalance_p50, w.imbalance_p99, w.above_null,
            )  # fmt: skip

    def flush_rollup(self) -> None:
        self._rollup_since = time.time_ns()
        write = self._recorder.writer(schema.ROLLUP)
        for row in self._rollup.flush():
            write(*row)

    def new_placement(self, placement: Placement, step: int, moved: int, stall: int) -> None:
        """`placement` is in force from `step`. The window of the old one must have been flushed."""
        self._counter.rebind(placement)
        attrs = {"placement": placement.version, "step": step, "moved": moved, "source": placement.source, "reason": placement.reason}
        self._recorder.event("rebalance", dur=stall, rank=self._rank, **attrs)

    def new_setting(self, step: int, **settings: int | None) -> None:
        changed = {name: value for name, value in settings.items() if value is not None}
        self._recorder.event("config", rank=self._rank, step=step, **changed)

    def close(self) -> None:
        self.flush_window()
        self.flush_rollup()

    def _layer_row(self, *values: Any) -> None:
        """A row of `layer` on its way to the recorder is counted into the rollup."""
        self._layer(*values)
        self._rollup.add(values[LAYER_COLUMN], values[FIRST_DURATION : FIRST_DURATION + 6])
