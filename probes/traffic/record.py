"""What the client saw of one request."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter_ns
from typing import Any

from probes.traffic.client import Outcome
from probes.traffic.prompts import Prompt


@dataclass(frozen=True, slots=True)
class Clock:
    """When a request was due and was sent (perf_counter_ns), and the latter as ns since the epoch."""

    due: int
    sent: int
    wall: int


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """Durations in ns, `start` in ns since the epoch. What was not seen is None."""

    index: int
    kind: str  # text | image
    question: str
    start: int
    lag: int  # start minus the time the plan asked for: large when the client itself cannot keep up
    e2e: int  # start to end, waits for a busy server included
    status: str  # ok | error | cancelled
    reason: str
    ttft: int | None  # to the first piece of text
    gaps: tuple[int, ...]  # between pieces of text
    input_tokens: int | None
    output_tokens: int
    counted_by: str  # usage | chunks: where output_tokens is from
    finish: str | None
    busy: int  # answers 429 or 503 that were waited for
    exact: bool | None  # the answer is word for word the right one; None where it is not judged
    answer: str | None
    trace_id: str | None

    @property
    def tpot(self) -> float | None:
        """Mean time of an output token after the first, ns."""
        return sum(self.gaps) / (self.output_tokens - 1) if self.output_tokens > 1 and self.gaps else None

    @property
    def itl_max(self) -> int | None:
        """Longest gap inside the answer, ns."""
        return max(self.gaps, default=None)

    def attributes(self, phase: str) -> dict[str, Any]:
        """Attributes of the `client.request` span."""
        tpot = self.tpot
        return {
            "workbench.kind": self.kind,
            "workbench.phase": phase,
            "ttft_ns": self.ttft,
            "tpot_ns": None if tpot is None else round(tpot),
            "itl_max_ns": self.itl_max,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "question": self.question,
            "answer_exact": self.exact,
            "finish_reason": self.finish,
            "busy": self.busy,
            "send_lag_ns": self.lag,
        }


def measured(index: int, prompt: Prompt, outcome: Outcome, clock: Clock, trace_id: str | None, keep_answer: bool) -> RequestRecord:
    """The record of a request that has just ended."""
    answer, text = outcome.answer, "".join(outcome.answer.text)
    usage, times = answer.usage, answer.times
    counted = usage.completion_tokens if usage else None
    judged = prompt.expected is not None and outcome.status == "ok"
    return RequestRecord(
        index=index,
        kind=prompt.kind,
        question=prompt.question,
        start=clock.wall,
        lag=max(0, clock.sent - clock.due),
        e2e=(answer.ended or perf_counter_ns()) - clock.sent,
        status=outcome.status,
        reason=outcome.reason,
        ttft=times[0] - clock.sent if times else None,
        gaps=tuple(later - earlier for earlier, later in pairwise(times)),
        input_tokens=usage.prompt_tokens if usage else None,
        output_tokens=len(times) if counted is None else counted,
        counted_by="chunks" if counted is None else "usage",
        finish=answer.finish,
        busy=outcome.busy,
        exact=text.strip() == prompt.expected if judged else None,
        answer=text if keep_answer else None,
        trace_id=trace_id,
    )
