"""config.json read strictly: a field that is missing is refused, or what stands in for it is named.

Class defaults must not stand in for a missing field: the defaults of one published model differ from the defaults of its class by 5 % of
its parameters (MiniMax-M3: 448.05 B by default, 427.04 B in its real config).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from traces.errors import CheckpointError

T = TypeVar("T")
_HINT = "use the config.json that belongs to the weights"


@dataclass(frozen=True, slots=True)
class Stated:
    """One JSON object of config.json. `assumptions` is shared by all sections of a config and collects what it did not say."""

    raw: Mapping[str, Any]
    where: str = ""
    assumptions: list[str] = field(default_factory=list)

    def has(self, key: str) -> bool:
        return self.raw.get(key) is not None

    def integer(self, *keys: str, assume: int | None = None, why: str = "") -> int:
        """A positive or zero integer (of heads at least one) under one of `keys`; else `assume`, noted with `why`; else CheckpointError."""
        for key in keys:
            value = self.raw.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value >= (key == "num_attention_heads"):
                return value
            if value is not None:
                raise CheckpointError(f"config.json has {value!r} at {self.where}{key}, an integer is needed", _HINT)
        return self._absent(keys, assume, why, "an integer")

    def flag(self, key: str, assume: bool | None = None, why: str = "") -> bool:
        value = self.raw.get(key)
        if isinstance(value, bool):
            return value
        if value is not None:
            raise CheckpointError(f"config.json has {value!r} at {self.where}{key}, true or false is needed", _HINT)
        return self._absent((key,), assume, why, "true or false")

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of integers; CheckpointError when it is missing or holds anything else."""
        value = self.raw.get(key)
        if isinstance(value, list) and all(isinstance(item, int) and not isinstance(item, bool) for item in value):
            return tuple(value)
        raise CheckpointError(f"config.json needs a list of integers at {self.where}{key}, found {value!r}", _HINT)

    def section(self, key: str) -> Stated:
        value = self.raw.get(key)
        if not isinstance(value, dict):
            raise CheckpointError(f"config.json has no object {self.where}{key}", _HINT)
        return Stated(value, f"{self.where}{key}.", self.assumptions)

    def assume(self, text: str) -> None:
        """Notes what stands in for something the config does not say."""
        if text not in self.assumptions:
            self.assumptions.append(text)

    def _absent(self, keys: tuple[str, ...], assume: T | None, why: str, kind: str) -> T:
        if assume is None:
            raise CheckpointError(f"config.json does not say {self.where}{keys[0]} ({kind})", _HINT)
        shown = str(assume).lower() if isinstance(assume, bool) else assume
        self.assume(f"{self.where}{keys[0]} is not in the config: taken as {shown}{', ' + why if why else ''}")
        return assume
