"""What a folder is: a checkpoint with or without an index, a training checkpoint of another format, or neither."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from probes.checkpoint import INDEX, SINGLE
from runtime.verification.document import Problem
from traces.errors import CheckpointError


class _Index(msgspec.Struct):
    weight_map: dict[str, str]
    metadata: dict[str, msgspec.Raw] = {}


@dataclass(slots=True)
class Folder:
    """The shards of a checkpoint. `weight_map` None: one file, or an index that is missing (then `problems` says so)."""

    root: Path
    files: list[str]
    weight_map: dict[str, str] | None = None
    stated_bytes: int | None = None  # metadata.total_size of the index
    problems: list[Problem] = field(default_factory=list)


def read_folder(root: Path) -> Folder:
    """CheckpointError for what cannot be a checkpoint in safetensors: another format, nothing at all, an index that is no index."""
    try:
        if not root.is_dir():
            raise CheckpointError(f"{root} is not a folder", "give the folder that holds config.json and *.safetensors")
        present = sorted(path.name for path in root.iterdir() if path.name.endswith(".safetensors"))
    except OSError as error:
        raise CheckpointError(f"{root} cannot be listed: {error.strerror or error}", "check the path and its permissions") from error
    if (root / INDEX).exists():
        return _indexed(root, present)
    if SINGLE in present:
        others = [Problem(name, "", "unlisted-file", f"beside {SINGLE}, and in no index") for name in present if name != SINGLE]
        return Folder(root, [SINGLE], problems=others)
    _refuse_training_formats(root)
    if not present:
        raise CheckpointError(f"{root} holds neither {INDEX} nor {SINGLE}", "finish the download: weights in safetensors are needed")
    lost = Problem(INDEX, "", "missing-index", f"{len(present)} shards and nothing that lists them: a missing shard would not be noticed")
    return Folder(root, present, problems=[lost])


def _indexed(root: Path, present: list[str]) -> Folder:
    try:
        index = msgspec.json.decode((root / INDEX).read_bytes(), type=_Index)
    except OSError as error:
        raise CheckpointError(f"{INDEX} cannot be read: {error.strerror or error}", "download it again") from error
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{INDEX} is no index: {error}", "download it again") from error
    listed = sorted(set(index.weight_map.values()))
    folder = Folder(root, [], index.weight_map, _total(index))
    for name in listed:
        if Path(name).name != name:
            folder.problems.append(Problem(INDEX, "", "missing-file", f"it names {name!r}, which is not a file of this folder"))
        elif name not in present:
            folder.problems.append(Problem(name, "", "missing-file", "listed in the index, not in the folder"))
        else:
            folder.files.append(name)
    unlisted = sorted(set(present) - set(listed))
    folder.problems += [Problem(name, "", "unlisted-file", "not in the index: shards of two checkpoints may be mixed") for name in unlisted]
    return folder


def _total(index: _Index) -> int | None:
    raw = index.metadata.get("total_size")
    try:
        return None if raw is None else int(msgspec.json.decode(raw, type=float | int))
    except (msgspec.DecodeError, OverflowError, ValueError):
        return None


def _refuse_training_formats(root: Path) -> None:
    names = {path.name for path in root.iterdir()}
    if ".metadata" in names or any(name.endswith(".distcp") for name in names):
        raise CheckpointError(
            f"{root} is a distributed training checkpoint (torch DCP), not a model to serve",
            "convert it: `python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER weights.pt`, load that state into the "
            "model in transformers and save_pretrained it",
        )
    megatron = {"latest_checkpointed_iteration.txt", "common.pt", "mp_rank_00"} & names
    if megatron or any(name.startswith(("iter_", "mp_rank_")) for name in names):
        raise CheckpointError(
            f"{root} is a Megatron training checkpoint ({min(megatron or names)}), not a model to serve",
            "export it to the Hugging Face layout: Megatron Bridge's AutoBridge.export_ckpt, or the converter it was imported with",
        )
    if any(name.endswith((".bin", ".pt", ".pth")) for name in names):
        raise CheckpointError(
            f"{root} holds pickled weights only", "convert them to safetensors: pickles can execute code and are not read"
        )
