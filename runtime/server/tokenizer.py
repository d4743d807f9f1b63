"""Text to token ids and back, from tokenizer.json; which ids end an answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Core
from tokenizers.decoders import DecodeStream

from traces.errors import CheckpointError


class Tokenizer:
    """A checkpoint's tokenizer. Special tokens in the rendered template are recognised; none are added."""

    def __init__(self, core: Any, stops: list[int]) -> None:
        self.core = core
        self.stops = stops

    @classmethod
    def of(cls, folder: Path) -> Tokenizer:
        """CheckpointError when tokenizer.json is missing or unreadable, or no end-of-answer token is named anywhere."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(f"{folder.name} has no tokenizer.json", "copy it from the model's repository")
        try:
            core = Core.from_file(str(path))
        except Exception as error:
            raise CheckpointError(f"tokenizer.json of {folder.name} cannot be read: {error}") from error
        stops = _stops(folder, core)
        if not stops:
            raise CheckpointError(f"{folder.name} names no end-of-answer token", "generation_config.json should have eos_token_id")
        return cls(core, stops)

    def encode(self, text: str, special: bool = False) -> list[int]:
        """`special`: with the tokens that the tokenizer itself puts around a text."""
        ids: list[int] = self.core.encode(text, add_special_tokens=special).ids
        return ids

    def decode(self, tokens: list[int]) -> str:
        """The text of tokens, special ones too."""
        return str(self.core.decode(tokens, skip_special_tokens=False))

    def piece(self, token: int) -> str:
        """One token as text, special ones too."""
        return str(self.core.decode([token], skip_special_tokens=False))

    def stream(self) -> Detokenizer:
        return Detokenizer(self.core)


class Detokenizer:
    """Text of a growing answer. A character whose bytes are not all there yet is held back."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self._stream = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self._emitted = 0

    def push(self, token: int) -> str:
        self._ids.append(token)
        text: str = self._stream.step(self._core, token) or ""
        self._emitted += len(text)
        return text

    def flush(self) -> str:
        """What was held back: at the end half a character becomes the replacement character."""
        text: str = self._core.decode(self._ids, skip_special_tokens=True)
        return text[self._emitted :]


def _stops(folder: Path, core: Any) -> list[int]:
    """All that generation_config.json, config.json and tokenizer_config.json declare: one that is left out makes answers endless."""
    stops: list[int] = []
    for name in ("generation_config.json", "config.json"):
        document = _read_json(folder / name)
        inner = document.get("text_config")
        found = document.get("eos_token_id", inner.get("eos_token_id") if isinstance(inner, dict) else None)
        try:
            stops += [] if found is None else [int(i) for i in found] if isinstance(found, list) else [int(found)]
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"eos_token_id of {name} is {found!r}, no token id") from error
    token = _read_json(folder / "tokenizer_config.json").get("eos_token")
    number = core.token_to_id(token.get("content") if isinstance(token, dict) else token) if token else None
    return list(dict.fromkeys(stops if number is None else [*stops, number]))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text()) if path.is_file() else {}
    except ValueError as error:
        raise CheckpointError(f"{path.name} is not JSON: {error}") from error
    return document if isinstance(document, dict) else {}
