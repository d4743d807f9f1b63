"""What was tapped in one pass over one prompt, and its file: safetensors, a tensor a tap, the rest in its metadata."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from traces.errors import UsageError

SCHEMA = "workbench.taps.v1"
LIMIT = 64 << 30  # bytes of a file that is read; a longer one was not written for a short prompt
IDS = "ids"
FIRST, LAST = ("embed",), ("norm", "norm.faint", "logits")
OF_LAYER = (
    "attention_norm",  # what attention sees, [T, H]
    "attention_norm.faint",  # what is left of a faint row behind this norm, [T, 1] float32 (faint.py)
    "key_before_rope",  # [T, kv_heads * D], after the key norm where there is one; layers with full keys only
    "key",  # as the cache holds them, [T, kv_heads * D]
    "value",
    "latent",  # of latent attention, as the cache holds it, [T, kv_rank + rope_dim]
    "attention",  # after the output projection, without the residual, [T, H]
    "ffn_norm",  # what experts and router see
    "ffn_norm.faint",
    "router.logits",  # [T, E]
    "router.experts",  # [T, k] int64, ascending
    "router.weights",  # [T, k], in the order of router.experts
    "routed",  # sum over the chosen experts, without the shared one
    "shared",  # the shared expert alone
    "ffn",  # routed and shared, or the dense feed-forward
    "output",  # the residual stream behind the layer
)
_NAME = re.compile(r"layers\.(\d+)\.(.+)")


@dataclass(slots=True)
class Capture:
    """`taps`: tensors whose first dimension is the token; `facts`: model, dtype, device, source and whatever else says where from."""

    ids: list[int]
    taps: dict[str, Tensor]
    facts: dict[str, str] = field(default_factory=dict)

    def names(self) -> list[str]:
        """In the order of execution."""
        return in_order(self.taps)

    def save(self, path: Path) -> None:
        """UsageError where it cannot be written."""
        tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in self.taps.items()}
        try:
            save_file({IDS: torch.tensor(self.ids, dtype=torch.int64), **tensors}, path, {"schema": SCHEMA, **self.facts})
        except (OSError, SafetensorError) as error:
            raise UsageError(f"cannot write {path}: {error}", "choose a folder that exists and has room") from error

    @classmethod
    def load(cls, path: Path) -> Capture:
        """UsageError for what is no file of taps."""
        hint = "taps are written by `workbench validate MODEL --record FILE`"
        try:
            if path.stat().st_size > LIMIT:
                raise UsageError(f"{path} has more than {LIMIT >> 30} GiB", hint)
            with safe_open(path, framework="pt") as file:
                facts = dict(file.metadata() or {})
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 safe_open is no mapping
        except (OSError, SafetensorError) as error:
            raise UsageError(f"cannot read {path} as taps: {error}", hint) from error
        if facts.pop("schema", None) != SCHEMA or IDS not in tensors:
            raise UsageError(f"{path} holds no taps ({SCHEMA})", hint)
        ids = tensors.pop(IDS)
        if ids.dim() != 1 or ids.dtype != torch.int64:
            raise UsageError(f"{path}: the token ids are {ids.dtype} {list(ids.shape)}, not a list of int64", hint)
        for name, tensor in tensors.items():
            if not tensor.dim() or tensor.shape[0] != ids.shape[0]:
                raise UsageError(f"{path}: the tap {name} has shape {list(tensor.shape)} for {ids.shape[0]} tokens", hint)
        return cls(ids.tolist(), tensors, facts)


def in_order(names: Iterable[str]) -> list[str]:
    """Names of taps in the order in which a forward pass computes them; unknown ones behind their layer's, or last."""
    return sorted(names, key=_place)


def _place(name: str) -> tuple[int, int, int, str]:
    if name in FIRST:
        return (0, 0, FIRST.index(name), "")
    found = _NAME.fullmatch(name)
    if found is None:
        return (2, 0, LAST.index(name) if name in LAST else len(LAST), name)
    part = found[2]
    return (1, int(found[1]), OF_LAYER.index(part) if part in OF_LAYER else len(OF_LAYER), part)


def by_expert(experts: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Experts and weights [T, k], both ordered by the number of the expert: engines differ in the order of a top-k."""
    order = experts.argsort(-1)
    return experts.gather(-1, order).to(torch.int64), weights.gather(-1, order)
