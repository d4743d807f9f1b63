"""Ways in which engines prepare a picture wrongly, for drills: each is a whole pipeline, made without `runtime/pixels`.

A pipeline takes a file's bytes, a config and a dose (`strength` chooses the variant), and returns what an engine would dump:
float32 [P, 3 * 2 * patch * patch] and the grid.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from playbooks.drills.drill import Dose

Array = NDArray[Any]
Made = tuple[Array, tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Config:
    """Of a preprocessor_config.json of Qwen2-VL's kind."""

    patch: int
    merge: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    smallest: int
    largest: int

    @classmethod
    def of(cls, raw: dict[str, Any]) -> Config:
        size = raw["size"]
        return cls(
            raw["patch_size"],
            raw["merge_size"],
            tuple(raw["image_mean"]),
            tuple(raw["image_std"]),
            size["shortest_edge"],
            size["longest_edge"],
        )

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Whole tokens within the budget."""
        unit = self.patch * self.merge
        rows, columns = round(height / unit) * unit, round(width / unit) * unit
        if rows * columns > self.largest:
            ratio = math.sqrt(height * width / self.largest)
            rows, columns = math.floor(height / ratio / unit) * unit, math.floor(width / ratio / unit) * unit
        elif rows * columns < self.smallest:
            ratio = math.sqrt(self.smallest / (height * width))
            rows, columns = math.ceil(height * ratio / unit) * unit, math.ceil(width * ratio / unit) * unit
        return rows, columns


def read(data: bytes) -> Image.Image:
    return ImageOps.exif_transpose(Image.open(io.BytesIO(data)))


def resize(image: Image.Image, config: Config, mode: str = "bicubic", antialias: bool = True, rounded: bool = True) -> Array:
    from playbooks.image_drift.torch_resize import torch_resize

    rows, columns = config.size(image.height, image.width)
    resized: Array = torch_resize(np.asarray(image.convert("RGB")), rows, columns, mode, antialias, rounded)
    return resized


def normal(levels: Array, config: Config) -> Array:
    scaled: Array = ((levels / 255 - np.array(config.mean)) / np.array(config.std)).astype(np.float32)
    return scaled


def patches(values: Array, config: Config) -> Made:
    """One patch after another, in merge blocks."""
    p, merge = config.patch, config.merge
    height, width = values.shape[0] // p, values.shape[1] // p
    rows = [
        np.stack([values[y * p : (y + 1) * p, x * p : (x + 1) * p].transpose(2, 0, 1)] * 2, 1).ravel()
        for down in range(0, height, merge)
        for across in range(0, width, merge)
        for y in range(down, down + merge)
        for x in range(across, across + merge)
    ]
    return np.stack(rows), (1, height, width)


def _of(levels: Array, config: Config) -> Made:
    return patches(normal(levels, config), config)


def well(data: bytes, config: Config, dose: Dose) -> Made:
    return _of(resize(read(data), config, rounded=dose.strength == 0), config)


def well_alpha(data: bytes, config: Config, dose: Dose) -> Made:
    rgba = np.asarray(read(data).convert("RGBA"), np.float64)
    share = rgba[..., 3:] / 255
    return _of(resize(Image.fromarray(np.rint(rgba[..., :3] * share + 255 * (1 - share)).astype(np.uint8)), config), config)


def well_deep(data: bytes, config: Config, dose: Dose) -> Made:
    levels = np.rint(np.asarray(read(data)) / 257).astype(np.uint8)
    return _of(resize(Image.fromarray(np.repeat(levels[..., None], 3, 2)), config), config)


def _bfloat(values: Array) -> Array:
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def well_bf16(data: bytes, config: Config, dose: Dose) -> Made:
    levels = np.asarray(read(data).convert("RGB").resize(config.size(*read(data).size[::-1])[::-1], Image.Resampling.BICUBIC))
    if dose.strength:
        return patches(normal(_bfloat(levels / 255) * 255, config), config)
    return patches(_bfloat(normal(levels, config)), config)


CLIP: dict[str, tuple[float, ...]] = {"mean": (0.48145466, 0.4578275, 0.40821073), "std": (0.26862954, 0.26130258, 0.27577711)}
IMAGENET: dict[str, tuple[float, ...]] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
ODD: tuple[dict[str, tuple[float, ...]], ...] = (
    {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)},
    {"mean": (0.43, 0.41, 0.39), "std": (0.31, 0.28, 0.35)},
)


def _with(config: Config, other: dict[str, tuple[float, ...]]) -> Config:
    return replace(config, mean=other["mean"], std=other["std"])


def constants(data: bytes, config: Config, dose: Dose) -> Made:
    return well(data, _with(config, (CLIP, IMAGENET)[dose.strength]), dose)


def odd_constants(data: bytes, config: Config, dose: Dose) -> Made:
    return well(data, _with(config, ODD[dose.strength]), dose)


def rescaled(data: bytes, config: Config, dose: Dose) -> Made:
    levels = resize(read(data), config)
    return _of(levels * 255 if dose.strength else levels / 255, config)


def normalised_twice(data: bytes, config: Config, dose: Dose) -> Made:
    return patches(normal(normal(resize(read(data), config, rounded=dose.strength == 0), config) * 255, config), config)


def channels(data: bytes, config: Config, dose: Dose) -> Made:
    return _of(resize(read(data), config)[..., ([2, 1, 0], [1, 2, 0])[dose.strength]], config)


def tag_ignored(data: bytes, config: Config, dose: Dose) -> Made:
    return _of(resize(Image.open(io.BytesIO(data)), config), config)


def mirrored(data: bytes, config: Config, dose: Dose) -> Made:
    levels = resize(read(data), config)
    return _of(levels[:, ::-1] if dose.strength else levels[::-1, ::-1], config)


def alpha(data: bytes, config: Config, dose: Dose) -> Made:
    rgba = np.asarray(read(data).convert("RGBA"), np.float64)
    colours = rgba[..., :3] * rgba[..., 3:] / 255 if dose.strength else rgba[..., :3]
    return _of(resize(Image.fromarray(np.rint(colours).astype(np.uint8)), config), config)


def deep(data: bytes, config: Config, dose: Dose) -> Made:
    values = np.asarray(read(data)).astype(np.int64)
    cut = values % 256 if dose.strength else np.minimum(values, 255)
    return _of(resize(Image.fromarray(np.repeat(cut[..., None], 3, 2).astype(np.uint8)), config), config)


def grey(data: bytes, config: Config, dose: Dose) -> Made:
    levels = resize(read(data), config)
    one = levels.mean(-1, keepdims=True) if dose.strength else levels @ np.array([[0.299], [0.587], [0.114]])
    return _of(np.repeat(one, 3, -1), config)


def plain(data: bytes, config: Config, dose: Dose) -> Made:
    return _of(resize(read(data), config, ("bicubic", "bilinear")[dose.strength], antialias=False), config)


def kernel(data: bytes, config: Config, dose: Dose) -> Made:
    return _of(resize(read(data), config, ("bilinear", "area")[dose.strength]), config)


def nearest(data: bytes, config: Config, dose: Dose) -> Made:
    if dose.strength == 0:
        return _of(resize(read(data), config, "nearest"), config)
    image = read(data).convert("RGB")
    rows, columns = config.size(image.height, image.width)
    return _of(np.asarray(image.resize((columns, rows), Image.Resampling.LANCZOS), np.float32), config)


def twice(data: bytes, config: Config, dose: Dose) -> Made:
    from playbooks.image_drift.torch_resize import torch_resize

    image = read(data).convert("RGB")
    other = replace(config, patch=(14, 7)[dose.strength])
    rows, columns = other.size(image.height, image.width)
    first = torch_resize(np.asarray(image), rows, columns, "bicubic", True)
    return _of(resize(Image.fromarray(first.astype(np.uint8)), config), config)


def padded(data: bytes, config: Config, dose: Dose) -> Made:
    from playbooks.image_drift.torch_resize import torch_resize

    pixels = np.asarray(read(data).convert("RGB"))
    rows, columns = config.size(*pixels.shape[:2])
    if dose.strength:  # sides exchanged, then corrected
        wrong = torch_resize(pixels, columns, rows, "bicubic", True).astype(np.uint8)
        return _of(torch_resize(wrong, rows, columns, "bicubic", True), config)
    scale = min(rows / pixels.shape[0], columns / pixels.shape[1])
    height, width = min(rows, round(pixels.shape[0] * scale)), min(columns, round(pixels.shape[1] * scale))
    out = np.zeros((rows, columns, 3), np.float32)
    out[:height, :width] = torch_resize(pixels, height, width, "bicubic", True)
    return _of(out, config)


def budget(data: bytes, config: Config, dose: Dose) -> Made:
    return well(data, replace(config, largest=(config.largest // 4, 1003520)[dose.strength]), dose)


def order(data: bytes, config: Config, dose: Dose) -> Made:
    tensor, (one, height, width) = well(data, config, dose)
    blocks = tensor.reshape(height // 2, width // 2, 2, 2, -1)
    axes = (0, 1, 3, 2, 4) if dose.strength else (0, 2, 1, 3, 4)
    return blocks.transpose(axes).reshape(tensor.shape), (one, height, width)


def inside(data: bytes, config: Config, dose: Dose) -> Made:
    tensor, grid = well(data, config, dose)
    whole = tensor.reshape(len(tensor), 3, 2, config.patch, config.patch)
    return whole.transpose((0, 2, 1, 3, 4) if dose.strength else (0, 2, 3, 4, 1)).reshape(tensor.shape), grid


def bits(data: bytes, config: Config, dose: Dose) -> Made:
    tensor, grid = well(data, config, dose)
    if dose.strength:
        return tensor.astype(np.int8).astype(np.float32), grid
    return (_bfloat(tensor).view(np.uint32) >> 16).astype(np.uint16).view(np.float16).astype(np.float32), grid


def again(data: bytes, config: Config, dose: Dose) -> Made:
    buffer = io.BytesIO()
    read(data).convert("RGB").save(buffer, "JPEG", quality=((93, 80), (70, 55))[dose.strength][dose.seed % 2])
    return well(buffer.getvalue(), config, dose)


def chroma(data: bytes, config: Config, dose: Dose) -> Made:
    image = Image.open(io.BytesIO(data))
    width, height = image.size
    half = Image.open(io.BytesIO(data))
    half.draft("YCbCr", (width // 2, height // 2))
    if half.size == image.size:
        raise ValueError(f"PIL did not decode {width} x {height} pixels at half size")
    small = np.asarray(half.convert("YCbCr"), np.float64)
    stored = Image.open(io.BytesIO(data))
    stored.draft("YCbCr", stored.size)  # the lightness of the file itself: from RGB it would be rounded and clipped twice
    y = np.asarray(stored.convert("YCbCr"), np.float64)[..., 0]
    if dose.strength:  # half size, as a decoder that scales while it decodes
        rows, columns = config.size(height, width)
        from playbooks.image_drift.torch_resize import torch_resize

        rgb = np.asarray(half.convert("RGB"))
        return _of(torch_resize(rgb, rows, columns, "bicubic", True), config)
    cb, cr = (np.kron(small[..., c], np.ones((2, 2)))[:height, :width] - 128 for c in (1, 2))
    rgb = np.stack((y + 1.402 * cr, y - 0.344136 * cb - 0.714136 * cr, y + 1.772 * cb), -1)
    return _of(resize(Image.fromarray(np.clip(np.rint(rgb), 0, 255).astype(np.uint8)), config), config)
