"""From sampled tokens to the pieces of text a client gets."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from runtime.messages import Token
from runtime.server.errors import ApiError
from runtime.server.inflight import Emitted, Inflight, Lost
from runtime.server.stop_strings import StopCutter
from runtime.server.tokenizer import Tokenizer

Usage = dict[str, int | dict[str, int]]  # of a request, as the OpenAI API counts it


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of the answer. `finish` is set on the last: stop or length. `tokens` are those that came in since the last piece."""

    text: str
    finish: str | None = None
    tokens: tuple[Token, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """A whole answer."""

    index: int
    text: str
    finish: str
    tokens: tuple[Token, ...]


@dataclass(slots=True)
class Answer:
    """One choice of a request as it grows."""

    index: int
    request: Inflight
    tokenizer: Tokenizer
    stops: list[str]
    min_tokens: int = 0  # stop strings are looked for in what comes after so many
    token_times: list[int] = field(default_factory=list)  # epoch ns, as sampled
    finish: str | None = None
    detokenize: int = 0  # ns spent in here, all pieces together

    async def deltas(self) -> AsyncGenerator[Delta]:
        """Pieces as they come; everything that is there already goes into one. ApiError 500 when the rank was lost."""
        detokenizer, cutter = self.tokenizer.stream(), StopCutter(self.stops)
        while self.finish is None:
            batch = await self._next()
            began = time.perf_counter_ns()
            text, taken = "", 0
            for emitted in batch:
                token = emitted.token
                taken += 1
                self.token_times.append(emitted.ts)
                # The token that ends the answer is no text, unless the answer was only cut off at its length.
                piece = "" if token.finish == "stop" else detokenizer.push(token.token)
                piece += detokenizer.flush() if token.finish else ""
                text += piece if token.index < self.min_tokens else cutter.push(piece)
                if cutter.stopped or token.finish:
                    self.finish = "stop" if cutter.stopped else token.finish
                    text += cutter.flush()
                    break
            self.detokenize += time.perf_counter_ns() - began
            yield Delta(text, self.finish, tuple(e.token for e in batch[:taken]))

    async def _next(self) -> list[Emitted]:
        """At least one token."""
        items = [await self.request.tokens.get()]
        while not self.request.tokens.empty():
            items.append(self.request.tokens.get_nowait())
        emitted = []
        for item in items:
            if isinstance(item, Lost):
                raise ApiError(500, item.message, kind="server_error", code="engine_error")
            emitted.append(item)
        return emitted

    @property
    def generated(self) -> int:
        return len(self.token_times)
