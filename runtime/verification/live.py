"""The experts that live ranks hold, against the files: is the remapping right?

Every slot of a served placement has a hash of the weights that lie in it, made on the rank that holds it (`placement.slot_hashes`). Here
the experts are rebuilt from the files by the safetensors library and by their names alone, without our plan or loader, and hashed the
same way. A slot whose hash is that of another expert is a wrong mapping; one whose hash is nobody's is damaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.verification.document import Problem
from runtime.verification.headers import Examined
from traces.errors import UsageError
from traces.run import Run
from traces.store import open_run

if TYPE_CHECKING:
    from torch import Tensor

NAMES = (("gate_proj.weight", "up_proj.weight", "down_proj.weight"), ("w1.weight", "w3.weight", "w2.weight"))
PLAIN = ("F32", "BF16", "F16")
_QUERY = """
SELECT layer, physical_to_logical AS experts, slot_hashes AS hashes FROM placement
WHERE placement = (SELECT max(placement) FROM placement) ORDER BY layer
"""


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's slots as served: expert and hash of each."""

    layer: int
    experts: list[int]
    hashes: list[str]


def compare_run(found: Examined, run: Run) -> tuple[list[Problem], str]:
    """Problems, and one sentence about what was compared. UsageError for a run without slot hashes, or of another engine."""
    if run.info.engine != "workbench":
        raise UsageError(f"run {run.id} was not served by this runtime", "give a run of `workbench serve`")
    with open_run(run) as store:
        layers = [_Layer(int(row["layer"]), list(row["experts"]), list(row["hashes"])) for row in store.rows(_QUERY)]
        device = store.rows("SELECT any_value(device) AS device FROM resource WHERE rank IS NOT NULL")[0]["device"]
    if not layers or not layers[0].hashes:
        raise UsageError(f"run {run.id} holds no hashes of expert slots", "serve with telemetry on, and try again when it answers")
    dtype = str(run.info.config.get("dtype", "auto"))
    if dtype == "auto":
        dtype = "float32" if str(device).startswith("cpu") else "bfloat16"
    problems = [problem for layer in layers for problem in _one_layer(found, layer, dtype)]
    slots = sum(len(layer.experts) for layer in layers)
    return problems, f"{slots} expert slots of run {run.id} in {len(layers)} layers, rebuilt in {dtype}; other tensors have no hashes there"


def _one_layer(found: Examined, layer: _Layer, dtype: str) -> Iterator[Problem]:
    known = {expert: _hashes(*matrices, dtype) for expert, matrices in _experts(found, layer.layer, sorted(set(layer.experts)))}
    owner = {digest: expert for expert, digests in known.items() for digest in digests}
    for slot, (expert, digest) in enumerate(zip(layer.experts, layer.hashes, strict=True)):
        if digest in known.get(expert, ()):
            continue
        name = f"layer {layer.layer} slot {slot}"
        if digest in owner:
            yield Problem("", name, "hash", f"it is to hold expert {expert} and holds expert {owner[digest]}")
        else:
            yield Problem("", name, "hash", f"it is to hold expert {expert}; its weights are no expert's of this checkpoint")


def _hashes(gate_up: Tensor, down: Tensor, dtype: str) -> frozenset[str]:
    """Of an expert as it lies in memory, by rows or (on a CPU) by columns."""
    import torch

    from runtime.weight_hash import expert_hash, hex_hash

    gate_up, down = gate_up.to(getattr(torch, dtype)).contiguous(), down.to(getattr(torch, dtype)).contiguous()
    columns = gate_up.t().contiguous().t(), down.t().contiguous().t()
    return frozenset((hex_hash(expert_hash([gate_up, down])), hex_hash(expert_hash(list(columns)))))


def _experts(found: Examined, layer: int, wanted: list[int]) -> Iterator[tuple[int, tuple[Tensor, Tensor]]]:
    """(expert, (gate_up [2I, H], down [H, I])), one tensor an expert and projection, or fused in either order of dimensions."""
    import torch

    files = {name: file.file for file in found.files for name in file.entries}
    prefix = next((name[: name.index(".experts.") + 9] for name in files if f"layers.{layer}." in name and ".experts." in name), None)
    if prefix is None:
        raise UsageError(f"the checkpoint has no experts in layer {layer}", "give the checkpoint that the run serves")
    _refuse_packed(found, prefix)
    for names in NAMES:
        if f"{prefix}{wanted[0]}.{names[0]}" in files:
            for expert in wanted:
                gate, up, down = (_read(found.root, files, f"{prefix}{expert}.{name}") for name in names)
                yield expert, (torch.cat([gate, up]), down)
            return
    gate_up, down = (_read(found.root, files, f"{prefix}{name}") for name in ("gate_up_proj", "down_proj"))
    if gate_up.shape[2] == 2 * down.shape[1] and gate_up.shape[1] == down.shape[2]:  # [E, H, 2I] and [E, I, H]
        gate_up, down = gate_up.transpose(1, 2), down.transpose(1, 2)
    for expert in wanted:
        yield expert, (gate_up[expert], down[expert])


def _read(root: Path, files: dict[str, str], name: str) -> Tensor:
    from safetensors import safe_open

    if name not in files:
        raise UsageError(f"tensor {name} is missing", "verify the headers first: `workbench verify MODEL`")
    with safe_open(root / files[name], framework="pt") as stream:
        tensor: Any = stream.get_tensor(name)
    return tensor  # type: ignore[no-any-return]


def _refuse_packed(found: Examined, prefix: str) -> None:
    for file in found.files:
        for name, entry in file.entries.items():
            if name.startswith(prefix) and entry.dtype not in PLAIN:
                raise UsageError(f"tensor {name} is packed ({entry.dtype})", "live slots are compared for experts stored as plain floats")
