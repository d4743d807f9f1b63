"""Tool calls in the text of an answer, as Hermes and Qwen templates write them: JSON between `<tool_call>` and `</tool_call>`."""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass, field
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_CALL = re.compile(re.escape(OPEN) + r"\s*(.*?)\s*(?:" + re.escape(CLOSE) + r"|\Z)", re.DOTALL)


@dataclass(slots=True)
class ToolCutter:
    """Text goes in piece by piece; what comes out is the part for a reader. From the first mark of a call on, everything is kept."""

    _held: str = ""
    _calls: str = ""

    def push(self, text: str) -> str:
        if self._calls:
            self._calls += text
            return ""
        text = self._held + text
        at = text.find(OPEN)
        if at >= 0:
            self._held, self._calls = "", text[at:]
            return text[:at]
        keep = next((n for n in range(min(len(text), len(OPEN) - 1), 0, -1) if text.endswith(OPEN[:n])), 0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> tuple[str, list[ToolCall]]:
        """What was held back, and the calls. Calls that are no JSON stay text: nothing the model said is lost."""
        if not self._calls:
            return self._held, []
        calls = [ToolCall.read(body) for body in _CALL.findall(self._calls)]
        whole = [call for call in calls if call is not None]
        return (self._calls, []) if len(whole) < len(calls) else ("", whole)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`arguments` is JSON text, as the OpenAI API has it."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}")

    @classmethod
    def read(cls, body: str) -> ToolCall | None:
        try:
            document = json.loads(body)
        except ValueError:
            return None
        if not isinstance(document, dict) or not isinstance(document.get("name"), str):
            return None
        arguments = document.get("arguments", {})
        return cls(document["name"], arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False))

    def document(self) -> dict[str, Any]:
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}
