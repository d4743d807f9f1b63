"""What the launchers of two hosts say to each other: msgpack behind a four-byte length, over TCP.

The head sends a nonce; who joins proves with it that it knows the job's token, which never crosses the network. Then each side says what
happens on it until one of them ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
from typing import Annotated, Any

import msgspec

from runtime.framing import framed, read_frame
from traces.errors import UsageError

TOKEN = "WORKBENCH_JOIN_TOKEN"
MAX_FRAME = 16 << 20
MAX_JOIN = 64 << 10  # of a frame from somebody who has not proven anything yet


class Frame(msgspec.Struct, frozen=True, tag=True):
    """Base of all frames."""


class Challenge(Frame, frozen=True):
    nonce: bytes


class Join(Frame, frozen=True):
    """From a node that wants to take part. `layout` and `nodes` as it was told them, to notice a slip of the pen."""

    node: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    nodes: int
    host: str
    layout: dict[str, int]
    proof: bytes


class Refused(Frame, frozen=True):
    message: str
    hint: str


class CollectorAt(Frame, frozen=True):
    """Where telemetry goes; sent again when the collector was restarted."""

    host: str
    port: int
    pid: int
    machine: str
    token: str


class Welcome(Frame, frozen=True):
    """Everything the ranks of a node need. `config` is the head's, but for the path of the model."""

    run: str
    api: str  # host:port of the hub
    token: str  # of the hub
    store: str  # host:port of torch.distributed's store
    first: int  # first rank of the node
    ranks: int  # of the node
    config: dict[str, Any]
    collector: CollectorAt | None


class RankDied(Frame, frozen=True):
    rank: int
    pid: int
    exit_code: int
    log: str


class Fingerprint(Frame, frozen=True):
    producer: str
    facts: dict[str, Any]


class NodeEnded(Frame, frozen=True):
    """All ranks of the node are gone."""


class Goodbye(Frame, frozen=True):
    """The head ends the run, and why."""

    message: str
    exit_code: int


FrameKind = Challenge | Join | Refused | CollectorAt | Welcome | RankDied | Fingerprint | NodeEnded | Goodbye
_encoder = msgspec.msgpack.Encoder()
_decode = msgspec.msgpack.Decoder(FrameKind).decode


def join_token() -> bytes:
    """The job's secret; UsageError when there is none."""
    token = os.environ.get(TOKEN, "")
    if len(token) < 16:
        hint = f"set the same {TOKEN} of at least 16 characters on every node, for instance from `openssl rand -hex 32`"
        raise UsageError(f"{TOKEN} is not set" if not token else f"{TOKEN} is too short", hint)
    return token.encode()


def proof(token: bytes, nonce: bytes, node: int) -> bytes:
    return hmac.digest(token, nonce + node.to_bytes(4, "big"), hashlib.sha256)


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self, largest: int = MAX_FRAME) -> FrameKind:
        """`largest`: bytes; a stranger is allowed few.

        Raises ConnectionError at the end of the connection, or for something that is no frame.
        """
        try:
            return _decode(await read_frame(self._reader, largest))
        except (asyncio.IncompleteReadError, OSError, msgspec.MsgspecError) as error:
            raise ConnectionError(str(error)) from error

    def send(self, frame: Frame) -> None:
        if not self._writer.is_closing():
            self._writer.write(framed(_encoder.encode(frame)))

    async def close(self) -> None:
        """After what was sent has left."""
        try:
            await self._writer.drain()
            self._writer.close()
            await self._writer.wait_closed()
        except OSError:
            return
