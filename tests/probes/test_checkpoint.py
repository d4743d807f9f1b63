"""The header reader agrees with the safetensors library, and names what is wrong with a damaged checkpoint."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from probes.checkpoint import Checkpoint
from traces.errors import CheckpointError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards with an index, written by the safetensors library."""
    shards = {
        "model-00001-of-00002.safetensors": {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(5, dtype=np.float16)},
        "model-00002-of-00002.safetensors": {"c": np.zeros((4, 2), dtype=np.int8)},
    }
    for file, tensors in shards.items():
        save_file(tensors, tmp_path / file, metadata={"format": "pt"})
    weight_map = {name: file for file, tensors in shards.items() for name in tensors}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "anything"}))
    return tmp_path


def first(folder: Path) -> Path:
    return folder / "model-00001-of-00002.safetensors"


def test_entries_lead_to_the_values_the_library_reads(folder):
    checkpoint = Checkpoint.open(folder)
    assert checkpoint.config == {"model_type": "anything"}
    assert set(checkpoint.tensors) == {"a", "b", "c"}
    assert checkpoint.stored_bytes == 24 + 10 + 8
    kinds = {"F32": np.float32, "F16": np.float16, "I8": np.int8}
    for name, entry in checkpoint.tensors.items():
        with safe_open(folder / entry.file, framework="numpy") as library:
            expected = library.get_tensor(name)
        stored = np.fromfile(folder / entry.file, dtype=kinds[entry.dtype], count=expected.size, offset=entry.offset)
        assert (stored.reshape(entry.shape) == expected).all()
        assert entry.nbytes == expected.nbytes


def test_one_file_needs_no_index(tmp_path):
    save_file({"w": np.ones(3, dtype=np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    assert Checkpoint.open(tmp_path).files == ["model.safetensors"]


def edit_header(path: Path, change) -> None:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    fresh = json.dumps(header).encode()
    path.write_bytes(len(fresh).to_bytes(8, "little") + fresh + data[8 + length :])


def damage_missing(folder):
    first(folder).unlink()


def damage_unlisted(folder):
    shutil.copy(first(folder), folder / "model-00003-of-00002.safetensors")


def damage_truncated(folder):
    first(folder).write_bytes(first(folder).read_bytes()[:-1])


def damage_half_header(folder):
    first(folder).write_bytes(first(folder).read_bytes()[:20])


def damage_trailing(folder):
    with first(folder).open("ab") as stream:
        stream.write(b"xx")


def damage_overlap(folder):
    edit_header(first(folder), lambda h: h["b"].update(data_offsets=[20, 30]))


def damage_shape(folder):
    edit_header(first(folder), lambda h: h["a"].update(shape=[2, 4]))


def damage_dtype(folder):
    edit_header(first(folder), lambda h: h["a"].update(dtype="F31"))


def damage_renamed(folder):
    edit_header(first(folder), lambda h: h.update(z=h.pop("a")))


def damage_extra_in_index(folder):
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["ghost"] = first(folder).name
    path.write_text(json.dumps(index))


def damage_outside(folder):
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))


def damage_lacking_in_index(folder):
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    del index["weight_map"]["b"]
    path.write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (damage_missing, ["model-00001-of-00002.safetensors", "missing"]),
        (damage_unlisted, ["model-00003-of-00002.safetensors", "not listed"]),
        (damage_truncated, ["model-00001-of-00002.safetensors", "truncated"]),
        (damage_half_header, ["model-00001-of-00002.safetensors", "truncated"]),
        (damage_trailing, ["model-00001-of-00002.safetensors", "2 bytes"]),
        (damage_overlap, ["tensor b", "overlaps"]),
        (damage_shape, ["tensor a", "needs 32 bytes"]),
        (damage_dtype, ["tensor a", "F31"]),
        (damage_renamed, ["tensor a", "not in its header"]),
        (damage_extra_in_index, ["tensor ghost", "not in its header"]),
        (damage_lacking_in_index, ["tensor b", "not in the index"]),
        (damage_outside, ["../secret.safetensors", "not a file of this folder"]),
    ],
)
def test_damage_is_named_with_a_remedy(folder, damage, says):
    damage(folder)
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(folder)
    for words in says:
        assert words in caught.value.message
    assert caught.value.hint and caught.value.exit_code == 2


def test_pickles_are_not_read(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(CheckpointError, match="pickle"):
        Checkpoint.open(tmp_path)


def test_no_folder_and_no_config(tmp_path):
    with pytest.raises(CheckpointError, match="not a folder"):
        Checkpoint.open(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        Checkpoint.open(tmp_path)


def test_reads_headers_without_torch(folder):
    code = f"import sys; from probes.checkpoint import Checkpoint; Checkpoint.open({str(folder)!r}); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
