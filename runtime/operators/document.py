"""workbench.operators.v1: the answer of `workbench operators`."""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA = "workbench.operators.v1"
Status = Literal["kernel", "composite", "fallback", "nothing", "unknown"]
"""kernel: the device has its own; composite: made of other operators, which are looked at in turn; fallback: a fallback for the whole
device takes it, usually to the CPU; nothing: it would raise; unknown: this torch does not have the device."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One execution at the model's shapes. `error`: relative L2 against `reference`; for whole numbers the share that differs."""

    shapes: str
    reference: str
    error: float | None
    limit: float
    seconds: float | None  # median on the device
    cpu_seconds: float | None  # the same operator in the same dtype on the CPU
    fell_back: bool | None  # whether the device said that the CPU computed it; null where nothing can tell
    outcome: Literal["pass", "fail", "skipped"]
    detail: str = ""


class Operator(msgspec.Struct, frozen=True, kw_only=True):
    """`calls`: phase -> layer kind -> calls of all its layers in one step. `shapes`: its largest operands, by phase."""

    name: str  # aten::mm, aten::add.Tensor
    status: Status
    how: str  # what serves it: a key, a variant, candidates
    calls: dict[str, dict[str, int]]
    shapes: dict[str, str]
    advice: str = ""
    measured: list[Measured] = []


class LayerKind(msgspec.Struct, frozen=True):
    kind: str
    layers: list[int]


class OperatorsDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`tokens`: of a prefill step, `sequences`: of a decode step. `gaps`: names of operators without kernel or composite."""

    schema: str = SCHEMA
    path: str
    architecture: str
    device: str
    dispatch_key: str
    torch: str
    dtype: str
    tokens: int
    sequences: int
    kinds: list[LayerKind]
    operators: list[Operator]
    gaps: list[str]
    notes: list[str] = []
