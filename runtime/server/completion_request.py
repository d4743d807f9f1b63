"""The body of POST /v1/completions: prompts as text or token ids. What would change the answer and is not supported is refused."""

from __future__ import annotations

from typing import cast

import msgspec

from runtime.server.errors import invalid
from runtime.server.generation_request import MOST_LOGPROBS, GenerationRequest, decode

MOST_PROMPTS = 64
DEFAULT_TOKENS = 16  # the OpenAI API's


class CompletionRequest(GenerationRequest, kw_only=True):
    """Fields of the OpenAI API beside the common ones; add_special_tokens as vLLM has it."""

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = None
    echo: bool | None = False
    suffix: str | None = None
    best_of: int | None = None
    add_special_tokens: bool | None = True

    @property
    def limit(self) -> int | None:
        return DEFAULT_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def alternatives(self) -> int:
        return -1 if self.logprobs is None else self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(cast(list[str | list[int]], self.prompt))


class _Raw(CompletionRequest, kw_only=True):
    """msgspec cannot tell lists of different items apart by their type."""

    prompt: str | list[str | int | list[int]]  # type: ignore[assignment]


_decoder = msgspec.json.Decoder(_Raw)


def parse(body: bytes) -> CompletionRequest:
    """ApiError 400 that names the field."""
    request: CompletionRequest = decode(_decoder, body)
    if isinstance(request.prompt, list):
        if not request.prompt or len({type(item) for item in request.prompt}) > 1:
            raise invalid("prompt must be a text, or a list of texts, of token ids, or of lists of token ids", "prompt")
        if len(request.prompts) > MOST_PROMPTS:
            raise invalid(f"{len(request.prompts)} prompts; at most {MOST_PROMPTS} are taken in one request", "prompt")
    if request.logprobs is not None and not 0 <= request.logprobs <= MOST_LOGPROBS:
        raise invalid(f"logprobs must be between 0 and {MOST_LOGPROBS}, not {request.logprobs}", "logprobs")
    if request.echo:
        raise invalid("echo is not supported: put the prompt in front yourself", "echo")
    if request.suffix:
        raise invalid("suffix is not supported", "suffix")
    if request.best_of not in (None, request.answers):
        raise invalid(f"best_of = {request.best_of} is not supported: ask for n and choose", "best_of")
    return request
