"""How a checkpoint stores the experts of a layer: three layouts, told apart by names and shapes.

- "separate": a tensor per expert and projection, gate and up [I, H], down [H, I].
- "out_in": fused, gate_up [E, 2I, H] and down [E, H, I]. transformers 5 saves Qwen3-VL-MoE so.
- "in_out": fused and transposed, gate_up [E, H, 2I] and down [E, I, H]. The published Qwen3-VL-MoE files
  (transformers/conversion_mapping.py, "qwen3_vl_moe": Transpose(1, 2)).

A square matrix fits both fused layouts. transformers then takes it as it is, silently wrong for a published file; here it is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal, get_args

from probes.checkpoint import TensorEntry
from runtime.arch import ArchSpec, MoeSpec
from runtime.stored import exists
from traces.errors import CheckpointError

ExpertLayout = Literal["separate", "out_in", "in_out"]
OVERRIDE = "WORKBENCH_EXPERT_LAYOUT"


def detect(arch: ArchSpec, moe: MoeSpec, tensors: Mapping[str, TensorEntry], layer: int) -> ExpertLayout:
    """The layout of one layer; CheckpointError when there is none, when the shapes fit none, or when they fit two."""
    if exists(tensors, arch.names("expert.gate", layer=layer, expert=0)):
        return "separate"
    gate_up, down = arch.key("experts.gate_up", layer=layer), arch.key("experts.down", layer=layer)
    if moe.interleaved:
        return "in_out" if gate_up in tensors else "out_in"
    for name in (gate_up, down):
        if name not in tensors:
            lacking = arch.key("expert.gate", layer=layer, expert=0)
            raise CheckpointError(f"layer {layer} has no experts: neither {lacking} nor {name}", "download the missing shard again")
    inward = moe.input_width(arch.hidden)
    fits = _fits(gate_up, tensors[gate_up], (moe.experts, 2 * moe.width, inward))
    fits &= _fits(down, tensors[down], (moe.experts, inward, moe.width))
    if not fits:
        raise CheckpointError(f"{gate_up} and {down} are stored in different layouts", "save the checkpoint again with save_pretrained")
    forced = os.environ.get(OVERRIDE)
    if forced is not None:
        return _forced(forced, fits, gate_up)
    for name, square in ((gate_up, 2 * moe.width == inward), (down, moe.width == inward)):
        if square:
            hint = f"set {OVERRIDE}=out_in for a file saved by transformers 5, {OVERRIDE}=in_out for one in the published layout"
            raise CheckpointError(f"{name} is square: stored and transposed layout cannot be told apart by its shape", hint)
    return fits.pop()


def _fits(name: str, entry: TensorEntry, out_in: tuple[int, int, int]) -> set[ExpertLayout]:
    experts, rows, columns = out_in
    fits: set[ExpertLayout] = set()
    if entry.shape == out_in:
        fits.add("out_in")
    if entry.shape == (experts, columns, rows):
        fits.add("in_out")
    if not fits:
        message = f"tensor {name} in {entry.file} has shape {list(entry.shape)}, expected {list(out_in)} or {[experts, columns, rows]}"
        raise CheckpointError(message, "config.json and weights belong to different models")
    return fits


def _forced(forced: str, fits: set[ExpertLayout], name: str) -> ExpertLayout:
    for layout in fits:
        if layout == forced:
            return layout
    hint = f"one of {', '.join(get_args(ExpertLayout))}"
    raise CheckpointError(f"{OVERRIDE}={forced} does not fit the shape of {name}", hint)
