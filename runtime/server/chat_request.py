"""The body of POST /v1/chat/completions: decoded, checked, and what is not supported refused by name. Unknown fields are ignored."""

from __future__ import annotations

from typing import Any

import msgspec

from runtime.server.errors import invalid
from runtime.server.generation_request import MOST_LOGPROBS, GenerationRequest, decode
from runtime.server.response_format import grammar_of

MOST_MESSAGES = 4096


class ImageUrl(msgspec.Struct):
    url: str


class Part(msgspec.Struct):
    """A piece of a message: type is text or image_url."""

    type: str
    text: str | None = None
    image_url: ImageUrl | str | None = None


class ChatMessage(msgspec.Struct):
    """`tool_calls` are an earlier answer's, `tool_call_id` says which of them a tool's message answers."""

    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class ChatRequest(GenerationRequest, kw_only=True):
    """Fields of the OpenAI API beside the common ones."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def alternatives(self) -> int:
        return (self.top_logprobs or 0) if self.logprobs else -1

    @property
    def grammar(self) -> str:
        return grammar_of(self.response_format)

    @property
    def offered_tools(self) -> list[dict[str, Any]]:
        """Tools that the template is to tell the model about."""
        return [] if self.tool_choice == "none" else self.tools or []


_decoder = msgspec.json.Decoder(ChatRequest)


def parse(body: bytes) -> ChatRequest:
    """ApiError 400 that names the field."""
    request: ChatRequest = decode(_decoder, body)
    if request.top_logprobs is not None and not 0 <= request.top_logprobs <= MOST_LOGPROBS:
        raise invalid(f"top_logprobs must be between 0 and {MOST_LOGPROBS}, not {request.top_logprobs}", "top_logprobs")
    if request.top_logprobs and not request.logprobs:
        raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
    if request.grammar and request.min_tokens:
        raise invalid("an answer in a given format ends by itself: leave min_tokens out", "min_tokens")
    if request.grammar and request.ignore_eos:
        raise invalid("an answer in a given format ends by itself: leave ignore_eos out", "ignore_eos")
    _check_tools(request)
    check_messages(request)
    return request


def _check_tools(request: ChatRequest) -> None:
    """What would change the answer is refused, never ignored."""
    if request.tool_choice not in (None, "auto", "none"):
        raise invalid("tool_choice may be auto or none: this server does not force a tool call", "tool_choice")
    for index, tool in enumerate(request.tools or []):
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise invalid(f"tools[{index}] is not a function with a name", f"tools[{index}]")


def check_messages(request: ChatRequest) -> None:
    """ApiError 400 that names the message which cannot be put into a prompt."""
    if not request.messages:
        raise invalid("messages is empty", "messages")
    if len(request.messages) > MOST_MESSAGES:
        raise invalid(f"{len(request.messages)} messages; at most {MOST_MESSAGES} are taken", "messages")
    for index, message in enumerate(request.messages):
        where = f"messages[{index}]"
        if isinstance(message.content, list):
            for place, part in enumerate(message.content):
                _check_part(part, f"{where}.content[{place}]")
        elif message.content is None and message.role != "assistant":
            raise invalid(f"{where} has no content", where)


def _check_part(part: Part, where: str) -> None:
    if part.type == "text":
        if part.text is None:
            raise invalid(f"{where} is of type text but has no text", where)
    elif part.type == "image_url":
        if part.image_url is None:
            raise invalid(f"{where} is of type image_url but has no image_url", where)
    else:
        raise invalid(f"{where} is of type {part.type!r}; text and image_url are supported", where)
