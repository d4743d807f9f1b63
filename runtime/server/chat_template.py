"""The checkpoint's own chat template, in Jinja's sandbox: a template is data from a checkpoint and must not run code here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import meta
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from runtime.server.chat_request import ChatMessage
from runtime.server.errors import invalid
from traces.errors import CheckpointError

Size = tuple[int, int]  # (width, height) of an image, pixels


class ChatTemplate:
    """Renders messages to the prompt, with the names that Hugging Face's renderer offers a template."""

    def __init__(self, source: str, tokens: dict[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
        self._template = environment.from_string(source)
        variables = meta.find_undeclared_variables(environment.parse(source))
        self.knows_tools, self.knows_generation = "tools" in variables, "add_generation_prompt" in variables
        self._tokens = tokens
        self.hash = hashlib.sha256(source.encode()).hexdigest()[:16]

    @classmethod
    def of(cls, folder: Path) -> ChatTemplate:
        """From chat_template.jinja, chat_template.json or tokenizer_config.json. CheckpointError when there is none, or it is no Jinja."""
        config = _read_json(folder / "tokenizer_config.json")
        source = _source(folder, config)
        if source is None:
            raise CheckpointError(
                f"{folder.name} has no chat template",
                "copy the model's own chat_template.jinja into the folder: any other template would garble the answers",
            )
        tokens = {name: text for name in ("bos_token", "eos_token", "pad_token") if (text := _token_text(config.get(name)))}
        try:
            return cls(source, tokens)
        except jinja2.TemplateSyntaxError as error:
            raise CheckpointError(f"the chat template of {folder.name} is no Jinja: {error.message} in line {error.lineno}") from error

    def render(
        self, messages: list[ChatMessage], tools: list[dict[str, Any]] | None = None, generate: bool = True, sizes: Sequence[Size] = ()
    ) -> str:
        """The prompt. `sizes`: (width, height) of the images, for templates that write them (K3 reads them in the prompt).
        ApiError 400 when the template refuses the messages, or knows nothing of tools."""
        if tools and not self.knows_tools:
            raise invalid("this model's chat template has no place for tools", "tools")
        offered, left = {"tools": tools} if tools else {}, iter(sizes)
        try:
            return self._template.render(
                messages=[_plain(m, left) for m in messages], add_generation_prompt=generate, **offered, **self._tokens
            )
        except jinja2.TemplateError as error:
            raise invalid(f"the model's chat template refuses these messages: {error}", "messages") from error


def _plain(message: ChatMessage, sizes: Iterator[Size]) -> dict[str, Any]:
    """As the template sees it. An image is only a mark, with its size where it is known: its data never enters the prompt's text."""
    content = message.content
    if isinstance(content, list):
        parts = [{"type": "text", "text": part.text} if part.type == "text" else _mark(next(sizes, None)) for part in content]
        # Templates of text-only models know only strings.
        content = "".join(str(p["text"]) for p in parts) if all(p["type"] == "text" for p in parts) else parts  # type: ignore[assignment]
    more = {"name": message.name, "tool_calls": _parsed(message.tool_calls), "tool_call_id": message.tool_call_id}
    return {"role": message.role, "content": "" if content is None else content, **{k: v for k, v in more.items() if v}}


def _mark(size: Size | None) -> dict[str, Any]:
    return {"type": "image"} if size is None else {"type": "image", "width": size[0], "height": size[1]}


def _parsed(calls: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Arguments travel as JSON text; templates want them as an object."""
    for call in calls or []:
        function = call.get("function")
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            try:
                function["arguments"] = json.loads(function["arguments"] or "{}")
            except ValueError as error:
                raise invalid(f"the arguments of an earlier tool call are no JSON: {error}", "messages") from error
    return calls


def _source(folder: Path, config: dict[str, Any]) -> str | None:
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        try:
            return jinja.read_text(encoding="utf-8")
        except ValueError as error:
            raise CheckpointError(f"{jinja.name} is not UTF-8: {error}") from error
    template = _read_json(folder / "chat_template.json").get("chat_template") or config.get("chat_template")
    if isinstance(template, list):  # several named ones
        named = {item["name"]: item["template"] for item in template}
        template = named.get("default") or next(iter(named.values()))
    return template


def _token_text(token: Any) -> str | None:
    return token.get("content") if isinstance(token, dict) else token


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        document = json.loads(path.read_text())
    except ValueError as error:
        raise CheckpointError(f"{path.name} is not JSON: {error}") from error
    return document if isinstance(document, dict) else {}


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """Hugging Face's: no HTML escapes, unlike Jinja's own."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
