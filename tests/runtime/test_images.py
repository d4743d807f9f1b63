"""Pixels equal transformers' Qwen2VLImageProcessorPil, positions equal its get_rope_index."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image, ImageOps

from runtime.images import BadImage, ImageSettings, mrope_positions, preprocess, target_size
from traces.errors import CheckpointError

transformers = pytest.importorskip("transformers")

SHAPES = {"patch_size": 16, "size": {"shortest_edge": 8192, "longest_edge": 10240}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
PUBLISHED = {"patch_size": 16, "size": {"shortest_edge": 65536, "longest_edge": 16777216}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
CLIP = {"min_pixels": 3136, "max_pixels": 100352}  # the defaults otherwise


def reference(image: Image.Image, config: dict):
    """Patches and grid by transformers; a file's orientation is applied where transformers opens files (load_image)."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    out = Qwen2VLImageProcessorPil(**config)(images=[ImageOps.exif_transpose(image)], return_tensors="np")
    return out["pixel_values"], tuple(out["image_grid_thw"][0].tolist())


def picture(mode: str, size: tuple[int, int], seed: int = 0) -> Image.Image:
    """Noise over a gradient: resampling must be exact to match."""
    rng = np.random.default_rng(seed)
    height, width = size[1], size[0]
    gradient = np.linspace(0, 200, width)[None, :, None] * np.linspace(0.3, 1, height)[:, None, None]
    values = (gradient + rng.integers(0, 55, (height, width, 4))).astype(np.uint8)
    rgba = Image.fromarray(values, "RGBA")
    if mode == "P":
        return rgba.convert("RGB").quantize(32)
    return rgba if mode == "RGBA" else rgba.convert(mode)


@pytest.mark.parametrize("config", [SHAPES, PUBLISHED, CLIP], ids=["shapes", "published", "clip"])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "L", "P", "CMYK", "1"])
@pytest.mark.parametrize("size", [(96, 96), (143, 143), (200, 117), (333, 501)])
def test_patches_equal_transformers(config, mode, size):
    image = picture(mode, size)
    patches, grid = preprocess(image, ImageSettings.of(config))
    expected, expected_grid = reference(image, config)
    assert grid == expected_grid
    assert patches.dtype == np.float32 and patches.shape == expected.shape
    one_level = 1 / 255 / min(config.get("image_std", (0.26,)))
    assert np.abs(patches - expected).max() <= one_level * 1e-3  # far below one level of a byte


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation):
    buffer = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture("RGB", (128, 64)).save(buffer, "JPEG", exif=exif)  # a size that is kept: Pillow's order of resampling is of its version
    with Image.open(buffer) as opened:
        patches, grid = preprocess(opened, ImageSettings.of(SHAPES))
        expected, expected_grid = reference(opened, SHAPES)
    assert grid == expected_grid
    assert np.abs(patches - expected).max() < 1e-5


def test_palette_with_transparency_lies_on_white():
    image = picture("P", (64, 64))
    image.info["transparency"] = 3
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    with Image.open(buffer) as opened:
        assert opened.mode == "P"
        patches, _ = preprocess(opened, ImageSettings.of(SHAPES))
        assert np.abs(patches - reference(opened, SHAPES)[0]).max() < 1e-5


@pytest.mark.parametrize("flags", [{"do_rescale": False}, {"do_normalize": False}, {"rescale_factor": 1 / 128}])
def test_flags_of_the_config_are_honoured(flags):
    image, config = picture("RGB", (96, 96)), {**SHAPES, **flags}
    patches, _ = preprocess(image, ImageSettings.of(config))
    assert np.abs(patches - reference(image, config)[0]).max() <= 1e-4


def test_every_size_is_resized_as_transformers_does():
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    rng = np.random.default_rng(5)
    for height, width in rng.integers(8, 1500, (2000, 2)).tolist():
        for config in (SHAPES, PUBLISHED, CLIP):
            settings = ImageSettings.of(config)
            expected = smart_resize(height, width, settings.factor, settings.min_pixels, settings.max_pixels)
            assert target_size(height, width, settings) == expected


def test_a_sliver_is_refused():
    with pytest.raises(BadImage, match="too narrow"):
        preprocess(Image.new("RGB", (1000, 4)), ImageSettings.of(SHAPES))


def test_settings_from_a_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="missing"):
        ImageSettings.read(tmp_path)
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps({**SHAPES, "image_processor_type": "Qwen2VLImageProcessorFast"}))
    assert ImageSettings.read(tmp_path).patch == 16
    path.write_text(json.dumps({**SHAPES, "image_processor_type": "LevitImageProcessor"}))
    with pytest.raises(CheckpointError, match="LevitImageProcessor"):
        ImageSettings.read(tmp_path)


@pytest.mark.parametrize("grids", [[], [(1, 6, 6)], [(1, 4, 10), (1, 2, 2)], [(1, 12, 4), (1, 6, 6), (1, 2, 8)]])
def test_positions_equal_transformers(tiny_qwen3_vl_moe, grids):
    torch = pytest.importorskip("torch")
    model = transformers.AutoModelForImageTextToText.from_pretrained(tiny_qwen3_vl_moe.path).model
    tokens = [1, 2, 3, 4]
    for n, (t, h, w) in enumerate(grids):
        tokens += [302, *[300] * (t * h * w // 4), 303, *range(n)]
    ids = torch.tensor([tokens])
    kinds = (ids == 300).int()
    expected, _ = model.get_rope_index(ids, kinds, torch.tensor(grids) if grids else None)
    assert (mrope_positions(np.array(tokens), grids, 300, 2) == expected[:, 0].numpy()).all()


def test_positions_refuse_a_wrong_count():
    with pytest.raises(ValueError, match="8 image tokens"):
        mrope_positions(np.array([1, *[300] * 8, 2]), [(1, 6, 6)], 300, 2)
    with pytest.raises(ValueError, match="1 images for 0"):
        mrope_positions(np.array([1, 2]), [(1, 6, 6)], 300, 2)
