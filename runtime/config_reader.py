"""Typed access to a section of config.json: what is missing or of the wrong kind is named, never guessed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from traces.errors import CheckpointError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ConfigReader:
    """One JSON object of config.json; `where` is its path for messages ("", "text_config.")."""

    raw: Mapping[str, Any]
    where: str = ""

    def integer(self, key: str, *aliases: str, default: int | None = None) -> int:
        for name in (key, *aliases):
            value = self.raw.get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                if not value and name == "num_attention_heads":
                    raise CheckpointError(f"config.json has 0 {self.where}{name}", "use the config.json that belongs to the weights")
                return value
        return self._default(key, default, "an integer")

    def number(self, key: str, default: float | None = None) -> float:
        value = self.raw.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        return self._default(key, default, "a number")

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.raw.get(key)
        return value if isinstance(value, bool) else default

    def text(self, key: str, default: str | None = None) -> str:
        value = self.raw.get(key)
        return value if isinstance(value, str) else self._default(key, default, "a string")

    def integers(self, key: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        value = self.raw.get(key)
        if isinstance(value, list) and all(isinstance(item, int) for item in value):
            return tuple(value)
        return self._default(key, default, "a list of integers")

    def section(self, key: str) -> ConfigReader:
        value = self.raw.get(key)
        if not isinstance(value, dict):
            raise CheckpointError(f"config.json has no object {self.where}{key}", "use the config.json that belongs to the weights")
        return ConfigReader(value, f"{self.where}{key}.")

    def refuse(self, what: str, supported: str) -> CheckpointError:
        """The error for a feature the runtime does not have."""
        return CheckpointError(f"config.json asks for {self.where}{what}, which this runtime does not support", f"supported: {supported}")

    def _default(self, key: str, default: T | None, kind: str) -> T:
        if default is not None and self.raw.get(key) is None:
            return default
        found = self.raw.get(key)
        hint = "use the config.json that belongs to the weights"
        raise CheckpointError(f"config.json needs {kind} at {self.where}{key}, found {found!r}", hint)
