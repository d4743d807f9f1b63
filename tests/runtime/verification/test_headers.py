"""Damage of every kind is named; what is no checkpoint is refused; a sound one of any size passes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.verification.document import VerifyDocument
from runtime.verification.verify import verify
from traces.errors import CheckpointError

EditHeader = Callable[[Path, Callable[[dict[str, Any]], Any]], None]


def kinds(document: VerifyDocument) -> set[str]:
    assert (document.status == "damaged") == bool(document.problems)
    return {problem.kind for problem in document.problems}


def a_name(path: Path) -> str:
    raw = path.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    return next(name for name in header if name != "__metadata__")


def test_a_sound_checkpoint_passes(copy: Path) -> None:
    found = verify(copy)
    assert found.status == "ok" and not found.problems and found.tensors == 104 and found.bytes == 6_879_872
    assert found.checked == ["headers"]


def test_a_truncated_file_is_named(copy: Path, shard: Path) -> None:
    os.truncate(shard, shard.stat().st_size - 1000)
    found = verify(copy)
    assert kinds(found) == {"truncated"} and found.problems[0].file == shard.name and found.problems[0].tensor
    assert "download" in found.hint


def test_a_file_cut_inside_its_header_is_named(copy: Path, shard: Path) -> None:
    os.truncate(shard, 100)
    found = verify(copy)
    assert kinds(found) == {"truncated"} and "claims" in found.problems[0].detail


def test_an_empty_file_is_named(copy: Path, shard: Path) -> None:
    os.truncate(shard, 0)
    assert kinds(verify(copy)) == {"truncated"}


@pytest.mark.parametrize("length", [1 << 40, (1 << 64) - 1])
def test_a_header_that_lies_about_its_length_is_named(copy: Path, shard: Path, length: int) -> None:
    with shard.open("r+b") as stream:
        stream.write(length.to_bytes(8, "little"))
    assert kinds(verify(copy)) == {"bad-header"}


def test_a_header_that_claims_too_little_is_named(copy: Path, shard: Path) -> None:
    with shard.open("r+b") as stream:
        stream.write((50).to_bytes(8, "little"))
    assert kinds(verify(copy)) == {"bad-header"}


@pytest.mark.parametrize("offset", [1 << 63, 1 << 65, -5])
def test_impossible_offsets_are_named(copy: Path, shard: Path, edit_header: EditHeader, offset: int) -> None:
    """8 EB and beyond."""
    name = a_name(shard)
    edit_header(shard, lambda header: header[name].update(data_offsets=[offset, offset + 8]))
    found = verify(copy)
    assert "bad-header" in kinds(found) and found.problems[0].tensor == name


def test_overlapping_tensors_are_named(copy: Path, shard: Path, edit_header: EditHeader) -> None:
    def onto(header: dict[str, Any]) -> None:
        names = sorted((n for n in header if n != "__metadata__"), key=lambda n: header[n]["data_offsets"])
        begin, end = header[names[1]]["data_offsets"]
        header[names[1]]["data_offsets"] = [begin - 8, end - 8]

    edit_header(shard, onto)
    assert "overlap" in kinds(verify(copy))


def test_a_duplicate_in_one_header_is_named(copy: Path, shard: Path, edit_header: EditHeader) -> None:
    name = a_name(shard)
    edit_header(shard, lambda header: json.dumps(header)[:-1] + f', "{name}": {json.dumps(header[name])}}}')
    found = verify(copy)
    assert kinds(found) == {"duplicate"} and found.problems[0].tensor == name


def test_a_duplicate_in_two_files_is_named(copy: Path, shard: Path) -> None:
    other = copy / "model-00004-of-00009.safetensors"
    other.write_bytes(shard.read_bytes())
    found = verify(copy)
    assert {"duplicate", "missing"} <= kinds(found)


def test_a_missing_and_an_unlisted_shard_are_named(copy: Path, shard: Path) -> None:
    shard.rename(copy / "other.safetensors")
    found = verify(copy)
    assert {"missing-file", "unlisted-file"} == kinds(found)
    assert {problem.file for problem in found.problems} == {shard.name, "other.safetensors"}


def test_a_missing_index_is_named(copy: Path) -> None:
    (copy / "model.safetensors.index.json").unlink()
    assert kinds(verify(copy)) == {"missing-index"}


def test_an_index_without_files_is_named(copy: Path) -> None:
    for file in copy.glob("*.safetensors"):
        file.unlink()
    found = verify(copy)
    assert kinds(found) == {"missing-file"} and len(found.problems) == 9


def test_a_tensor_the_config_asks_for_and_one_it_does_not_know(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    config["text_config"]["num_hidden_layers"] = 5
    (copy / "config.json").write_text(json.dumps(config))
    found = verify(copy)
    assert kinds(found) == {"missing"} and all(".layers.4." in problem.tensor for problem in found.problems)
    config["text_config"]["num_hidden_layers"] = 3
    (copy / "config.json").write_text(json.dumps(config))
    found = verify(copy)
    assert kinds(found) == {"extra"} and all(".layers.3." in problem.tensor for problem in found.problems)


def test_a_wrong_shape_and_a_wrong_dtype_are_named(copy: Path, shard: Path, edit_header: EditHeader) -> None:
    """Same bytes, other meaning: only the config can tell."""

    router, other = "model.language_model.layers.1.mlp.gate.weight", "model.language_model.layers.1.mlp.experts.down_proj"

    def change(header: dict[str, Any]) -> None:
        header[router]["shape"].reverse()
        header[other]["dtype"] = "I16"

    edit_header(shard, change)
    found = {problem.tensor: problem.kind for problem in verify(copy).problems}
    assert found == {router: "wrong-shape", other: "wrong-dtype"}


def test_a_tensor_in_another_file_than_the_index_says_is_named(copy: Path) -> None:
    path = copy / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    names = list(index["weight_map"])
    first, other = names[0], next(name for name in names if index["weight_map"][name] != index["weight_map"][names[0]])
    index["weight_map"][first] = index["weight_map"][other]
    path.write_text(json.dumps(index))
    found = verify(copy)
    assert kinds(found) == {"misplaced"} and found.problems[0].tensor == first


def test_a_symlink_loop_and_a_pipe_are_named(copy: Path, shard: Path) -> None:
    shard.unlink()
    shard.symlink_to(shard.name)
    assert kinds(verify(copy)) == {"unreadable"}
    shard.unlink()
    os.mkfifo(shard)
    assert kinds(verify(copy)) == {"unreadable"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_named(copy: Path, shard: Path) -> None:
    shard.chmod(0)
    assert kinds(verify(copy)) == {"unreadable"}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["__0_0.distcp", ".metadata"], "torch DCP"),
        (["latest_checkpointed_iteration.txt"], "Megatron"),
        (["mp_rank_00"], "Megatron"),
        (["pytorch_model.bin"], "pickled"),
        ([], "finish the download"),
    ],
)
def test_other_formats_are_refused_with_what_to_do(tmp_path: Path, files: list[str], words: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(CheckpointError) as caught:
        verify(tmp_path)
    assert words in str(caught.value) and caught.value.hint and caught.value.exit_code == 2


def test_no_folder_and_a_loop_of_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for name in ("absent", "loop"):
        with pytest.raises(CheckpointError, match="not a folder"):
            verify(tmp_path / name)


def test_an_index_that_is_none_is_refused(copy: Path) -> None:
    (copy / "model.safetensors.index.json").write_text("[1]")
    with pytest.raises(CheckpointError, match="no index"):
        verify(copy)


def test_an_unknown_model_type_is_said_not_passed_over(copy: Path) -> None:
    (copy / "config.json").write_text('{"model_type": "llama"}')
    found = verify(copy)
    assert found.status == "ok" and "nothing was compared with the config" in found.notes[0]
