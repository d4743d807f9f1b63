"""The answers of POST /v1/chat/completions: one object, or the chunks of a stream."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from runtime.server.answer import Choice, Delta, Usage
from runtime.server.token_logprob import chat_logprobs
from runtime.server.tokenizer import Tokenizer
from runtime.server.tool_calls import ToolCall, ToolCutter
from runtime.server.wire import encode


@dataclass(slots=True)
class ChatResponse:
    """Shapes of one request's answers. `tools`: the text is searched for tool calls."""

    id: str
    model: str
    tokenizer: Tokenizer
    tools: bool = False
    created: int = field(default_factory=lambda: int(time.time()))
    _cutters: dict[int, ToolCutter] = field(default_factory=dict)

    def whole(self, choices: Sequence[Choice], counts: Usage) -> bytes:
        return encode({**self._head("chat.completion"), "choices": [self._choice(choice) for choice in choices], "usage": counts})

    def opening(self, index: int) -> Iterator[bytes]:
        """The chunk that opens a choice of a stream."""
        yield self._chunk(index, {"role": "assistant", "content": ""})

    def delta(self, index: int, delta: Delta) -> Iterator[bytes]:
        text = self._cutter(index).push(delta.text) if self.tools else delta.text
        logprobs = chat_logprobs(self.tokenizer, delta.tokens)
        if text or logprobs:
            yield self._chunk(index, {"content": text}, logprobs)

    def closing(self, index: int, finish: str) -> Iterator[bytes]:
        text, calls = self._cutter(index).finish() if self.tools else ("", [])
        if text:
            yield self._chunk(index, {"content": text})
        if calls:
            yield self._chunk(index, {"tool_calls": [{"index": i, **call.document()} for i, call in enumerate(calls)]})
        yield self._chunk(index, {}, finish="tool_calls" if calls else finish)

    def counts(self, counts: Usage) -> bytes:
        """The chunk that stream_options.include_usage asks for: no choices."""
        return encode({**self._head("chat.completion.chunk"), "choices": [], "usage": counts})

    def _choice(self, choice: Choice) -> dict[str, Any]:
        text, finish = choice.text, choice.finish
        calls: list[ToolCall] = []
        if self.tools:
            cutter = ToolCutter()
            shown = cutter.push(text)
            held, calls = cutter.finish()
            text = shown + held
        message: dict[str, Any] = {"role": "assistant", "content": text or None if calls else text, "refusal": None}
        if calls:
            message["tool_calls"], finish = [call.document() for call in calls], "tool_calls"
        logprobs = chat_logprobs(self.tokenizer, choice.tokens)
        return {"index": choice.index, "message": message, "logprobs": logprobs, "finish_reason": finish}

    def _cutter(self, index: int) -> ToolCutter:
        return self._cutters.setdefault(index, ToolCutter())

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _chunk(self, index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None, finish: str | None = None) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return encode({**self._head("chat.completion.chunk"), "choices": [choice]})
