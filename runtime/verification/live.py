"""The weights that live ranks hold, against the files: is the remapping right?

Every slot of a served placement has a hash of the weights that lie in it, made on the rank that holds it (`placement.slot_hashes`). Here
the experts are rebuilt from the files by the safetensors library and by their names alone, without our plan or loader, and hashed the
same way. A slot whose hash is that of another expert is a wrong mapping; one whose hash is nobody's is damaged. All other tensors are
compared in `live_weights.py`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.verification.document import Problem
from runtime.verification.headers import Examined
from runtime.verification.live_weights import Compared, Told, compare_weights
from runtime.verification.stored_values import StoredValues
from traces.errors import UsageError
from traces.run import Run
from traces.store import Store, open_run

if TYPE_CHECKING:
    from torch import Tensor

NAMES = (("gate_proj.weight", "up_proj.weight", "down_proj.weight"), ("w1.weight", "w3.weight", "w2.weight"))
_PLACEMENT = """
SELECT layer, physical_to_logical AS experts, slot_hashes AS hashes FROM placement
WHERE placement = (SELECT max(placement) FROM placement) ORDER BY layer
"""
_WEIGHTS = "SELECT rank, attrs FROM event WHERE kind = 'weights' ORDER BY rank"


@dataclass(frozen=True, slots=True)
class LayerSlots:
    """One layer's slots as served: expert and hash of each."""

    layer: int
    experts: list[int]
    hashes: list[str]


@dataclass(slots=True)
class LiveAnswer:
    """`proven` and `unproven`: stored tensors by name, with * for numbers, and how many there are."""

    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    proven: dict[str, int] = field(default_factory=dict)
    unproven: dict[str, int] = field(default_factory=dict)


def compare_run(found: Examined, run: Run) -> LiveAnswer:
    """Everything that a run's ranks have said of their weights. UsageError for a run without hashes, or of another engine."""
    if run.info.engine != "workbench":
        raise UsageError(f"run {run.id} was not served by this runtime", "give a run of `workbench serve`")
    with open_run(run) as store:
        layers = [LayerSlots(int(row["layer"]), list(row["experts"]), list(row["hashes"])) for row in store.rows(_PLACEMENT)]
        told = _told(store)
        device = store.rows("SELECT any_value(device) AS device FROM resource WHERE rank IS NOT NULL")[0]["device"]
    if not layers or not layers[0].hashes:
        raise UsageError(f"run {run.id} holds no hashes of expert slots", "serve with telemetry on, and try again when it answers")
    dtype = str(run.info.config.get("dtype", "auto"))
    if dtype == "auto":
        dtype = "float32" if str(device).startswith("cpu") else "bfloat16"
    values = StoredValues(found)
    out = LiveAnswer()
    proven = _experts_of(values, layers, dtype, out, run)
    others = compare_weights(values, told) if told else Compared()
    out.problems += others.problems
    proven |= others.proven
    targets = sum(len(one.targets) for one in told)
    out.notes.append(f"{targets} other tensors of {len(told)} ranks of run {run.id}, each cut for its lane from the files")
    if silent := sorted(set(range(run.info.world_size)) - {one.rank for one in told}):
        out.notes.append(f"ranks {silent} have said nothing of their tensors beside the experts: nothing of theirs is proven")
        proven -= others.proven
    out.notes.append("a rank hashes its weights when it has loaded or moved them: memory is not read again for this")
    if run.info.model_path and Path(run.info.model_path).absolute() != found.root.absolute():
        out.notes.append(f"run {run.id} serves {run.info.model_path}, which is not the folder that was verified")
    out.proven, out.unproven = _by_pattern(proven), _by_pattern(values.entries.keys() - proven)
    return out


def _told(store: Store) -> list[Told]:
    told = []
    for row in store.rows(_WEIGHTS):
        attrs = json.loads(row["attrs"]) if isinstance(row["attrs"], str) else row["attrs"]
        told.append(Told(int(row["rank"]), int(attrs["lane"]), int(attrs["lanes"]), dict(attrs["targets"])))
    return told


def _by_pattern(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(re.sub(r"(?<=\.)\d+(?=\.)", "*", name) for name in names).items()))


def _experts_of(values: StoredValues, layers: list[LayerSlots], dtype: str, out: LiveAnswer, run: Run) -> set[str]:
    """Adds problems and a note; the stored tensors whose experts all lie right."""
    proven: set[str] = set()
    slots = packed = 0
    for layer in layers:
        names = [name for name in values.entries if f"layers.{layer.layer}." in name and ".experts." in name]
        if not names:
            raise UsageError(f"the checkpoint has no experts in layer {layer.layer}", "give the checkpoint that the run serves")
        if not all(values.readable(name) for name in names if not name.endswith("_scale_inv")):
            packed += 1
            continue
        problems = list(compare_slots(values, layer, dtype))
        out.problems += problems
        slots += len(layer.experts)
        if not problems:
            proven |= set(names)
    out.notes.append(f"{slots} expert slots of run {run.id} in {len(layers) - packed} layers, rebuilt in {dtype}")
    if packed:
        out.notes.append(f"the experts of {packed} layers are packed in a way that is not unpacked here")
    return proven


def compare_slots(values: StoredValues, layer: LayerSlots, dtype: str) -> Iterator[Problem]:
    """Of every slot that does not hold, in `dtype`, the expert it is to hold."""
    known = {expert: _hashes(parts, dtype) for expert, parts in _experts(values, layer.layer, sorted(set(layer.experts)))}
    owner = {digest: expert for expert, digests in known.items() for digest in digests}
    for slot, (expert, digest) in enumerate(zip(layer.experts, layer.hashes, strict=True)):
        if digest in known.get(expert, ()):
            continue
        name = f"layer {layer.layer} slot {slot}"
        if digest in owner:
            yield Problem("", name, "hash", f"it is to hold expert {expert} and holds expert {owner[digest]}")
        else:
            yield Problem("", name, "hash", f"it is to hold expert {expert}; its weights are no expert's of this checkpoint")


def _hashes(parts: list[Tensor], dtype: str) -> frozenset[str]:
    """Of an expert as it lies in memory, its matrices by rows or (on a CPU) by columns."""
    import torch

    from runtime.weight_hash import expert_hash, hex_hash

    rows = [part.to(getattr(torch, dtype)).contiguous() for part in parts]
    columns = [part.t().contiguous().t() if part.dim() == 2 else part for part in rows]
    return frozenset((hex_hash(expert_hash(rows)), hex_hash(expert_hash(columns))))


def _experts(values: StoredValues, layer: int, wanted: list[int]) -> Iterator[tuple[int, list[Tensor]]]:
    """(expert, [gate_up [2I, H], down [H, I], and their biases where there are any]), one tensor an expert and projection, or fused."""
    import torch

    prefix = next(name[: name.index(".experts.") + 9] for name in values.entries if f"layers.{layer}." in name and ".experts." in name)
    for names in NAMES:
        if f"{prefix}{wanted[0]}.{names[0]}" in values.entries:
            for expert in wanted:
                gate, up, down = (values.read(f"{prefix}{expert}.{name}") for name in names)
                yield expert, [torch.cat([gate, up]), down]
            return
    gate_up, down = (values.read(f"{prefix}{name}") for name in ("gate_up_proj", "down_proj"))
    if f"{prefix}gate_up_proj_bias" in values.entries:  # gpt-oss: [E, H, 2I] and [E, I, H], gate and up in turns
        gate_up_bias, down_bias = (values.read(f"{prefix}{name}_bias") for name in ("gate_up_proj", "down_proj"))
        gate_up, down = _apart(gate_up.transpose(1, 2)), down.transpose(1, 2)
        for expert in wanted:
            yield expert, [gate_up[expert], down[expert], _apart(gate_up_bias)[expert], down_bias[expert]]
        return
    if gate_up.shape[2] == 2 * down.shape[1] and gate_up.shape[1] == down.shape[2]:  # [E, H, 2I] and [E, I, H]
        gate_up, down = gate_up.transpose(1, 2), down.transpose(1, 2)
    for expert in wanted:
        yield expert, [gate_up[expert], down[expert]]


def _apart(turns: Tensor) -> Tensor:
    """[E, 2I ...] with gate and up in turns -> first all of gate, then all of up."""
    import torch

    return torch.cat([turns[:, ::2], turns[:, 1::2]], 1)
