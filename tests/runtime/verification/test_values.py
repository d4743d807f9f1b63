"""Every byte: values against what torch decodes, planted damage, and manifests."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from runtime.verification.headers import examine
from runtime.verification.scan import scan
from runtime.verification.values import decode
from runtime.verification.verify import Wanted, verify
from traces.errors import UsageError

SHARD = "model-00003-of-00009.safetensors"


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_every_code_of_8_bits_decodes_as_torch_decodes_it(name: str) -> None:
    torch = pytest.importorskip("torch")
    dtype = {"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0"}[name]
    codes = np.arange(256, dtype=np.uint8)
    expected = torch.from_numpy(codes.copy()).view(getattr(torch, name)).float().numpy()
    found = decode(dtype, memoryview(codes.tobytes()))
    assert found is not None
    np.testing.assert_array_equal(found, expected)


def test_bfloat16_decodes_as_torch_decodes_it() -> None:
    torch = pytest.importorskip("torch")
    codes = np.arange(1 << 16, dtype=np.uint16)
    expected = torch.from_numpy(codes.view(np.int16).copy()).view(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(decode("BF16", memoryview(codes.tobytes())), expected)


def poke(path: Path, offset_from_end: int, data: bytes) -> None:
    size = path.stat().st_size
    with path.open("r+b") as stream:
        stream.seek(size - offset_from_end)
        stream.write(data)


def test_the_shipped_model_is_sound(copy: Path) -> None:
    found = verify(copy, Wanted(deep=True))
    assert found.status == "ok" and found.checked == ["headers", "values"], found.problems


def test_nan_is_found(copy: Path) -> None:
    poke(copy / SHARD, 64, b"\xc0\x7f")  # a bfloat16 NaN
    (problem,) = verify(copy, Wanted(deep=True)).problems
    assert problem.kind == "non-finite" and problem.file == SHARD and problem.detail.startswith("1 of")


def test_a_tail_of_zeros_is_found(copy: Path) -> None:
    """What a download leaves that had reserved its space and stopped."""
    poke(copy / SHARD, 4096, bytes(4096))
    found = verify(copy, Wanted(deep=True)).problems
    assert any(problem.kind == "zeros" and problem.file == SHARD and "last" in problem.detail for problem in found)


def many_experts(folder: Path, scale: dict[int, float]) -> None:
    """Sixteen experts of one projection, some of them scaled."""
    draw = np.random.default_rng(3)
    names = [f"model.layers.0.mlp.experts.{e}.up_proj.weight" for e in range(16)]
    values = {name: (draw.normal(size=(32, 64)) * scale.get(e, 1.0)).astype(np.float32) for e, name in enumerate(names)}
    save_file(values, folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "any"}')


@pytest.mark.parametrize(("factor", "found"), [(1.0, 0), (2.0, 0), (16.0, 1), (1 / 16, 1)])
def test_an_expert_of_another_scale_is_found(tmp_path: Path, factor: float, found: int) -> None:
    many_experts(tmp_path, {5: factor})
    problems = verify(tmp_path, Wanted(deep=True)).problems
    assert len(problems) == found
    assert all(problem.kind == "outlier" and ".experts.5." in problem.tensor for problem in problems)


def test_a_manifest_passes_the_same_and_names_what_differs(copy: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "hashes.json"
    assert verify(copy, Wanted(write_hash=manifest)).status == "ok"
    assert verify(copy, Wanted(hash_file=manifest)).status == "ok"
    poke(copy / SHARD, 64, b"\x01\x02")
    (problem,) = verify(copy, Wanted(hash_file=manifest)).problems
    assert problem.kind == "hash" and problem.file == SHARD


def test_a_manifest_survives_another_cut_into_shards(copy: Path, tmp_path: Path) -> None:
    """Hashes are of tensors: written by the safetensors library into one file, the model still is the same."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file as load_torch
    from safetensors.torch import save_file as save_torch

    manifest, one = tmp_path / "hashes.json", tmp_path / "one"
    verify(copy, Wanted(write_hash=manifest))
    one.mkdir()
    tensors: dict[str, torch.Tensor] = {}
    for file in copy.glob("*.safetensors"):
        tensors |= load_torch(file)
    save_torch(tensors, one / "model.safetensors")
    shutil.copy(copy / "config.json", one)
    assert verify(one, Wanted(hash_file=manifest)).status == "ok"


def test_sha256sum_is_read(copy: Path, tmp_path: Path) -> None:
    done = subprocess.run("sha256sum *.safetensors", shell=True, cwd=copy, capture_output=True, text=True, check=True)
    sums = tmp_path / "SHA256SUMS"
    sums.write_text(done.stdout)
    assert verify(copy, Wanted(hash_file=sums)).status == "ok"
    poke(copy / SHARD, 64, b"\x01\x02")
    (problem,) = verify(copy, Wanted(hash_file=sums)).problems
    assert (problem.kind, problem.file) == ("hash", SHARD)


def test_a_damaged_checkpoint_makes_no_manifest(copy: Path, tmp_path: Path) -> None:
    (copy / SHARD).unlink()
    manifest = tmp_path / "hashes.json"
    assert verify(copy, Wanted(write_hash=manifest)).status == "damaged"
    assert not manifest.exists()


@pytest.mark.parametrize("text", ["", "nonsense", '{"schema": "other", "tensors": {}}'])
def test_what_is_no_manifest_is_refused(copy: Path, tmp_path: Path, text: str) -> None:
    manifest = tmp_path / "hashes.json"
    manifest.write_text(text)
    with pytest.raises(UsageError, match="manifest"):
        verify(copy, Wanted(hash_file=manifest))


def test_reads_that_fail_are_named_and_the_rest_is_read(copy: Path) -> None:
    """A disk that answers every tenth read with an error."""
    import os

    examined = examine(copy)
    count = 0

    def failing(descriptor: int, nbytes: int, offset: int) -> bytes:
        nonlocal count
        count += 1
        if count % 10 == 0:
            raise OSError(5, "Input/output error")
        return os.pread(descriptor, nbytes, offset)

    problems = scan(copy, examined.files, lambda tensor: [], pread=failing)
    assert len(problems) == examined.tensors // 10
    assert {problem.kind for problem in problems} == {"unreadable"} and "Input/output" in problems[0].detail


def test_values_read_are_those_the_library_reads(copy: Path) -> None:
    """The scan hands over the bytes of the tensors that their headers name."""
    from runtime.verification.scan import Tensor

    seen: dict[str, bytes] = {}

    class Keep:
        def __init__(self, tensor: Tensor) -> None:
            self.name = tensor.name

        def feed(self, piece: memoryview) -> None:
            seen[self.name] = seen.get(self.name, b"") + bytes(piece)

        def done(self) -> list:  # type: ignore[type-arg]
            return []

    many_experts(copy.parent, {})
    assert scan(copy.parent, examine(copy.parent).files, lambda tensor: [Keep(tensor)]) == []
    expected = load_file(copy.parent / "model.safetensors")
    assert {name: values.tobytes() for name, values in expected.items()} == seen


def test_document_is_json(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from workbench.cli.main import run

    (copy / SHARD).unlink()
    assert run(["verify", str(copy), "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "workbench.verify.v1" and document["status"] == "damaged"
    assert set(document["problems"][0]) == {"file", "tensor", "kind", "detail"}
    assert run(["verify", str(copy / "absent")]) == 2
