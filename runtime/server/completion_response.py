"""The answers of POST /v1/completions: one object, or the chunks of a stream."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from runtime.messages import Token
from runtime.server.answer import Choice, Delta, Usage
from runtime.server.token_logprob import completion_logprobs
from runtime.server.tokenizer import Tokenizer
from runtime.server.wire import encode


@dataclass(slots=True)
class CompletionResponse:
    """Shapes of one request's answers."""

    id: str
    model: str
    tokenizer: Tokenizer
    created: int = field(default_factory=lambda: int(time.time()))
    _sent: dict[int, int] = field(default_factory=dict)  # characters of each choice that went out

    def whole(self, choices: Sequence[Choice], counts: Usage) -> bytes:
        entries = [self._choice(choice.index, choice.text, choice.tokens, choice.finish) for choice in choices]
        return encode({**self._head(), "choices": entries, "usage": counts})

    def opening(self, index: int) -> Iterator[bytes]:
        yield from ()

    def delta(self, index: int, delta: Delta) -> Iterator[bytes]:
        choice = self._choice(index, delta.text, delta.tokens, None)
        self._sent[index] = self._sent.get(index, 0) + len(delta.text)
        if delta.text or choice["logprobs"]:
            yield encode({**self._head(), "choices": [choice]})

    def closing(self, index: int, finish: str) -> Iterator[bytes]:
        yield encode({**self._head(), "choices": [self._choice(index, "", (), finish)]})

    def counts(self, counts: Usage) -> bytes:
        return encode({**self._head(), "choices": [], "usage": counts})

    def _choice(self, index: int, text: str, tokens: Sequence[Token], finish: str | None) -> dict[str, Any]:
        logprobs = completion_logprobs(self.tokenizer, tokens, self._sent.get(index, 0))
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def _head(self) -> dict[str, Any]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}
