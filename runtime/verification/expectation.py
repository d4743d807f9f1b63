"""What the config says must be there, and whether a stored tensor is it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from runtime.inventory.families import FAMILIES, inventory_of
from runtime.inventory.model import Inventory
from runtime.inventory.tensors import TensorGroup
from runtime.verification.header_file import Entry

FLOATS = frozenset({"F32", "BF16", "F16", "F64"})


@dataclass(frozen=True, slots=True)
class Expectation:
    """Every tensor a config asks for, by name. `any_float`: the config does not say its dtype."""

    tensors: dict[str, TensorGroup]
    optional: frozenset[str]
    any_float: bool
    notes: tuple[str, ...] = ()

    def fault(self, name: str, entry: Entry) -> tuple[str, str] | None:
        """(kind, detail) when the stored tensor is not what the config asks for."""
        group = self.tensors[name]
        if entry.shape != group.shape and not _transposed(group, entry):
            return "wrong-shape", f"{list(entry.shape)}, the config asks for {list(group.shape)}"
        if entry.dtype != group.dtype and not self._floats(group, entry):
            return "wrong-dtype", f"{entry.dtype}, the config asks for {group.dtype}"
        return None

    def _floats(self, group: TensorGroup, entry: Entry) -> bool:
        """Norms, biases and routers are kept in any float dtype; so are matrices where the config does not say."""
        free = group.role == "vector" or group.kind == "router" or self.any_float
        return free and entry.dtype in FLOATS and group.dtype in FLOATS


def expectation(config: Mapping[str, Any], names: Iterable[str]) -> Expectation | None:
    """What fits the stored names best among the layouts in which such a checkpoint is saved; None for an unknown architecture.

    Raises CheckpointError for a config of a known one that lacks something.
    """
    if config.get("model_type") not in FAMILIES:
        return None
    stored = names if isinstance(names, Mapping | set | frozenset) else set(names)
    published = inventory_of(config)
    best = min(_layouts(published), key=lambda one: sum(next(iter(group.names())) not in stored for group in one.groups))
    return _expect(best, stored)


def _layouts(published: Inventory) -> list[Inventory]:
    """The published layout, and those in which transformers 5 saves the same model."""
    found = [published]
    if published.family == "kimi_linear":
        renamed = tuple(
            replace(group, name=group.name.replace(".mlp.", ".block_sparse_moe.")) if group.kind == "dense" else group
            for group in published.groups
        )
        found.append(replace(published, groups=renamed))
    return found


def _expect(inventory: Inventory, stored: Any) -> Expectation:
    tensors = {name: group for group in inventory.groups for name in group.names()}
    drafts = {name for name, group in tensors.items() if group.kind == "mtp"}
    notes = []
    optional: frozenset[str] = frozenset()
    if drafts and not any(name in stored for name in drafts):
        optional = frozenset(drafts)
        notes.append(f"the draft layer of the config ({len(drafts)} tensors) is not stored; it is not needed to serve")
    any_float = any(text.startswith("dtype is not in the config") for text in inventory.assumptions)
    return Expectation(tensors, optional, any_float, tuple(notes))


def _transposed(group: TensorGroup, entry: Entry) -> bool:
    """Fused experts are published as [E, in, out] and saved by transformers 5 as [E, out, in]."""
    if group.kind != "routed" or len(group.shape) != 3:
        return False
    experts, rows, columns = group.shape
    return entry.shape == (experts, columns, rows)
