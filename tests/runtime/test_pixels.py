"""The tensors of every vision family equal those of transformers' PIL processors, for every kind of file that people send."""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps

from runtime.images import BadImage, Grid, ImageSettings, preprocess
from runtime.pixels.geometry import final_size, resized_size
from runtime.pixels.patches import arranged, picture
from runtime.pixels.positions import image_tokens, placeholders
from runtime.pixels.stages import tokens_of

pytest.importorskip("transformers")

CONFIGS: dict[str, dict[str, Any]] = {
    "qwen2_vl": {"image_processor_type": "Qwen2VLImageProcessor", "size": {"shortest_edge": 3136, "longest_edge": 200704}},
    "qwen3_vl": {
        "image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 16, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
        "size": {"shortest_edge": 65536, "longest_edge": 262144},
    },
    "glm4v": {"image_processor_type": "Glm4vImageProcessor", "size": {"shortest_edge": 12544, "longest_edge": 400000}},
    "clip": {"image_processor_type": "CLIPImageProcessor"},
    "siglip": {"image_processor_type": "SiglipImageProcessor", "size": {"height": 384, "width": 384}},
    "pixtral": {"image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 512}},
}  # fmt: skip
MODULES = {"qwen3_vl": "qwen2_vl"}


def width_first(image: Image.Image, size: tuple[int, int], resample: int | None = None, **rest: Any) -> Image.Image:
    """What `Image.resize` is before Pillow 13: the width, then the height. Pillow 13 turns it round where the height shrinks more."""
    for step in ((size[0], image.height), size):
        if image.size != step:
            image = PILLOW_RESIZE(image, step, resample, **rest)
    return image


PILLOW_RESIZE = Image.Image.resize


def reference(name: str, images: list[Image.Image]) -> tuple[Any, Any]:
    """pixel_values and image_grid_thw (None where the family has none) of transformers, whichever Pillow there is."""
    config = dict(CONFIGS[name])
    kind = config.pop("image_processor_type").removesuffix("Fast") + "Pil"
    module = MODULES.get(name, name)
    made = getattr(importlib.import_module(f"transformers.models.{module}.image_processing_pil_{module}"), kind)(**config)
    with patch.object(Image.Image, "resize", width_first):
        out = made(images=[ImageOps.exif_transpose(image) for image in images], return_tensors="np")
    return out["pixel_values"], out.get("image_grid_thw")


@cache
def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """Waves of many lengths and hard edges: resampling, decoding and colours must all be exact to match."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    planes = [128 + 90 * np.sin(x / (3 + 4 * c) + y / (5 + c)) * np.cos(y / (9 - c)) + rng.normal(0, 12, (height, width)) for c in range(3)]
    values = np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8)
    values[height // 4 : height // 3, width // 4 : width // 2] = (250, 10, 30)
    return Image.fromarray(values)


def saved(image: Image.Image, kind: str, **options: Any) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return Image.open(buffer)


def turned(image: Image.Image, tag: int) -> Image.Image:
    exif = Image.Exif()
    exif[0x0112] = tag
    return saved(image, "JPEG", exif=exif, quality=92)


def with_alpha(image: Image.Image) -> Image.Image:
    alpha = np.tile(np.linspace(0, 255, image.width).astype(np.uint8), (image.height, 1))
    image = image.copy()  # pictures are made once
    image.putalpha(Image.fromarray(alpha))
    return image


FORMATS: dict[str, Callable[[], Image.Image]] = {
    "jpeg 4:2:0": lambda: saved(photo(331, 247), "JPEG", quality=85, subsampling=2),
    "jpeg grey": lambda: saved(photo(331, 247).convert("L"), "JPEG"),
    "jpeg cmyk": lambda: saved(photo(331, 247).convert("CMYK"), "JPEG"),
    "jpeg exif 6": lambda: turned(photo(331, 247), 6),
    "jpeg exif 3": lambda: turned(photo(331, 247), 3),
    "png 8": lambda: saved(photo(331, 247), "PNG"),
    "png grey": lambda: saved(photo(331, 247).convert("L"), "PNG"),
    "png palette": lambda: saved(photo(331, 247).quantize(64), "PNG"),
    "png palette transparent": lambda: saved(photo(331, 247).quantize(64), "PNG", transparency=5),
    "png alpha": lambda: saved(with_alpha(photo(331, 247)), "PNG"),
    "png bilevel": lambda: saved(photo(331, 247).convert("1"), "PNG"),
    "webp": lambda: saved(photo(331, 247), "WEBP", quality=80),
    "webp alpha": lambda: saved(with_alpha(photo(331, 247)), "WEBP", lossless=True),
    "gif": lambda: saved(photo(331, 247).quantize(128), "GIF"),
    "1 pixel wide": lambda: photo(1, 150),
    "1 pixel high": lambda: photo(150, 1),
    "1 x 1": lambda: photo(1, 1),
    "3 x 3": lambda: photo(3, 3),
    "very large": lambda: photo(1600, 1200),
    "portrait sliver": lambda: photo(60, 1500),
}


def level(name: str) -> float:
    """What one level of a byte becomes after normalising."""
    return 1 / 255 / max(ImageSettings.of(CONFIGS[name]).std)


def difference(name: str, image: Image.Image) -> float:
    """Largest difference in levels; the grids must be equal."""
    expected, grids = reference(name, [image])
    tensor, grid = preprocess(image, ImageSettings.of(CONFIGS[name], 16))
    if grids is not None:
        assert grid == tuple(grids[0].tolist())
    else:
        expected = expected[0]
    assert tensor.dtype == np.float32 and tensor.shape == expected.shape
    return float(np.abs(tensor - expected).max()) / level(name)


# Every kind of file for two processors; the kinds that decide geometry for all of them; the rest when there is time.
QUICK, ALWAYS = ("qwen3_vl", "clip"), ("jpeg exif 6", "png alpha", "1 pixel wide")
MATRIX = [
    pytest.param(form, name, marks=() if name in QUICK or form in ALWAYS else pytest.mark.slow) for form in FORMATS for name in CONFIGS
]


@pytest.mark.parametrize(("form", "name"), MATRIX)
def test_tensors_are_within_a_level_of_transformers(form: str, name: str) -> None:
    assert difference(name, FORMATS[form]()) <= 1e-2  # of one level; what is asked for is one


@pytest.mark.parametrize("name", CONFIGS)
def test_sixteen_bit_grey_is_scaled_where_the_reference_turns_it_white(name: str) -> None:
    """PIL clamps 16-bit grey when it converts to RGB. We equal transformers given the same picture in 8 bits, within a level."""
    values = np.linspace(0, 65535, 120 * 160).reshape(120, 160).astype(np.uint16)
    deep = saved(Image.fromarray(values), "PNG")
    assert deep.mode == "I;16"
    expected, _ = reference(name, [Image.fromarray(np.rint(values / 257).astype(np.uint8))])
    tensor, _ = preprocess(deep, ImageSettings.of(CONFIGS[name]))
    one_level = 1 / 255 / min(ImageSettings.of(CONFIGS[name]).std)
    assert np.abs(tensor - expected.reshape(tensor.shape)).max() <= 1.001 * one_level
    white, _ = reference(name, [deep])
    recipe = ImageSettings.of(CONFIGS[name])
    full = min((1 - mean) / std for mean, std in zip(recipe.mean, recipe.std, strict=True))
    assert (white > full - 1e-3).mean() > 0.9  # why we leave the reference here


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen3_vl", "glm4v"])
def test_several_images_of_a_prompt(name: str) -> None:
    images = [photo(200, 300, 1), photo(90, 40, 2), photo(512, 512, 3)]
    expected, grids = reference(name, images)
    made = [preprocess(image, ImageSettings.of(CONFIGS[name])) for image in images]
    assert [grid for _, grid in made] == [tuple(grid) for grid in grids.tolist()]
    assert np.abs(np.concatenate([tensor for tensor, _ in made]) - expected).max() <= 0.01 * level(name)


def test_sizes_of_glm_and_pixtral_equal_transformers() -> None:
    from transformers.models.glm4v.image_processing_pil_glm4v import smart_resize
    from transformers.models.pixtral.image_processing_pil_pixtral import get_resize_output_image_size

    rng = np.random.default_rng(3)
    glm, pixtral = ImageSettings.of(CONFIGS["glm4v"]), ImageSettings.of(CONFIGS["pixtral"])
    for height, width in rng.integers(12, 1600, (500, 2)).tolist():
        want = smart_resize(2, height, width, 2, glm.factor, glm.min_pixels, glm.max_pixels)
        assert resized_size(height, width, glm) == want
        array = np.empty((3, height, width), np.uint8)
        assert resized_size(height, width, pixtral) == get_resize_output_image_size(array, (512, 512), (16, 16), "channels_first")


KIMI = {"image_processor_type": "KimiK25VisionProcessor", "media_proc_cfg": {
    "patch_size": 14, "merge_kernel_size": 2, "in_patch_limit": 65536, "patch_limit_on_one_side": 512,
    "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
}}  # fmt: skip


# (most patches, picture, stretched, padded), heights first: what transformers' navit_resize answered where torchvision could be imported.
NAVIT = [
    (200, (600, 900), (163, 245), (168, 252)), (200, (1, 1), (1, 1), (28, 28)), (200, (10000, 100), (2000, 20), (2016, 28)),
    (200, (13, 4000), (10, 3350), (28, 3360)), (200, (4032, 3024), (228, 171), (252, 196)), (200, (20000, 1), (7168, 1), (7168, 28)),
    (16384, (600, 900), (600, 900), (616, 924)), (16384, (10000, 100), (7168, 71), (7168, 84)), (16384, (7169, 29), (7168, 28), (7168, 28)),
    (16384, (4032, 3024), (2069, 1551), (2072, 1568)), (65536, (100, 10000), (71, 7168), (84, 7168)),
    (65536, (4032, 3024), (4032, 3024), (4032, 3024)),
]  # fmt: skip


@pytest.mark.parametrize(("most", "size", "stretched", "padded"), NAVIT)
def test_kimi_never_enlarges_and_pads(most: int, size: tuple[int, int], stretched: tuple[int, int], padded: tuple[int, int]) -> None:
    recipe = ImageSettings.of({**KIMI, "media_proc_cfg": {**KIMI["media_proc_cfg"], "in_patch_limit": most}})
    assert (recipe.patch, recipe.merge, recipe.max_patches) == (14, 2, most)
    assert resized_size(*size, recipe) == stretched and final_size(*size, recipe) == padded


def kimi_reference(image: Image.Image, most: int) -> Any:
    """[P, 3, 14, 14] as transformers' Kimi_K25ImageProcessor computes it, which needs torchvision.

    Its resize of bytes is this call of torch's and its pad this one: measured with torchvision 0.28, every value equal. Sizes are checked
    above.
    """
    from transformers.image_transforms import convert_to_rgb

    recipe = ImageSettings.of({"image_processor_type": "Kimi_K25ImageProcessor", "max_patches": most})
    bytes_ = torch.from_numpy(convert_to_rgb(ImageOps.exif_transpose(image), return_numpy=True)).permute(2, 0, 1)[None]
    size, padded = (function(*bytes_.shape[2:], recipe) for function in (resized_size, final_size))
    if bytes_.shape[2:] != size:
        bytes_ = F.interpolate(bytes_, size, mode="bicubic", antialias=True)
    bytes_ = F.pad(bytes_, (0, padded[1] - size[1], 0, padded[0] - size[0]))
    plain = (bytes_.float() - 127.5) / 127.5
    return plain.unfold(2, 14, 14).unfold(3, 14, 14)[0].permute(1, 2, 0, 3, 4).flatten(0, 1).numpy()


TALL = {
    "tall": lambda: photo(100, 10000), "wide": lambda: photo(10000, 100),
    "tall jpeg": lambda: saved(photo(247, 331), "JPEG"), "png grey alpha": lambda: saved(with_alpha(photo(331, 247)).convert("LA"), "PNG"),
}  # fmt: skip


@pytest.mark.parametrize("form", [*FORMATS, *TALL])
def test_kimi_is_within_a_level_of_torch(form: str) -> None:
    image, recipe = {**FORMATS, **TALL}[form](), {"image_processor_type": "Kimi_K25ImageProcessor", "max_patches": 200}
    tensor, _ = preprocess(image, ImageSettings.of(recipe))
    apart = np.abs(tensor - kimi_reference(image, 200)) * 127.5
    # A level for each of two passes where all is black or white; else one, and rarely: libraries differ in how they round weights.
    assert apart.max() <= (2.01 if form == "png bilevel" else 1.01) and (apart > 0.01).mean() < 0.01


def test_kimi_leaves_a_picture_that_fits_as_it_is() -> None:
    image = FORMATS["jpeg exif 6"]()
    tensor, _ = preprocess(image, ImageSettings.of({"image_processor_type": "Kimi_K25ImageProcessor"}))
    assert np.abs(tensor - kimi_reference(image, 16384)).max() * 127.5 < 0.01


def test_kimi_pads_with_black_at_the_right_and_the_bottom_and_reads_patches_in_reading_order() -> None:
    image = photo(50, 30)
    tensor, grid = preprocess(image, ImageSettings.of(KIMI))
    assert grid == (1, 4, 4) and tensor.shape == (16, 3, 14, 14)
    plain = (np.asarray(image) / 255 - 0.5) / 0.5
    assert np.abs(tensor[1] - plain[:14, 14:28].transpose(2, 0, 1)).max() < 1e-6  # the second patch is the one to the right
    assert (tensor[15] == -1).all() and (tensor[7][:, :, 8:] == -1).all()


def test_a_chessboard_behind_transparent_pictures_is_refused() -> None:
    """As published, K3's preprocessor_config.json lays them on one; opaque pictures are prepared as ever."""
    board = {**KIMI["media_proc_cfg"], "transparent_bg_config": {"pattern": "chessboard"}}
    recipe = ImageSettings.of({"image_processor_type": "KimiK3VisionProcessor", "media_proc_cfg": board})
    clear = photo(64, 48).convert("RGBA")
    assert np.array_equal(preprocess(clear, recipe)[0], preprocess(photo(64, 48), ImageSettings.of(KIMI))[0])
    clear.putpixel((3, 3), (0, 0, 0, 0))
    with pytest.raises(BadImage, match="transparent picture, which this model wants on a chessboard"):
        preprocess(clear, recipe)


@pytest.mark.parametrize("name", [*CONFIGS, "kimi"])
def test_a_picture_comes_back_from_its_tensor(name: str) -> None:
    recipe = ImageSettings.of(KIMI if name == "kimi" else CONFIGS[name])
    values = np.random.default_rng(0).random((recipe.factor * 6, recipe.factor * 4, 3), np.float32)
    grid: Grid = (1, values.shape[0] // recipe.patch, values.shape[1] // recipe.patch)
    assert (picture(arranged(values, recipe), grid, recipe) == values).all()


def test_every_stage_is_tapped_in_order() -> None:
    from probes.points import TAPS

    seen: dict[str, tuple[int, ...]] = {}
    recipe = ImageSettings.of(CONFIGS["qwen3_vl"])
    tensor, _ = preprocess(turned(photo(300, 200), 6), recipe, lambda stage, values: seen.update({stage: values.shape}))
    rows, columns = resized_size(300, 200, recipe)
    assert list(seen.items()) == [
        ("image.oriented", (300, 200, 3)), ("image.flat", (300, 200, 3)), ("image.resized", (rows, columns, 3)),
        ("image.rescaled", (rows, columns, 3)), ("image.normalised", (rows, columns, 3)), ("image.pixels", tensor.shape),
    ]  # fmt: skip
    assert set(seen) <= set(TAPS)


def test_tokens_and_placeholders() -> None:
    """672, 532 and 504 tokens for 600 x 900 pixels at factors 28, 32 and both: the reference's measured geometry."""
    wide = {"size": {"shortest_edge": 4, "longest_edge": 1 << 24}}
    assert tokens_of(600, 900, ImageSettings.of({**CONFIGS["qwen2_vl"], **wide})) == 672
    qwen3 = ImageSettings.of({**CONFIGS["qwen3_vl"], **wide})
    assert tokens_of(600, 900, qwen3) == 532 and tokens_of(588, 896, qwen3) == 504
    assert image_tokens((1, 38, 56), qwen3) == 532 == len(placeholders((1, 38, 56), qwen3, 7))
    # Pixtral: [IMG] a patch, [IMG_BREAK] after a row, [IMG_END] after the last (2 x 3 patches)
    assert placeholders((1, 2, 3), ImageSettings.of(CONFIGS["pixtral"]), 10, 12, 13) == [10, 10, 10, 12, 10, 10, 10, 13]


def test_a_sliver_is_refused_by_name() -> None:
    for name in ("qwen2_vl", "glm4v"):
        with pytest.raises(BadImage, match="too narrow"):
            preprocess(Image.new("RGB", (14000, 60)), ImageSettings.of(CONFIGS[name]))
