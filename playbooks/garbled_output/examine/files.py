"""What the files of a checkpoint say without a forward pass: damage, ties, scales, positions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playbooks.garbled_output.examine.sent import Fact, inner_config, read_json
from playbooks.garbled_output.facts import DAMAGE, FILES, ROPE, SCALES, TIES
from probes.checkpoint import Checkpoint
from runtime.verification.verify import Wanted, verify
from traces.errors import WorkbenchError

MOST = 64  # damages that are written down, of each kind
DEEP = 16 << 30  # bytes up to which every value is read without being asked
SCALE_SAMPLE = 256  # scale tensors that are read


def file_facts(folder: Path, deep: bool | None = None) -> Iterator[Fact]:
    """`deep`: read every value; None: where the files are small enough."""
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    wanted = size <= DEEP if deep is None else deep
    try:
        found = verify(folder, Wanted(deep=wanted))
    except WorkbenchError as error:
        yield FILES, {"problem": error.message, "deep": False, "bytes": size}
    else:
        yield FILES, {"status": found.status, "tensors": found.tensors, "bytes": found.bytes, "deep": wanted, "counts": found.counts}
        for kind in found.counts:
            of_kind = [one for one in found.problems if one.kind == kind][:MOST]
            for one in of_kind:
                yield DAMAGE, {"damage": one.kind, "file": one.file, "tensor": one.tensor, "detail": one.detail}
    config = read_json(folder / "config.json")
    yield ROPE, rope_fact(config)
    try:
        checkpoint = Checkpoint.open(folder)
    except WorkbenchError:
        return  # what keeps it from being opened is among the damages
    yield TIES, tie_fact(checkpoint)
    yield from scale_facts(checkpoint)


def rope_fact(config: dict[str, Any]) -> dict[str, Any]:
    """Every place where a config may state the base, and what it says there."""
    text = inner_config(config)
    bases: dict[str, Any] = {}
    for where, part in (("", config), ("text_config.", text)):
        for inner in ("", "rope_parameters", "rope_scaling"):
            section = part.get(inner) if inner else part
            if isinstance(section, dict) and section.get("rope_theta") is not None:
                bases[f"{where}{inner + '.' if inner else ''}rope_theta"] = section["rope_theta"]
    return {"bases": bases, "differ": len({float(base) for base in bases.values() if isinstance(base, int | float)}) > 1}


def tie_fact(checkpoint: Checkpoint) -> dict[str, Any]:
    """`equal`: whether head and embedding hold the same bytes; None where one of them is missing."""
    config = checkpoint.config
    flags = {"top": config.get("tie_word_embeddings"), "text_config": inner_config(config).get("tie_word_embeddings")}
    head = next((name for name in checkpoint.tensors if name.endswith("lm_head.weight")), None)
    embed = next((name for name in checkpoint.tensors if name.endswith("embed_tokens.weight")), None)
    equal = None
    if head is not None and embed is not None:
        equal = read_bytes(checkpoint, head) == read_bytes(checkpoint, embed)
    return {"top": flags["top"], "text_config": flags["text_config"], "head": head, "embedding": embed, "equal": equal}


def read_bytes(checkpoint: Checkpoint, name: str, most: int = 4 << 20) -> bytes:
    """The first bytes of a tensor. OSError where the file cannot be read."""
    import torch
    from safetensors import safe_open

    entry = checkpoint.tensors[name]
    with safe_open(checkpoint.path / entry.file, framework="pt") as file:
        rows = max(1, min(entry.shape[0] if entry.shape else 1, most * (entry.shape[0] if entry.shape else 1) // max(1, entry.nbytes)))
        part = file.get_slice(name)[:rows] if entry.shape else file.get_tensor(name)
    return bytes(part.contiguous().view(torch.uint8).numpy().tobytes())


def scale_facts(checkpoint: Checkpoint) -> Iterator[Fact]:
    """Spread of the weights that scales belong to, and how many scale tensors hold nothing but one value."""
    import torch
    from safetensors import safe_open

    from runtime.inventory.names import SCALES as SCALE_NAMES

    names = [name for name in checkpoint.tensors if SCALE_NAMES.search(name)]
    floats = [name for name in names if checkpoint.tensors[name].dtype in ("F32", "BF16", "F16")]
    if not names:
        return
    step = max(1, len(floats) // SCALE_SAMPLE)
    constant, ones, spreads = [], [], []
    for name in floats[::step]:
        entry = checkpoint.tensors[name]
        weight = name.removesuffix("_scale_inv").removesuffix("_scale")
        with safe_open(checkpoint.path / entry.file, framework="pt") as file:
            scale = file.get_tensor(name).float()
        if bool((scale == 1).all()):
            ones.append(name)
        if scale.numel() > 1 and bool((scale == scale.flatten()[0]).all()):
            constant.append(name)
        if weight in checkpoint.tensors and checkpoint.tensors[weight].dtype.startswith("F8"):
            with safe_open(checkpoint.path / checkpoint.tensors[weight].file, framework="pt") as file:
                values = file.get_slice(weight)[:256].to(torch.float32)
            spreads.append((float(values.std()) * float(scale.median()), name))
    usual = sorted(spread for spread, _ in spreads if not math.isnan(spread))
    yield (
        SCALES,
        {
            "tensors": len(names),
            "read": len(floats[::step]),
            "ones": len(ones),
            "constant": len(constant),
            "names": ones[:8],
            "median_spread": usual[len(usual) // 2] if usual and math.isfinite(usual[len(usual) // 2]) else None,
            "largest_spread": usual[-1] if usual and math.isfinite(usual[-1]) else None,
        },
    )
