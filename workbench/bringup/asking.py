"""Questions to an OpenAI-compatible server, greedy, with what is needed to compare two answers."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

import httpx
import msgspec

from probes.traffic.client import base_url
from traces.errors import BadAnswer, Unreachable

PATIENCE = httpx.Timeout(300.0, connect=10.0)  # seconds; the first answer of a big model may compile kernels


class _Model(msgspec.Struct):
    id: str
    max_model_len: Any = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Top(msgspec.Struct):
    logprob: float


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
    top_logprobs: list[dict[str, float] | None] | None = None


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


Body = TypeVar("Body", _Models, _Chat, _Text)


@dataclass(frozen=True, slots=True)
class Told:
    """An answer. `gaps`: by how much each token was likelier than the next (natural logarithm); empty where the server does not say.

    `thought`: what it thought before it answered. `prompt_tokens`, and `cached` of them: None where the server does not say.
    """

    text: str
    tokens: tuple[str, ...]
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
        self._base = base_url(url)
        self._client = httpx.Client(timeout=PATIENCE, trust_env=False, limits=httpx.Limits(max_connections=64))
        self.longest: int | None = None  # tokens of a sequence, where the server says so
        listed = self._send(_Models, "GET", "/models").data
        found = next((one for one in listed if model in (None, one.id)), None)
        if found is None:
            raise BadAnswer(f"the server has no model {model!r}: it lists {', '.join(one.id for one in listed) or 'none'}")
        self.model = found.id
        if isinstance(found.max_model_len, int):
            self.longest = found.max_model_len

    def close(self) -> None:
        self._client.close()

    def chat(self, content: str | list[dict[str, Any]], most: int = 24, **settings: Any) -> Told:
        body = {"messages": [{"role": "user", "content": content}], "logprobs": True, "top_logprobs": 2, **settings}
        answer = self._answer(_Chat, "/chat/completions", body, most)
        choice, message = answer.choices[0], answer.choices[0].message
        entries = (choice.logprobs.content if choice.logprobs else None) or []
        tops = [[one.logprob for one in entry.top_logprobs or ()] for entry in entries]
        told = _told(choice, message.content or "", [entry.token for entry in entries], tops, answer.usage)
        return replace(told, thought=message.reasoning_content or message.reasoning or "")

    def complete(self, ids: Sequence[int], most: int, **settings: Any) -> Told:
        """Of token ids as they are, without a template; the answer runs to its full length."""
        body = {"prompt": list(ids), "logprobs": 2, "ignore_eos": True, **settings}
        answer = self._answer(_Text, "/completions", body, most)
        choice = answer.choices[0]
        found = choice.logprobs or _TextLogprobs()
        tops = [list((top or {}).values()) for top in found.top_logprobs or ()]
        return _told(choice, choice.text, found.tokens or [], tops, answer.usage)

    def all_at_once(self, contents: Sequence[str], most: int) -> list[Told]:
        with ThreadPoolExecutor(len(contents)) as pool:
            return list(pool.map(lambda content: self.chat(content, most), contents))

    def _answer(self, kind: type[Body], path: str, body: dict[str, Any], most: int) -> Body:
        return self._send(kind, "POST", path, {"model": self.model, "temperature": 0, "max_tokens": most, "stream": False, **body})

    def _send(self, kind: type[Body], method: str, path: str, body: dict[str, Any] | None = None) -> Body:
        try:
            response = self._client.request(method, self._base + path, json=body)
        except httpx.HTTPError as error:
            raise Unreachable(f"{method} {path}: {error or type(error).__name__}", "look at the engine's log") from error
        if response.status_code != 200:
            raise BadAnswer(f"{method} {path} was answered {response.status_code}: {response.text[:300]}")
        try:
            return msgspec.json.decode(response.content, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BadAnswer(f"{method} {path} was not answered as an OpenAI server does: {error}: {response.text[:300]}") from error


def disc(colour: str) -> str:
    """A disc in the middle of a plain square, as the data URI of a PNG. `colour` is one of probes.traffic.scenes."""
    from probes.traffic.scenes import Item, Scene, draw

    file = io.BytesIO()
    draw(Scene((Item(4, "circle", colour, "big"),), seed=0)).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _told(
    choice: _ChatChoice | _TextChoice, text: str, tokens: Sequence[str], tops: Sequence[Sequence[float]], usage: _Usage | None
) -> Told:
    details = usage.prompt_tokens_details if usage else None
    gaps = tuple(top[0] - top[1] for values in tops for top in [sorted(values, reverse=True)] if len(top) > 1)
    return Told(
        text=text,
        tokens=tuple(tokens),
        gaps=gaps if len(gaps) == len(tokens) else (),
        finish=str(choice.finish_reason),
        prompt_tokens=usage.prompt_tokens if usage else None,
        cached=details.cached_tokens if details else None,
    )
