"""The step loop of a rank. All ranks step together: header, changes, forward pass, sampling; then they tell the API process.

The first rank of a replica schedules for all of it; on the others the scheduler is empty, and the step's batch comes from the first.

Idle ranks sleep on their socket. A rank may only sleep when the header showed that no rank has work and that all of them have read the
same frames; whoever sends work to one rank wakes the others.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from runtime import messages as m
from runtime.changes import Change, Changes, Detail
from runtime.header import Agreed, Header
from runtime.link import Link
from runtime.micro_batch import MicroBatch, cut, micro_batches_for
from runtime.model import MoeModel
from runtime.pipeline import Pipeline
from runtime.placement_switch import PlacementSwitch
from runtime.profile_window import ProfileWindow
from runtime.requests_on_rank import RankRequests
from runtime.scheduler import Plan, Scheduler
from runtime.sequence import Sequence
from runtime.sharing import Sharing
from runtime.step_marks import StepMarks
from runtime.step_record import StepRecord
from runtime.vision_stage import encode_images

IDLE_SECONDS = 1.0  # a rank that sleeps looks around that often
PENDING_SECONDS = 0.002  # a frame is on its way to some rank


@dataclass(slots=True)
class Engine:
    """Everything a rank steps with. `step` counts executed steps and is equal on all ranks."""

    rank: int
    model: MoeModel
    pipeline: Pipeline
    sharing: Sharing
    most_micro_batches: int  # of one step
    scheduler: Scheduler
    requests: RankRequests
    header: Header
    link: Link
    record: StepRecord
    detail: Detail
    switch: PlacementSwitch
    profile: ProfileWindow
    step: int = 0
    _stop: bool = False
    _wake: int = 0
    _rows: list[int] | None = None  # rows received per MoE layer in the step before; None: there was none
    _changes: Changes | None = None

    def __post_init__(self) -> None:
        self._changes = Changes(self._apply)

    def run(self) -> None:
        """Until the API process says stop. Raises ApiGone, and RuntimeError when another rank is gone."""
        while True:
            agreed = self._iterate()
            if agreed.stop:
                return
            if not any(agreed.tokens):
                self.record.idle()
                self.link.wait(PENDING_SECONDS if agreed.pending else IDLE_SECONDS)

    def _iterate(self) -> Agreed:
        marks = StepMarks()
        begin = marks.begin
        self._read_frames(begin)
        plan = self.scheduler.schedule()
        agreed = self._agree(plan)
        if not any(agreed.tokens):
            self._tell(begin, plan)
            return agreed
        self.step += 1
        marks.sync = agreed.exit - agreed.enter
        self.profile.enter(self.step)
        self.requests.planned(plan, begin, self.step)
        micro_batches = self._share(plan, agreed)
        contexts = self.record.begin(self.step, self.detail.wanted(self.step), agreed, micro_batches)
        sampled = self.pipeline.run(micro_batches, contexts, marks)
        now = time.time_ns()
        self.scheduler.advance(plan)
        fresh = self.requests.computed(plan, sampled, now, self.step)
        self._rows = [sum(rows) for rows in zip(*(context.rows_received for context in contexts), strict=True)]
        self._tell(now, plan)
        marks.mark(now)
        self.record.end(contexts, micro_batches, plan, fresh, marks)
        self.profile.leave(self.step, sum(batch.tokens for batch in micro_batches))
        return agreed

    def _agree(self, plan: Plan) -> Agreed:
        assert self._changes is not None
        rows, self._rows = self._rows, None
        agreed = self.header.exchange(plan.tokens, self._stop, self._changes.read, self._wake, rows or [], self._wanted(plan))
        if rows is not None:
            self.record.observe(agreed.rows)
        self._changes.agreed(agreed.changes, self.step + 1)
        return agreed

    def _wanted(self, plan: Plan) -> int:
        return micro_batches_for(plan.tokens, self.most_micro_batches)

    @torch.inference_mode()
    def _share(self, plan: Plan, agreed: Agreed) -> list[MicroBatch]:
        """What this rank computes in the step: of its replica, as many micro-batches as all replicas agreed on."""
        mesh, count = self.model.mesh, agreed.micro_batches
        if not agreed.tokens[mesh.leader]:
            return [MicroBatch.empty()] * count
        if not mesh.leads:
            return self.sharing.share([])
        for sequence in plan.admitted:
            self._encode(sequence)
        elsewhere = mesh.results is not None
        return self.sharing.share([MicroBatch.of(chunks, self.model.device, elsewhere) for chunks in cut(plan.chunks, count)])

    def _encode(self, sequence: Sequence) -> None:
        images = sequence.images_after(sequence.cached)
        if not images:
            return
        embeddings = encode_images(self.model, images)
        sequence.encoded(images, embeddings)
        tokens, left_out = len(embeddings.rows), len(sequence.images)
        attributes = {"images": len(images), "cached_images": left_out}
        self.requests.stages.append(sequence.stage("image.encode", time.time_ns(), tokens, self.step, **attributes))

    def _read_frames(self, now: int) -> None:
        assert self._changes is not None
        for message in self.link.poll():
            if isinstance(message, m.Submit):
                self._wake = message.wake
                failed = self.requests.submit(message)
                if failed is not None:
                    self.link.send(failed)
            elif isinstance(message, m.Cancel):
                self.requests.cancel(message.id, now, self.step)
            elif isinstance(message, m.Wake):
                self._wake = message.wake
            elif isinstance(message, m.Setting | m.SwitchPlacement):
                self._wake = message.wake
                self._changes.stage(message)
            elif isinstance(message, m.StagePlacement):
                self.switch.stage(message)
            else:
                self._wake = message.wake
                self._stop = True

    def _apply(self, change: Change, step: int) -> None:
        if isinstance(change, m.SwitchPlacement):
            self.record.flush_window()
            applied = self.switch.switch(change.version, step)
            self.scheduler.forget_prefixes()  # an answer after the switch is to show what the new placement computes
            self.record.new_placement(self.model.placement, step, applied.moved, applied.stall)
            self.link.send(applied)
            return
        if change.detail_every is not None:
            self.detail.every = change.detail_every
        if change.window is not None:
            self.detail.open_window(step, change.window)
        if change.profile is not None:
            self.profile.open(step, change.profile)
        self.record.new_setting(step, detail_every=change.detail_every, window=change.window, profile=change.profile)
        self.link.send(m.Applied(self.rank, "setting", change.version, step))

    def _tell(self, now: int, plan: Plan) -> None:
        output = self.requests.output(self.step, now, len(plan.preempted))
        if output is not None:
            self.link.send(output)
