"""Frames between the API process and the ranks: msgpack behind a four-byte length, over TCP (loopback, unless ranks are on other hosts).

The API process listens; every rank connects and sends `Hello` with the token it was started with. A rank reads its socket between
steps; `Wake` numbers let all ranks agree that none of them has a frame still on its way before they go to sleep.
"""

from __future__ import annotations

import msgspec

from runtime.framing import framed

MAX_FRAME = 1 << 30


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all frames. Times are epoch ns."""


class Sampling(msgspec.Struct, frozen=True, array_like=True):
    """How tokens are drawn. temperature 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    seed: int = 0
    logprobs: int = -1  # how many alternatives to report; -1: no log-probabilities at all
    min_p: float = 0.0  # tokens less likely than this share of the likeliest are left out
    frequency: float = 0.0  # taken from a token's logit for every time it was generated
    presence: float = 0.0  # taken once if it was generated at all
    repetition: float = 1.0  # divides positive and multiplies negative logits of tokens in prompt or answer
    bias: dict[int, float] = {}  # added to the logits of these tokens
    grammar: str = ""  # llguidance grammar that the answer must follow
    min_tokens: int = 0  # the answer cannot end before it has so many

    @property
    def adjusts(self) -> bool:
        """Logits are changed before a token is chosen."""
        return bool(self.frequency or self.presence or self.repetition != 1.0 or self.bias)


class ImagePatches(msgspec.Struct, frozen=True, array_like=True):
    """One preprocessed image: float32 patches [P, width] and where its tokens stand in the prompt."""

    data: bytes
    width: int  # elements of a patch
    grid: tuple[int, int, int]  # t, h, w in patches
    start: int  # first image token in the prompt
    count: int  # image tokens
    digest: bytes = b""  # of data and grid (runtime.prefix_digest); empty: not computed yet


# --- to a rank -------------------------------------------------------------------------------------------------------


class Submit(Message, frozen=True):
    id: int
    trace_id: str
    tokens: list[int]
    max_tokens: int
    stops: list[int]  # token ids that end the answer
    sampling: Sampling
    submitted: int
    wake: int
    positions: bytes = b""  # int64 [3, T]; empty: 0..T-1 in all three rows
    images: list[ImagePatches] = []
    priority: int = 0  # lower is sooner
    prefix: bytes = b""  # digests of the full blocks of `tokens`, as far as they are known
    salt: str = ""  # of the digests


class Cancel(Message, frozen=True):
    id: int


class Wake(Message, frozen=True):
    """Nothing to do but take part in the next header: some other rank has work."""

    wake: int


class Setting(Message, frozen=True):
    """Staged on arrival, in force from the first step that all ranks have it staged for. Versions count from 1."""

    version: int
    wake: int
    detail_every: int | None = None
    window: int | None = None  # full detail for that many steps
    profile: int | None = None  # torch.profiler over that many steps


class StagePlacement(Message, frozen=True):
    """Read the weights of a new expert placement in the background, and answer Staged."""

    version: int
    layers: list[list[int]]
    source: str
    reason: str


class SwitchPlacement(Message, frozen=True):
    """All ranks hold the weights of `version`: it comes into force at the first step for which every rank has read this."""

    version: int
    wake: int


class Stop(Message, frozen=True):
    wake: int


# --- from a rank -----------------------------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    token: str
    rank: int
    pid: int
    host: str = ""


class Progress(Message, frozen=True):
    """A step of the start, or bytes read so far while loading."""

    rank: int
    phase: str
    done: int = 0
    total: int = 0
    seconds: float = 0.0


class Ready(Message, frozen=True):
    rank: int
    kv_blocks: int
    block_size: int
    device: str
    dtype: str
    seconds: float  # from the rank's start


class LoadFailed(Message, frozen=True):
    """An error a person should read; the traceback is in the rank's log."""

    rank: int
    message: str
    hint: str
    exit_code: int


class Died(Message, frozen=True):
    """An unexpected exception in a rank: its last line. The traceback is in the rank's log."""

    rank: int
    error: str


class PeerLost(Message, frozen=True):
    """A collective failed: another rank is gone. This rank only waits to be stopped."""

    rank: int
    error: str


class Token(msgspec.Struct, frozen=True, array_like=True):
    id: int
    index: int
    token: int
    finish: str | None = None  # stop | length
    logprob: float | None = None
    top: list[tuple[int, float]] | None = None


class Stage(msgspec.Struct, frozen=True, array_like=True):
    """A stage of a request that the rank saw. Stages of a request are contiguous: each starts where the one before it ended."""

    id: int
    name: str
    start: int
    end: int
    tokens: int
    step: int
    attributes: dict[str, int | bool] = {}  # further ones of its span, without their prefix "moe."


class StepOutput(Message, frozen=True):
    rank: int
    step: int
    ts: int  # when the tokens were sampled
    tokens: list[Token]
    stages: list[Stage]
    running: int
    waiting: int
    kv_used: int
    preempted: int
    ended: list[int] = []  # requests that left the rank before their end: cancelled


class Failed(Message, frozen=True):
    """One request that the rank cannot carry out."""

    id: int
    error: str


class Applied(Message, frozen=True):
    """A setting or placement is in force on this rank from `step`."""

    rank: int
    kind: str  # setting | placement
    version: int
    step: int
    moved: int = 0
    stall: int = 0


class Staged(Message, frozen=True):
    """The weights of a placement are in memory, or could not be read (`error`)."""

    rank: int
    version: int
    error: str = ""


ToRank = Submit | Cancel | Wake | Setting | StagePlacement | SwitchPlacement | Stop
FromRank = Hello | Progress | Ready | LoadFailed | Died | PeerLost | StepOutput | Failed | Applied | Staged

_encoder = msgspec.msgpack.Encoder()
decode_to_rank = msgspec.msgpack.Decoder(ToRank).decode
decode_from_rank = msgspec.msgpack.Decoder(FromRank).decode


def frame(message: Message) -> bytes:
    """A message with its length in front."""
    body = _encoder.encode(message)
    return framed(body)
