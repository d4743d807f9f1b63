"""Quantised weights decode to the bit as independent decoders say; damaged or unannounced ones are refused by name."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from probes.checkpoint import Checkpoint  # noqa: E402
from runtime.arch import QuantSpec, read_arch  # noqa: E402
from runtime.dequant import decode  # noqa: E402
from runtime.load_mode import LoadSettings  # noqa: E402
from runtime.loader import Loader  # noqa: E402
from runtime.placement import Placement  # noqa: E402
from runtime.plan import plan_rank  # noqa: E402
from runtime.quantisation import read_quantisation  # noqa: E402
from traces.errors import CheckpointError  # noqa: E402


def random_bytes(*shape: int, low: int = 0, high: int = 256):
    return torch.randint(low, high, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(4))


def test_mxfp4_equals_transformers():
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks, scales = random_bytes(3, 6, 4, 16), random_bytes(3, 6, 4, low=100, high=150)
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).transpose(1, 2)
    for expert in range(3):
        assert torch.equal(decode("mxfp4", blocks[expert].flatten(1), scales[expert], (1, 32)), theirs[expert])


def test_fp8_blocks_equal_transformers():
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    values = torch.randn(384, 256, generator=torch.Generator().manual_seed(1)).to(torch.float8_e4m3fn)
    scales = torch.rand(3, 2, generator=torch.Generator().manual_seed(2))
    theirs = Fp8Dequantize(None)._dequantize_one(values, scales, torch.float32)
    assert torch.equal(decode("fp8_block", values, scales, (128, 128)), theirs)
    # A piece that begins within a block of rows is scaled by the right ones.
    assert torch.equal(decode("fp8_block", values[100:300], scales, (128, 128), first=100), theirs[100:300])


def test_fp8_blocks_at_the_edges_may_be_cut():
    """DeepSeek-V3's kv_a_proj_with_mqa has 576 rows: the last block is half a block. Written out value by value."""
    values = torch.randn(5, 7, generator=torch.Generator().manual_seed(1)).to(torch.float8_e4m3fn)
    scales = torch.tensor([[1.0, 3.0], [0.5, 7.0]])
    out = decode("fp8_block", values, scales, (4, 4))
    for row in range(5):
        for column in range(7):
            assert out[row, column] == float(values[row, column].float()) * float(scales[row // 4, column // 4])


def test_int4_equals_compressed_tensors():
    """Products in bfloat16, the dtype of its scales, are ours rounded once."""
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

    packed = torch.randint(-(1 << 31), (1 << 31) - 1, (12, 8), dtype=torch.int32, generator=torch.Generator().manual_seed(9))
    scales = torch.rand(12, 2, generator=torch.Generator().manual_seed(8)).bfloat16()
    integers = unpack_from_int32(packed, 4, torch.Size((12, 64)))
    theirs = (integers.bfloat16().unflatten(1, (2, 32)) * scales.unsqueeze(-1)).flatten(1)
    assert torch.equal(decode("int4", packed, scales, (1, 32)).bfloat16(), theirs)


def test_int4_written_out():
    packed = torch.tensor([[0x7F6E5D4C, -1]], dtype=torch.int32)  # nibbles from the lowest: C 4 D 5 E 6 F 7, then eight F
    out = decode("int4", packed, torch.tensor([[0.5]], dtype=torch.bfloat16), (1, 16))
    assert out.tolist() == [[2.0, -2.0, 2.5, -1.5, 3.0, -1.0, 3.5, -0.5, *[3.5] * 8]]


def targets(folder: Path, **settings) -> dict:
    checkpoint = Checkpoint.open(folder)
    arch = read_arch(checkpoint.config)
    plan = plan_rank(checkpoint, arch, Placement.contiguous(len(arch.moe_layers), arch.moe.experts, 1), 0)
    assert plan.bytes_read <= checkpoint.stored_bytes
    return Loader(folder, torch.float32, settings=LoadSettings(**settings)).load(plan)


@pytest.mark.parametrize("name", ["deepseek_v3_fp8", "gpt_oss_mxfp4", "kimi_k25", "kimi_k3"])
def test_small_reads_decode_alike(families, name):
    """Pieces of a few rows, scales in other files than what they scale."""
    folder = families[name].path
    whole, pieces = targets(folder), targets(folder, chunk=4096, threads=1)
    assert all(torch.equal(whole[key], pieces[key]) for key in whole)


def change(source: Path, folder: Path, edit, config=None) -> Path:
    """A copy as one file, with edited tensors and config."""
    tensors = {name: tensor for file in source.glob("*.safetensors") for name, tensor in load_file(file).items()}
    edit(tensors)
    settings = json.loads((source / "config.json").read_text())
    if config is not None:
        config(settings)
    folder.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


FP8 = "model.layers.1.self_attn.kv_b_proj.weight"
PACKED = "language_model.model.layers.1.block_sparse_moe.experts.3.w2.weight"


@pytest.mark.parametrize(
    ("name", "edit", "says"),
    [
        ("deepseek_v3_fp8", lambda t: t.pop(f"{FP8}_scale_inv"), f"the scales {FP8}_scale_inv are missing"),
        ("deepseek_v3_fp8", lambda t: t.update({f"{FP8}_scale_inv": torch.ones(1, 1)}), r"_scale_inv in .* has shape \[1, 1\]"),
        ("deepseek_v3_fp8", lambda t: t.update({FP8: t[FP8].view(torch.uint8)}), "dtype U8, config.json announces fp8_block"),
        ("deepseek_v3_fp8", lambda t: t[f"{FP8}_scale_inv"].fill_(torch.inf), "_scale_inv in .* non-finite"),
        ("kimi_k3", lambda t: t.pop(f"{PACKED}_packed"), f"tensor {PACKED} is missing"),
        ("kimi_k3", lambda t: t.update({f"{PACKED}_packed": t[f"{PACKED}_packed"][:, :8]}), r"w2.weight_packed in .* has shape \[32, 8\]"),
        ("kimi_k3", lambda t: t[f"{PACKED}_scale"].fill_(255), "w2.weight_packed in .* 1024 non-finite"),
        ("kimi_k25", lambda t: t.update({k: v.float() for k, v in t.items() if k.endswith("_packed")}), "weight_packed in .* dtype F32"),
    ],
)
def test_damaged_quantised_weights_are_refused_by_name(families, tmp_path, name, edit, says):
    folder = change(families[name].path, tmp_path / "copy", edit)
    with pytest.raises(CheckpointError, match=says):
        targets(folder)


def test_quantised_weights_need_their_setting(families, tmp_path):
    folder = change(families["deepseek_v3_fp8"].path, tmp_path / "copy", lambda t: None, lambda c: c.pop("quantization_config"))
    with pytest.raises(CheckpointError, match=r"dtype F8_E4M3, config\.json announces no quantisation"):
        targets(folder)


INT4 = {"num_bits": 4, "group_size": 32, "symmetric": True, "strategy": "group"}


def compressed(kind: str, **weights):
    return {"quant_method": "compressed-tensors", "format": kind, "config_groups": {"group_0": {"weights": {**INT4, **weights}}}}


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}, QuantSpec("fp8_block")),
        ({"quant_method": "mxfp4"}, QuantSpec("mxfp4")),
        ({"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}, QuantSpec("mxfp4")),
        (compressed("pack-quantized"), QuantSpec("int4")),
        (compressed("pack-quantized", group_size=128), QuantSpec("int4", group=128)),
    ],
)
def test_formats_with_a_decoder(setting, expected):
    for config in ({"quantization_config": setting}, {"text_config": {"quantization_config": setting}}):
        found = read_quantisation(config)
        assert found is not None and found.spec == expected


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"quant_method": "awq"}, "awq"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "fp8", "fmt": "e5m2", "weight_block_size": [128, 128]}, "e5m2"),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "nvfp4-pack-quantized"),
        (compressed("pack-quantized", num_bits=8), "pack-quantized"),
        (compressed("pack-quantized", symmetric=False), "pack-quantized"),
        (compressed("pack-quantized", actorder="group"), "pack-quantized"),
    ],
)
def test_formats_without_a_decoder_are_refused_by_name(setting, says):
    with pytest.raises(CheckpointError, match=says) as caught:
        read_quantisation({"quantization_config": setting})
    assert "bfloat16" in caught.value.hint


def test_contradicting_settings_are_refused():
    both = {"quantization_config": {"quant_method": "mxfp4"}, "text_config": {"quantization_config": {"quant_method": "awq"}}}
    with pytest.raises(CheckpointError, match="two quantization_config that differ"):
        read_quantisation(both)


def test_headers_alone_need_no_torch():
    """The plan of a quantised checkpoint is made where torch is not imported."""
    import subprocess

    code = "import sys; import runtime.plan, runtime.families; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
