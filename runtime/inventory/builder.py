"""Collects tensor groups while a family walks its layers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from runtime.inventory.storage import Storage, StoredPart
from runtime.inventory.tensors import Kind, Role, Split, TensorGroup


@dataclass(slots=True)
class Builder:
    """`kind`, when set, overrules the kind of everything added: the tensors of a draft layer are all `mtp`."""

    storage: Storage
    groups: list[TensorGroup] = field(default_factory=list)
    kind: Kind | None = None

    def linear(
        self, module: str, rows: int, columns: int, kind: Kind, split: Split = "whole", layer: int | None = None, bias: bool = False
    ) -> None:
        """The weight [rows, columns] of a linear module as the storage packs it, and its bias [rows]."""
        for part in self.storage.parts(module, rows, columns):
            self._add(module, part, kind, split, layer)
        if bias:
            self.tensor(f"{module}.bias", (rows,), kind, split, layer, role="vector")

    def experts(self, module: str, rows: int, columns: int, layer: int, experts: int) -> None:
        """A linear module of every expert; `module` holds {expert}."""
        for part in self.storage.parts(module, rows, columns, routed=True):
            self._add(module, part, "routed", "expert", layer, copies=experts)

    def tensor(
        self,
        name: str,
        shape: tuple[int, ...],
        kind: Kind,
        split: Split = "whole",
        layer: int | None = None,
        dtype: str | None = None,
        role: Role = "matrix",
        experts: int = 0,
        values: int | None = None,
    ) -> None:
        """One tensor that is never packed (or, with `values`, packed in a way of its own)."""
        counted = math.prod(shape) if values is None else values
        group = TensorGroup(
            name, shape, dtype or self.storage.dtype, self.kind or kind, split, role, layer, counted, experts=experts
        )
        self.groups.append(group)

    def norm(self, name: str, width: int, kind: Kind = "norm", layer: int | None = None, bias: bool = False) -> None:
        """A normalisation's weight [width], and its bias."""
        self.tensor(f"{name}.weight", (width,), kind, layer=layer, role="vector")
        if bias:
            self.tensor(f"{name}.bias", (width,), kind, layer=layer, role="vector")

    def _add(self, module: str, part: StoredPart, kind: Kind, split: Split, layer: int | None, copies: int = 1) -> None:
        role: Role = "matrix" if part.values else "scale"
        experts = copies if split == "expert" else 0
        self.groups.append(
            TensorGroup(
                module + part.suffix, part.shape, part.dtype, self.kind or kind, split, role, layer, part.values, copies, experts=experts
            )
        )
