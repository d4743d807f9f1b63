"""What every request for an answer may say: how tokens are drawn, when to stop, how many answers. Shared by chat and completions."""

from __future__ import annotations

from typing import Any

import msgspec

from runtime.messages import Sampling
from runtime.server.errors import invalid

MOST_STOPS = 16
MOST_LOGPROBS = 20
MOST_ANSWERS = 16
MOST_PRIORITY = 20  # either way; a bound, so that there is one on how long the least urgent request waits behind later ones
LONGEST_NUMBER = 10  # digits of a token id in logit_bias: Python refuses to read thousands of them
MOST_TOP_K = (1 << 31) - 1  # more than any vocabulary; -1 and 0 are all
MOST_BIASES = 1024  # entries of logit_bias, and of stop_token_ids


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = False


class GenerationRequest(msgspec.Struct, kw_only=True):
    """Fields of the OpenAI API; top_k, min_p, repetition_penalty, stop_token_ids, ignore_eos, min_tokens, priority (lower is sooner) and
    cache_salt as vLLM has them."""

    model: str
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    min_tokens: int | None = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    n: int | None = 1
    ignore_eos: bool | None = False
    frequency_penalty: float | None = 0.0
    presence_penalty: float | None = 0.0
    repetition_penalty: float | None = 1.0
    logit_bias: dict[str, float] | None = None
    priority: int | None = 0
    cache_salt: str | None = None

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or [])

    @property
    def limit(self) -> int | None:
        """Most tokens of an answer, if the request says so."""
        return self.max_tokens

    @property
    def answers(self) -> int:
        """Choices asked for, for each prompt."""
        return 1 if self.n is None else self.n

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def alternatives(self) -> int:
        """Log-probabilities to report beside each token's own; -1: none at all, unless an endpoint has a field for it."""
        return -1

    @property
    def grammar(self) -> str:
        """llguidance grammar that the answer must follow; empty: free text."""
        return ""

    def sampling(self, default_seed: int, answer: int = 0) -> Sampling:
        """Of the answer with that number: each draws from a seed of its own."""
        return Sampling(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(self.top_k or 0, 0),
            seed=((default_seed if self.seed is None else self.seed) + answer) % (1 << 63),
            logprobs=self.alternatives,
            min_p=self.min_p or 0.0,
            frequency=self.frequency_penalty or 0.0,
            presence=self.presence_penalty or 0.0,
            repetition=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            bias={int(token): bias for token, bias in (self.logit_bias or {}).items()},
            grammar=self.grammar,
            min_tokens=self.min_tokens or 0,
        )

    def check(self, vocabulary: int) -> None:
        """ApiError 400 that names the field out of range. `vocabulary`: token ids there are."""
        self._check_numbers()
        if len(self.stops) > MOST_STOPS or not all(self.stops):
            raise invalid(f"stop takes at most {MOST_STOPS} strings, none of them empty", "stop")
        if not 1 <= self.answers <= MOST_ANSWERS:
            raise invalid(f"n must be between 1 and {MOST_ANSWERS}, not {self.n}", "n")
        check_tokens(self.stop_token_ids or [], vocabulary, "stop_token_ids", MOST_BIASES)
        for token, bias in (self.logit_bias or {}).items():
            if not token.isdecimal() or len(token) > LONGEST_NUMBER:
                raise invalid(f"logit_bias has {token[:40]!r} where a token id is expected", "logit_bias")
            if not -100 <= bias <= 100:
                raise invalid(f"logit_bias of token {token} must be between -100 and 100, not {bias}", "logit_bias")
        check_tokens([int(token) for token in self.logit_bias or {}], vocabulary, "logit_bias", MOST_BIASES)

    def _check_numbers(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise invalid(f"max_tokens must be at least 1, not {self.limit}", "max_tokens")
        if (self.min_tokens or 0) < 0:
            raise invalid(f"min_tokens must be at least 0, not {self.min_tokens}", "min_tokens")
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise invalid(f"{name} must be between {low:g} and {high:g}, not {value}", name)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise invalid(f"top_p must be above 0 and at most 1, not {self.top_p}", "top_p")
        if self.repetition_penalty is not None and not 0 < self.repetition_penalty <= 10:
            raise invalid(f"repetition_penalty must be above 0 and at most 10, not {self.repetition_penalty}", "repetition_penalty")


_RANGES = (
    ("temperature", 0.0, 2.0),
    ("min_p", 0.0, 1.0),
    ("frequency_penalty", -2.0, 2.0),
    ("presence_penalty", -2.0, 2.0),
    ("priority", -MOST_PRIORITY, MOST_PRIORITY),
    ("top_k", -1, MOST_TOP_K),
)


def check_tokens(tokens: list[int], vocabulary: int, field: str, most: int) -> None:
    """ApiError 400 for an id outside the vocabulary, or for too many."""
    if len(tokens) > most:
        raise invalid(f"{field} takes at most {most} token ids, not {len(tokens)}", field)
    for token in tokens:
        if not 0 <= token < vocabulary:
            raise invalid(f"{field} has token id {token}; this model has 0 to {vocabulary - 1}", field)


def decode(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """The body as the decoder's type. ApiError 400 that names the field."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        missing = what.split("`")[1] if what.startswith("Object missing") else None
        raise invalid(str(error).replace("`$.", "`"), where.strip(".`") or missing) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"the body is not JSON: {error}") from error
