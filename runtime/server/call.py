"""The sending half of one request for answers: several choices, whole or streamed."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

from starlette.types import Send

from runtime.messages import Token
from runtime.server.answer import Answer, Choice, Delta, Usage
from runtime.server.gateway import Gateway
from runtime.server.generation_request import GenerationRequest
from runtime.server.merge import merged
from runtime.server.prompt import Prompt
from runtime.server.request_trace import RequestTrace
from runtime.server.wire import DONE, event

EVENT_STREAM = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


class Shape(Protocol):
    """Bytes of the answers of one request."""

    def whole(self, choices: Sequence[Choice], counts: Usage) -> bytes: ...
    def opening(self, index: int) -> Iterator[bytes]: ...
    def delta(self, index: int, delta: Delta) -> Iterator[bytes]: ...
    def closing(self, index: int, finish: str) -> Iterator[bytes]: ...
    def counts(self, counts: Usage) -> bytes: ...


def _attributes(gateway: Gateway, request: GenerationRequest, prompt: Prompt, answer: Answer, operation: str) -> dict[str, object]:
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.request.model": gateway.model,
        "gen_ai.request.max_tokens": request.limit,
        "gen_ai.request.temperature": 1.0 if request.temperature is None else request.temperature,
        "gen_ai.usage.input_tokens": len(prompt.tokens),
        "moe.rank": answer.request.rank,
        "moe.choice": answer.index,
        "moe.image_tokens": prompt.image_tokens,
        "moe.prompt_hash": prompt.hash,
        "moe.template_hash": gateway.prompts.template.hash,
        "moe.stream": bool(request.stream),
    }


@dataclass(slots=True)
class Call:
    """The sending half of one request. `sending` is the time spent handing bytes to the connection, ns."""

    request: GenerationRequest
    shape: Shape
    trace: RequestTrace
    id: str
    answers: list[Answer] = field(default_factory=list)
    prompt_tokens: int = 0
    began: bool = False
    answered: bool = False  # the last bytes are on their way
    sending: int = 0

    def add(self, gateway: Gateway, prompt: Prompt, number: int, operation: str, replica: int | None) -> None:
        """One more choice, the prompt's `number`-th. The first fills the request's trace; each other has its own, marked with it."""
        index = len(self.answers)
        trace = self.trace if index == 0 else gateway.trace(self.trace.received, None)
        inflight = gateway.submit(self.request, prompt, trace, number, replica)
        self.prompt_tokens += 0 if number else len(prompt.tokens)
        self.answers.append(Answer(index, inflight, gateway.prompts.tokenizer, self.request.stops, self.request.min_tokens or 0))
        trace.set(_attributes(gateway, self.request, prompt, self.answers[-1], operation))
        if index:
            trace.set({"moe.first_choice": self.trace.trace_id})

    def end(self, gateway: Gateway, status: str, reason: str) -> None:
        """Whatever is still being computed for it is given up."""
        for answer in self.answers:
            gateway.hub.cancel(answer.request)
            if answer.index:
                answer.request.trace.end(status, time.time_ns(), reason)

    async def whole(self, send: Send) -> None:
        texts: list[list[str]] = [[] for _ in self.answers]
        tokens: list[list[Token]] = [[] for _ in self.answers]
        async with aclosing(self._deltas()) as deltas:
            async for index, delta in deltas:
                texts[index].append(delta.text)
                tokens[index] += delta.tokens
        choices = [Choice(a.index, "".join(texts[a.index]), a.finish or "stop", tuple(tokens[a.index])) for a in self.answers]
        body = self.shape.whole(choices, self._usage())
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *self._ids()]
        await self._send(send, {"type": "http.response.start", "status": 200, "headers": headers})
        await self._bytes(send, body, more=False)

    async def stream(self, send: Send) -> None:
        await self._send(send, {"type": "http.response.start", "status": 200, "headers": [*EVENT_STREAM, *self._ids()]})
        self.began = True
        await self._events(send, [chunk for answer in self.answers for chunk in self.shape.opening(answer.index)])
        async with aclosing(self._deltas()) as deltas:
            async for index, delta in deltas:
                chunks = list(self.shape.delta(index, delta))
                await self._events(send, chunks + list(self.shape.closing(index, delta.finish) if delta.finish else ()))
        closing = event(self.shape.counts(self._usage())) if self.request.include_usage else b""
        await self._bytes(send, closing + DONE, more=False)

    async def _deltas(self) -> AsyncGenerator[tuple[int, Delta]]:
        """Pieces of all choices as they come."""
        async with aclosing(merged([answer.deltas() for answer in self.answers])) as pieces:
            async for index, delta in pieces:
                if delta.finish:
                    self._detokenized(self.answers[index])
                yield index, delta

    async def _events(self, send: Send, chunks: list[bytes]) -> None:
        if chunks:
            await self._bytes(send, b"".join(event(chunk) for chunk in chunks))

    async def _bytes(self, send: Send, body: bytes, more: bool = True) -> None:
        self.answered = not more
        await self._send(send, {"type": "http.response.body", "body": body, "more_body": more})

    async def _send(self, send: Send, message: dict[str, object]) -> None:
        began = time.perf_counter_ns()
        await send(message)
        self.sending += time.perf_counter_ns() - began

    def _detokenized(self, answer: Answer) -> None:
        """The rank's part ended with the last token; from there to here the text was made."""
        answer.request.trace.cut(answer.token_times[-1])
        answer.request.trace.stage("detokenize", time.time_ns(), {"moe.detokenize_total_ns": answer.detokenize})

    def _ids(self) -> list[tuple[bytes, bytes]]:
        return [(b"x-request-id", self.id.encode()), (b"x-trace-id", self.trace.trace_id.encode())]

    def _usage(self) -> Usage:
        """Cached are prompt tokens that the prefix cache had: of a prompt with several choices, when its first one began."""
        generated = sum(answer.generated for answer in self.answers)
        counts = {"prompt_tokens": self.prompt_tokens, "completion_tokens": generated, "total_tokens": self.prompt_tokens + generated}
        cached = sum(answer.request.cached or 0 for answer in self.answers[:: self.request.answers])
        return {**counts, "prompt_tokens_details": {"cached_tokens": cached}}
