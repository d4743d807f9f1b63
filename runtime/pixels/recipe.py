"""How a checkpoint wants its pictures: one description that spans the vision families, read from preprocessor_config.json.

The class defaults are those of transformers 5.24 (models/*/image_processing_pil_*.py; kimi_k25 has only a torchvision one): what a
preprocessor_config.json leaves out, transformers fills in from the class, so they are facts of the family and no guess.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from traces.errors import CheckpointError

Family = Literal["qwen", "glm", "pixtral", "clip", "siglip", "kimi"]
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5)
_BICUBIC = int(Image.Resampling.BICUBIC)


@dataclass(frozen=True, slots=True)
class Recipe:
    """The defaults are those of Qwen2VLImageProcessor.

    `min_pixels`, `max_pixels`: area after resizing (qwen, glm; glm counts it for every temporal position). `size`: (height, width) to
    resize to (siglip), (shortest edge, 0) for clip, the longest edge twice for pixtral, the most pixels a side twice for kimi. `crop`:
    (height, width) cut from the middle (clip), empty for none. `max_patches`: of one picture (kimi). `opaque`: only pictures without
    transparency can be prepared (published K3 lays the others on a chessboard after resizing, which is not made here).
    """

    family: Family = "qwen"
    patch: int = 14
    temporal_patch: int = 2
    merge: int = 2
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280
    size: tuple[int, int] = (0, 0)
    crop: tuple[int, ...] = ()
    max_patches: int = 0
    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD
    scale: float = 1 / 255
    resample: int = _BICUBIC
    rescale: bool = True
    normalise: bool = True
    opaque: bool = False

    @classmethod
    def read(cls, checkpoint: str | Path) -> Recipe:
        """From the checkpoint's preprocessor_config.json; CheckpointError when it is missing or asks for another processor."""
        path = Path(checkpoint) / "preprocessor_config.json"
        try:
            raw = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise CheckpointError(f"{path.name} is missing, pictures cannot be prepared", "download it with the checkpoint") from None
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path.name} cannot be read: {error}", "download it again") from error
        if not isinstance(raw, dict):
            raise CheckpointError(f"{path.name} holds no object", "download it again")
        return cls.of(raw, _patch_of(Path(checkpoint)))

    @classmethod
    def of(cls, raw: Mapping[str, Any], patch: int | None = None) -> Recipe:
        """From the parsed preprocessor_config.json; `patch` is the tower's, for processors that do not name it (clip, siglip)."""
        kind = str(raw.get("image_processor_type", "Qwen2VLImageProcessor"))
        family = _FAMILIES.get(kind.removesuffix("Fast").removesuffix("Pil"))
        if family is None:
            raise CheckpointError(f"the image processor {kind} is not supported", f"supported: {', '.join(_FAMILIES)}")
        if raw.get("do_resize") is False:
            raise CheckpointError("preprocessor_config.json turns do_resize off", "pictures must be resized to whole patches")
        inner = raw.get("media_proc_cfg")
        raw = {**raw, **inner} if isinstance(inner, dict) else raw  # the published Kimi files keep their values one level deeper
        given: dict[str, Any] = {**_DEFAULTS[family], "family": family}
        if patch is not None and family in ("clip", "siglip"):
            given["patch"] = patch
        try:
            given |= {ours: raw[theirs] for ours, theirs in _NAMES.items() if raw.get(theirs) is not None}
            given |= _SIZES[family](raw, given)
            if isinstance(given["patch"], dict):
                given["patch"] = int(given["patch"]["height"])
            for name in ("mean", "std"):
                value = given.get(name)
                if value is not None:
                    given[name] = tuple(float(x) for x in (value if isinstance(value, list | tuple) else [value] * 3))
            _check(given)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"preprocessor_config.json cannot be used: {error!r}", "download it again") from error
        return cls(**given)

    @property
    def factor(self) -> int:
        """Sides are multiples of it: one merged token's pixels."""
        return self.patch * self.merge

    @property
    def patched(self) -> bool:
        """Whether the tensor is a list of patches; the other families hand over whole pictures."""
        return self.family in ("qwen", "glm", "kimi")


_FAMILIES: dict[str, Family] = {
    "Qwen2VLImageProcessor": "qwen",
    "Glm4vImageProcessor": "glm",
    "Glm46VImageProcessor": "glm",
    "PixtralImageProcessor": "pixtral",
    "CLIPImageProcessor": "clip",
    "CLIPFeatureExtractor": "clip",
    "SiglipImageProcessor": "siglip",
    "Kimi_K25ImageProcessor": "kimi",
    "KimiK25VisionProcessor": "kimi",
    "KimiK3VisionProcessor": "kimi",
}
_WHOLE: dict[str, Any] = {"temporal_patch": 1, "merge": 1}
_DEFAULTS: dict[Family, dict[str, Any]] = {
    "qwen": {"patch": 14},
    "glm": {"patch": 14, "min_pixels": 112 * 112, "max_pixels": 28 * 28 * 15000},
    "pixtral": {**_WHOLE, "patch": 16, "size": (1024, 1024)},
    "clip": {**_WHOLE, "patch": 14, "size": (224, 0), "crop": (224, 224)},
    "siglip": {**_WHOLE, "patch": 16, "size": (224, 224), "mean": HALF, "std": HALF},
    "kimi": {"patch": 14, "temporal_patch": 1, "size": (512 * 14, 512 * 14), "max_patches": 16384, "mean": HALF, "std": HALF},
}
_NAMES = {
    "patch": "patch_size",
    "temporal_patch": "temporal_patch_size",
    "merge": "merge_size",
    "mean": "image_mean",
    "std": "image_std",
    "scale": "rescale_factor",
    "resample": "resample",
    "rescale": "do_rescale",
    "normalise": "do_normalize",
}


def _budget(raw: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    size = raw.get("size") or {}
    found: dict[str, Any] = {}
    for ours, edge, older in (("min_pixels", "shortest_edge", "min_pixels"), ("max_pixels", "longest_edge", "max_pixels")):
        value = size.get(edge) or raw.get(older)
        if value is not None:
            found[ours] = int(value)
    return found


def _pixtral(raw: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    size = raw.get("size") or {"longest_edge": given["size"][0]}
    if "longest_edge" in size:
        return {"size": (int(size["longest_edge"]), int(size["longest_edge"]))}
    return {"size": (int(size["height"]), int(size["width"]))}


def _clip(raw: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    size, crop = raw.get("size", given["size"][0]), raw.get("crop_size", given["crop"][0])
    if isinstance(size, dict):
        fixed = (int(size["shortest_edge"]), 0) if "shortest_edge" in size else (int(size["height"]), int(size["width"]))
    else:
        fixed = (int(size), 0)
    cut = (int(crop["height"]), int(crop["width"])) if isinstance(crop, dict) else (int(crop), int(crop))
    return {"size": fixed, "crop": () if raw.get("do_center_crop") is False else cut}


def _siglip(raw: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    size = raw.get("size")
    return {} if size is None else {"size": (int(size["height"]), int(size["width"]))}


def _kimi(raw: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Sides in patches in transformers' `size` and in the published files' `patch_limit_on_one_side`; `in_patch_limit` bounds the sum."""
    patch = int(given["patch"])
    size = raw.get("size") or {}
    side = size.get("max_height") or raw.get("patch_limit_on_one_side") or given["size"][0] // patch
    most = raw.get("max_patches") or raw.get("in_patch_limit") or given["max_patches"]
    found: dict[str, Any] = {"size": (int(side) * patch, int(side) * patch), "max_patches": int(most)}
    found["opaque"] = raw.get("transparent_bg_config") is not None
    if raw.get("merge_kernel_size") is not None:
        kernel = raw["merge_kernel_size"]
        found["merge"] = int(kernel[0] if isinstance(kernel, list) else kernel)
    return found


_SIZES = {"qwen": _budget, "glm": _budget, "pixtral": _pixtral, "clip": _clip, "siglip": _siglip, "kimi": _kimi}


def _check(given: Mapping[str, Any]) -> None:
    """ValueError for values with which no tensor can be made."""
    for name in ("patch", "temporal_patch", "merge"):
        value = given.get(name, 1)
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{_NAMES[name]} is {value!r}")
    for name in ("mean", "std"):
        values = given.get(name, HALF)
        if len(values) != 3 or not all(math.isfinite(value) for value in values) or (name == "std" and 0 in values):
            raise ValueError(f"{_NAMES[name]} is {list(values)}")
    scale = given.get("scale", 1.0)
    if not isinstance(scale, int | float) or not math.isfinite(scale) or scale <= 0:
        raise ValueError(f"rescale_factor is {scale!r}")
    Image.Resampling(given.get("resample", _BICUBIC))


def _patch_of(checkpoint: Path) -> int | None:
    """The tower's patch size in config.json, where there is one."""
    try:
        config = json.loads((checkpoint / "config.json").read_bytes())
        size = config.get("vision_config", config).get("patch_size")
    except (OSError, ValueError, AttributeError):
        return None
    return size if isinstance(size, int) else None
