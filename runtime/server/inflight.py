"""A request between the HTTP side and its rank."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from runtime.messages import Token
from runtime.server.request_trace import RequestTrace


@dataclass(frozen=True, slots=True)
class Emitted:
    """One sampled token, and when its rank sampled it (epoch ns)."""

    token: Token
    ts: int


@dataclass(frozen=True, slots=True)
class Lost:
    """The request cannot be finished; `message` goes to the client."""

    message: str


@dataclass(slots=True)
class Inflight:
    """`tokens` brings what the rank sampled, or Lost. `outstanding` is what the router counts for it."""

    id: int
    rank: int
    prompt_tokens: int
    max_tokens: int
    trace: RequestTrace
    tokens: asyncio.Queue[Emitted | Lost] = field(default_factory=asyncio.Queue)
    outstanding: int = 0
    prompt_left: int = 0  # of `outstanding`: prompt tokens that are neither computed nor found in the prefix cache
    cached: int | None = None  # prompt tokens that its rank had in the prefix cache; None: it has not begun
    generated: int = 0
    preemptions: int = 0
    first_token: int | None = None
    last_token: int | None = None
    queued: int = 0  # ns until a rank first took it up
    began: int | None = None  # when that was
    over: bool = False  # the rank has nothing more to say about it
