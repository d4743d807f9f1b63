"""`response_format`: from what a client asks for to a grammar that the sampler keeps to (llguidance)."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from runtime.server.errors import invalid

MOST_SCHEMA = 64 << 10  # bytes of a JSON schema
# Free white space lets a model write blanks until its tokens run out; JSON is written as json.dumps does.
_LAYOUT: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def grammar_of(wanted: dict[str, Any] | None) -> str:
    """The grammar of `response_format`; empty for text. ApiError 400 for an unknown type or a schema that cannot be followed."""
    kind = (wanted or {}).get("type", "text")
    if kind == "text":
        return ""
    if kind == "json_object":
        return _compiled('{"type": "object"}')
    if kind != "json_schema":
        raise invalid(f"response_format {kind!r} is not supported: text, json_object or json_schema", "response_format")
    described = (wanted or {}).get("json_schema")
    schema = described.get("schema") if isinstance(described, dict) else None
    if not isinstance(schema, dict):
        raise invalid("response_format json_schema has no json_schema.schema object", "response_format")
    text = json.dumps(schema)
    if len(text) > MOST_SCHEMA:
        raise invalid(f"the JSON schema has {len(text)} bytes; at most {MOST_SCHEMA} are taken", "response_format")
    return _compiled(text)


@lru_cache(maxsize=256)
def _compiled(schema: str) -> str:
    from llguidance import LLMatcher

    try:
        grammar: str = LLMatcher.grammar_from_json_schema(schema, defaults=_LAYOUT)
        failed, messages = LLMatcher.validate_grammar_with_warnings(grammar)
    except ValueError as error:
        raise invalid(f"the JSON schema cannot be followed: {error}", "response_format") from error
    if failed:
        raise invalid(f"the JSON schema cannot be followed: {'; '.join(messages)}", "response_format")
    return grammar
