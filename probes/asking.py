"""Questions to an OpenAI-compatible server, greedy, with what is needed to compare two answers.

Every engine reports `usage.prompt_tokens`; vLLM, SGLang and ours answer /tokenize as well, and give log-probabilities.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import httpx
import msgspec

from probes.traffic.client import base_url
from traces.errors import BadAnswer, Unreachable

if TYPE_CHECKING:
    from PIL import Image

PATIENCE = httpx.Timeout(300.0, connect=10.0)  # seconds; the first answer of a big model may compile kernels
MOST_BYTES = 4 << 20  # of an answer; not one more is kept
OPENAI = "give the address of an OpenAI-compatible server"


class _Model(msgspec.Struct):
    id: str
    max_model_len: Any = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Top(msgspec.Struct):
    token: str
    logprob: float | None = None


class _Token(msgspec.Struct):
    token: str
    top_logprobs: list[_Top] | None = None


class _ChatLogprobs(msgspec.Struct):
    content: list[_Token] | None = None


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _ChatChoice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None
    logprobs: _ChatLogprobs | None = None


class _TextLogprobs(msgspec.Struct):
    tokens: list[str] | None = None
    top_logprobs: list[dict[str, float | None] | None] | None = None


class _TextChoice(msgspec.Struct):
    text: str
    finish_reason: str | None = None
    logprobs: _TextLogprobs | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Chat(msgspec.Struct):
    choices: Annotated[list[_ChatChoice], msgspec.Meta(min_length=1)]
    usage: _Usage | None = None


class _Text(msgspec.Struct):
    choices: Annotated[list[_TextChoice], msgspec.Meta(min_length=1)]
    usage: _Usage | None = None


class _Tokens(msgspec.Struct):
    tokens: list[int]


Body = TypeVar("Body", _Models, _Chat, _Text, _Tokens)
Likely = tuple[tuple[str, float], ...]  # tokens and their log-probabilities, the likeliest first


@dataclass(frozen=True, slots=True)
class Told:
    """An answer. `likely`: of each of its tokens, what was likeliest there (natural logarithms; without what has no finite one); `gaps`:
    by how much the first was likelier than the next. Both are empty where the server does not say.

    `thought`: what it thought before it answered. `prompt_tokens`, and `cached` of them: None where the server does not say.
    """

    text: str
    tokens: tuple[str, ...]
    likely: tuple[Likely, ...]
    gaps: tuple[float, ...]
    finish: str
    thought: str = ""
    prompt_tokens: int | None = None
    cached: int | None = None

    @property
    def units(self) -> tuple[str, ...]:
        """What two answers are compared by: tokens, or words where the server tells no tokens."""
        return self.tokens or tuple(f"{self.thought} {self.text}".split())


class Asker:
    """One server. Unreachable when it does not answer, BadAnswer when it refuses."""

    def __init__(self, url: str, model: str | None = None) -> None:
        self._root = base_url(url).removesuffix("/v1")
        self._client = httpx.Client(timeout=PATIENCE, trust_env=False, limits=httpx.Limits(max_connections=64))
        self.longest: int | None = None  # tokens of a sequence, where the server says so
        listed = self._send(_Models, "GET", "/v1/models").data
        found = next((one for one in listed if model in (None, one.id)), None)
        if found is None:
            named = f"has no model {model!r}: it lists" if model is not None else "lists no model:"
            raise BadAnswer(f"{self._root} {named} {', '.join(one.id for one in listed) or 'none'}", OPENAI)
        self.model = found.id
        if isinstance(found.max_model_len, int):
            self.longest = found.max_model_len

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def chat(self, content: str | list[dict[str, Any]], most: int = 24, **settings: Any) -> Told:
        body = {"messages": [{"role": "user", "content": content}], "logprobs": True, "top_logprobs": 2, **settings}
        answer = self._answer(_Chat, "/v1/chat/completions", body, most)
        choice, message = answer.choices[0], answer.choices[0].message
        entries = (choice.logprobs.content if choice.logprobs else None) or []
        tops = [[(one.token, one.logprob) for one in entry.top_logprobs or ()] for entry in entries]
        told = _told(choice, message.content or "", [entry.token for entry in entries], tops, answer.usage)
        return replace(told, thought=message.reasoning_content or message.reasoning or "")

    def complete(self, ids: Sequence[int], most: int, **settings: Any) -> Told:
        """Of token ids as they are, without a template; the answer runs to its full length."""
        body = {"prompt": list(ids), "logprobs": 2, "ignore_eos": True, **settings}
        answer = self._answer(_Text, "/v1/completions", body, most)
        choice = answer.choices[0]
        found = choice.logprobs or _TextLogprobs()
        tops = [list((top or {}).items()) for top in found.top_logprobs or ()]
        return _told(choice, choice.text, found.tokens or [], tops, answer.usage)

    def tokenize(self, content: str) -> list[int] | None:
        """The ids that this server's template and tokenizer make of one message; None where it answers no /tokenize."""
        body = {"model": self.model, "messages": [{"role": "user", "content": content}], "add_generation_prompt": True}
        try:
            return self._send(_Tokens, "POST", "/tokenize", body).tokens
        except BadAnswer:
            return None

    def all_at_once(self, contents: Sequence[str], most: int) -> list[Told]:
        with ThreadPoolExecutor(len(contents)) as pool:
            return list(pool.map(lambda content: self.chat(content, most), contents))

    def _answer(self, kind: type[Body], path: str, body: dict[str, Any], most: int) -> Body:
        return self._send(kind, "POST", path, {"model": self.model, "temperature": 0, "max_tokens": most, "stream": False, **body})

    def _send(self, kind: type[Body], method: str, path: str, body: dict[str, Any] | None = None) -> Body:
        asked, held = f"{method} {self._root}{path}", bytearray()
        try:
            with self._client.stream(method, self._root + path, json=body) as response:
                for part in response.iter_bytes():
                    held += part
                    if len(held) > MOST_BYTES:
                        raise BadAnswer(f"{asked} was answered with more than {MOST_BYTES >> 20} MiB", OPENAI)
        except httpx.HTTPError as error:
            raise Unreachable(f"{asked}: {error or type(error).__name__}", "check the address; look at the engine's log") from error
        said = held[:300].decode("utf-8", "replace")
        if response.status_code != 200:
            raise BadAnswer(f"{asked} was answered {response.status_code}: {said}")
        try:
            return msgspec.convert(json.loads(held), kind)  # json: servers in Python write -Infinity, which msgspec does not read
        except (msgspec.ValidationError, ValueError, RecursionError) as error:
            raise BadAnswer(f"{asked} was not answered as an OpenAI server does: {error}: {said}", OPENAI) from error


def picture_uri(image: Image.Image) -> str:
    """A picture as the data URI of a PNG."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return data_uri(file.getvalue(), "png")


def data_uri(data: bytes, kind: str) -> str:
    """A picture's file as it is; `kind` as in image/png."""
    return f"data:image/{kind};base64," + base64.b64encode(data).decode()


def about(uri: str, question: str) -> list[dict[str, Any]]:
    """A message about one picture, given as a data URI."""
    return [{"type": "image_url", "image_url": {"url": uri}}, {"type": "text", "text": question}]


def _told(
    choice: _ChatChoice | _TextChoice,
    text: str,
    tokens: Sequence[str],
    tops: Sequence[Sequence[tuple[str, float | None]]],
    usage: _Usage | None,
) -> Told:
    details = usage.prompt_tokens_details if usage else None
    likely = tuple(_likely(top) for top in tops)
    gaps = tuple(top[0][1] - top[1][1] for top in likely if len(top) > 1)
    return Told(
        text=text,
        tokens=tuple(tokens),
        likely=likely if len(likely) == len(tokens) else (),
        gaps=gaps if len(gaps) == len(tokens) else (),
        finish=str(choice.finish_reason),
        prompt_tokens=usage.prompt_tokens if usage else None,
        cached=details.cached_tokens if details else None,
    )


def _likely(top: Sequence[tuple[str, float | None]]) -> Likely:
    known = [(token, value) for token, value in top if value is not None and math.isfinite(value) and value <= 0]
    return tuple(sorted(known, key=lambda one: -one[1]))
