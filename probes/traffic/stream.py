"""The stream of one chat completion: server-sent events in, text and its timing out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from time import perf_counter_ns
from typing import Any

import msgspec

MAX_LINE = 4 << 20  # bytes; a longer line is no event of this API


class Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class Choice(msgspec.Struct):
    delta: Delta = msgspec.field(default_factory=Delta)
    finish_reason: str | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Chunk(msgspec.Struct):
    """The parts of a `chat.completion.chunk` that are used here; `error` is how servers report a failure in mid-stream."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


class BadStream(Exception):
    """The server sent something that is not a stream of chat completion chunks, or ended it early."""


_decode = msgspec.json.Decoder(Chunk).decode


class Answer:
    """What has arrived so far. Times are perf_counter_ns; `times` holds one for every piece of text (usually one token)."""

    __slots__ = ("done", "ended", "finish", "text", "times", "usage")

    def __init__(self) -> None:
        self.times: list[int] = []
        self.text: list[str] = []
        self.finish: str | None = None
        self.usage: Usage | None = None
        self.done = False
        self.ended: int | None = None

    def take(self, event: bytes, now: int) -> None:
        """One event's data. Raises BadStream for an error event or a chunk that cannot be read."""
        if event == b"[DONE]":
            self.done, self.ended = True, now
            return
        try:
            chunk = _decode(event)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadStream(f"malformed chunk: {error}") from error
        if chunk.error is not None:
            raise BadStream(f"server reported: {_message(chunk.error)}")
        self.usage = chunk.usage or self.usage
        for choice in chunk.choices:
            piece = choice.delta.content
            if piece:
                self.text.append(piece)
            if piece or choice.delta.reasoning_content:
                self.times.append(now)
            self.finish = choice.finish_reason or self.finish

    @property
    def complete(self) -> bool:
        return self.finish is not None or (self.done and bool(self.times))


class Events:
    """Splits bytes into events: the data of `data:` lines, for the usual case of one line an event."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            raise BadStream(f"a line of more than {MAX_LINE} bytes")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


async def read_answer(pieces: AsyncIterator[bytes], answer: Answer) -> None:
    """Fill `answer` from the body. Raises BadStream when the body ends before the answer does.

    Reads to the body's end, past [DONE]: only then does the connection go back to the pool.
    """
    events = Events()
    async for data in pieces:
        now = perf_counter_ns()
        for event in events.feed(data):
            answer.take(event, now)
    if not answer.complete:
        raise BadStream(f"stream ended early, after {len(answer.times)} pieces of text")


def _message(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
