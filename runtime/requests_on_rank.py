"""The requests a rank holds: what arrives becomes sequences, what happens to them becomes a frame for the API process."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from runtime import messages as m
from runtime.constraint import Constraint
from runtime.sampler import Sampled
from runtime.scheduler import Plan, Scheduler
from runtime.sequence import Sequence


@dataclass(slots=True)
class RankRequests:
    """`stages`, `tokens` and `ended` gather until the frame of the step is sent."""

    rank: int
    scheduler: Scheduler
    capacity: int  # tokens of one sequence that the whole KV cache holds
    tokenizer: Path | None = None  # tokenizer.json, for answers that keep to a grammar
    sequences: dict[int, Sequence] = field(default_factory=dict)
    stages: list[m.Stage] = field(default_factory=list)
    tokens: list[m.Token] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    _told: tuple[int, int, int] = (0, 0, 0)

    def submit(self, submit: m.Submit) -> m.Failed | None:
        """Takes a request in, or says why it can never be computed here."""
        if len(submit.tokens) + submit.max_tokens > self.capacity:
            return m.Failed(submit.id, f"the KV cache of a rank holds {self.capacity} tokens, fewer than prompt and answer together")
        sequence = Sequence.of(submit)
        if submit.sampling.grammar:
            if self.tokenizer is None:
                return m.Failed(submit.id, "this rank has no tokenizer.json, which an answer in a given format needs")
            try:
                # The model's own end of an answer is the last of the stops.
                sequence.constraint = Constraint.of(submit.sampling.grammar, self.tokenizer, submit.stops[-1])
            except ValueError as error:
                return m.Failed(submit.id, f"the answer's format cannot be followed with this tokenizer: {error}")
        self.sequences[submit.id] = sequence
        self.scheduler.submit(sequence)
        return None

    def cancel(self, number: int, now: int, step: int) -> None:
        """Nothing happens when it has just ended."""
        sequence = self.sequences.pop(number, None)
        if sequence is not None:
            self._last_stage(sequence, now, step)
            self.scheduler.remove(sequence)
            self.ended.append(number)

    def planned(self, plan: Plan, now: int, step: int) -> None:
        """A step begins at `now`: waiting ends for the admitted, computing ends for the preempted."""
        for sequence in plan.preempted:
            self._last_stage(sequence, now, step)
            sequence.doing = "preempted"
        for sequence in plan.admitted:
            self._last_stage(sequence, now, step, passed=sequence.passed, held=sequence.held)
            sequence.doing = "prefill"

    def computed(self, plan: Plan, sampled: list[Sampled], now: int, step: int) -> list[tuple[Sequence, int]]:
        """The step's results. (sequence, index) of every new token."""
        fresh: list[tuple[Sequence, int]] = []
        results = iter(sampled)
        for chunk in plan.chunks:
            sequence = chunk.sequence
            if sequence.doing == "prefill":
                found = sequence.found if chunk.start == sequence.found else 0  # told once, with the first chunk
                attributes = {"cached_tokens": found, "long": sequence.long}
                self.stages.append(sequence.stage("prefill", now, chunk.length, step, **attributes))
            if chunk.samples:
                sequence.doing = "decode"
                fresh.append((sequence, sequence.generated))
                self._token(sequence, next(results), now, step)
        return fresh

    def output(self, step: int, ts: int, preempted: int) -> m.StepOutput | None:
        """The frame for the API process, or None when there is nothing new to tell."""
        scheduler = self.scheduler
        state = (len(scheduler.running), len(scheduler.waiting), scheduler.allocator.used)
        if not (self.tokens or self.stages or self.ended) and state == self._told:
            return None
        self._told = state
        output = m.StepOutput(self.rank, step, ts, self.tokens, self.stages, *state, preempted, self.ended)
        self.tokens, self.stages, self.ended = [], [], []
        return output

    def _token(self, sequence: Sequence, sampled: Sampled, now: int, step: int) -> None:
        index = sequence.generated
        sequence.tokens.append(sampled.token)
        finish = None
        if sampled.token in sequence.stops:
            finish = "stop"
        elif index + 1 >= sequence.max_tokens:
            finish = "length"
        self.tokens.append(m.Token(sequence.id, index, sampled.token, finish, sampled.logprob, sampled.top))
        if finish:
            self._last_stage(sequence, now, step)
            self.scheduler.remove(sequence)
            del self.sequences[sequence.id]

    def _last_stage(self, sequence: Sequence, now: int, step: int, **attributes: int) -> None:
        """What it was doing until now, as a stage: nothing when a stage has ended right here."""
        if now > sequence.mark:
            self.stages.append(sequence.stage(sequence.doing, now, sequence.generated, step, **attributes))
