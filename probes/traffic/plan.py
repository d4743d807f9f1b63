"""What traffic to send: how fast, how much, and of which kind."""

from __future__ import annotations

from dataclasses import dataclass

from traces.errors import UsageError

MIXES = {
    "shapes": "pictures of coloured shapes and short text questions, with known right answers (the shipped model's world)",
    "prefill-heavy": "long conversations of many turns, and only a few tokens of answer: prompt processing dominates",
    "text": "short text questions for any model; answers are not judged",
}
MAX_TOKENS = {"shapes": 64, "prefill-heavy": 4, "text": 64}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficPlan:
    """A described mix. The same plan and seed send the same prompts in the same order (and, at a rate, at the same times).

    Give `rate` (mean requests per second, Poisson arrivals: an open loop) or `concurrency` (requests in flight: a closed loop), and
    `requests` or `duration` (seconds in which requests are started) or both. Raises UsageError for what cannot be done.
    """

    rate: float | None = None
    concurrency: int | None = None
    requests: int | None = None
    duration: float | None = None
    mix: str = "shapes"
    image_share: float = 0.5  # share of requests with a picture, where the mix has pictures
    max_tokens: int | None = None  # None: the mix's own
    turns: int = 16  # turns of a conversation in the prefill-heavy mix
    reuse: bool = False  # let the server's prefix cache find prompts that it has seen
    seed: int = 0
    phase: str = ""  # label by which readers find these requests: "before", "during" ...
    timeout: float = 60.0  # seconds for one request, waits for a busy server included
    model: str | None = None  # None: the first one the server lists
    api_key: str | None = None
    replica: int | None = None  # data-parallel replica that all requests ask for (X-Data-Parallel-Rank: ours, vLLM)
    keep_answers: bool = False
    ignore_eos: bool = False  # every answer has exactly `tokens` tokens; for servers that know the field (ours, vLLM, SGLang)

    def __post_init__(self) -> None:
        if self.mix not in MIXES:
            raise UsageError(f"there is no traffic mix {self.mix!r}", f"the mixes are {', '.join(MIXES)}")
        if (self.rate is None) == (self.concurrency is None):
            raise UsageError("give either a rate or a concurrency", "rate: requests per second; concurrency: requests in flight")
        if self.requests is None and self.duration is None:
            raise UsageError("say how much traffic: a number of requests or a duration")
        for name in ("rate", "concurrency", "requests", "duration", "max_tokens", "timeout", "turns"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UsageError(f"{name} must be positive, not {value}")
        if self.replica is not None and self.replica < 0:
            raise UsageError(f"there is no replica {self.replica}", "they are counted from 0")
        if not 0 <= self.image_share <= 1:
            raise UsageError(f"image_share is a share between 0 and 1, not {self.image_share}")

    @property
    def tokens(self) -> int:
        """Tokens an answer may have."""
        return self.max_tokens or MAX_TOKENS[self.mix]

    @property
    def label(self) -> str:
        """In words: "shapes, 4 in flight, 200 requests"."""
        pace = f"{self.rate:g} requests/s" if self.rate else f"{self.concurrency} in flight"
        amount = [f"{self.requests} requests"] if self.requests else []
        amount += [f"{self.duration:g} s"] if self.duration else []
        return ", ".join([self.mix, pace, *amount])

    def described(self) -> dict[str, object]:
        """The plan in JSON types, without the key."""
        names = (
            "rate", "concurrency", "requests", "duration", "mix", "image_share", "turns", "reuse", "seed", "phase", "timeout", "ignore_eos",
            "replica",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names} | {"max_tokens": self.tokens}
