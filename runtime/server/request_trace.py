"""The spans of one request: a root `request`, and contiguous stages that fill it.

The API process reports what it measured, the rank reports its stages with its tokens. The root is closed when both sides are done: after a
disconnect the rank's last stage arrives a step later than the client left.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from probes.spans import RequestSpan, Tracing
from runtime.messages import Stage


class RequestTrace:
    """`tracing` None: nothing is recorded, only the id is made."""

    def __init__(self, tracing: Tracing | None, received: int, traceparent: str | None) -> None:
        self.received = received
        self._span: RequestSpan | None = None
        if tracing is not None:
            self._span = tracing.request_span(start=received, traceparent=traceparent)
        self.trace_id = self._span.trace_id if self._span else secrets.token_hex(16)
        self._mark = received
        self._cut: int | None = None  # the answer ended here for the client: the rank's stages are cut to it
        self._ending: tuple[str, str, int] | None = None
        self._rank_over = True

    def set(self, attributes: Mapping[str, Any]) -> None:
        if self._span:
            self._span.set(attributes)

    def stage(self, name: str, end: int, attributes: Mapping[str, Any] | None = None) -> None:
        """A stage of the API process, from where its last one ended."""
        if self._span and end > self._mark:
            self._span.stage(name, self._mark, end, attributes)
        self._mark = max(self._mark, end)

    def at_rank(self) -> None:
        """The request is handed to a rank, whose stages start here."""
        self._rank_over = False

    def rank_stage(self, stage: Stage) -> None:
        end = stage.end if self._cut is None else min(stage.end, self._cut)
        if self._span and end > stage.start:
            attributes = {"moe.tokens": stage.tokens, "moe.step": stage.step}
            attributes |= {f"moe.{name}": value for name, value in stage.attributes.items()}
            self._span.stage(stage.name, stage.start, end, attributes)

    def cut(self, ts: int) -> None:
        """The last token the client gets was sampled at `ts`; the API process's stages go on from there."""
        self._cut = ts
        self._mark = max(self._mark, ts)

    def rank_done(self) -> None:
        self._rank_over = True
        self._close()

    def end(self, status: str, end: int, reason: str = "") -> None:
        """The HTTP side is done."""
        if self._ending is None:
            self._ending = (status, reason, end)
            if self._cut is None and status != "ok":
                self._cut = end
        self._close()

    def _close(self) -> None:
        if self._span and self._ending and self._rank_over:
            status, reason, end = self._ending
            self._span.end(status, reason, end)
            self._span = None
