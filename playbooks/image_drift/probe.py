"""A picture, the recipe of a model, and the tensor that an engine made of it: what is compared. Kept in a run, to be asked again."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from playbooks.case import Case
from runtime.images import Grid, ImageSettings, preprocess, target_size
from runtime.pixels.dump import read_dump
from runtime.pixels.files import DAMAGED, FORMATS
from runtime.pixels.flat import facts
from runtime.pixels.patches import picture
from traces.errors import CheckpointError, UsageError
from traces.run import Run, whole_run

FOLDER = "images"
MOST_PIXELS = 64 << 20  # of a picture to be judged
MOST_BYTES = 256 << 20
BESIDE = ("image_grid_thw", "input_ids", "position_ids")  # what is read of a dump besides its pixels
Floats = NDArray[np.float32]


@dataclass
class Probe:
    """`observed` is [P, width], [P, 3, p, p] or [3, H, W] as the family has it; `extra` holds what else the dump names."""

    name: str
    data: bytes
    recipe: ImageSettings
    observed: NDArray[Any]
    grid: Grid | None
    image_token: int | None = None
    extra: dict[str, NDArray[Any]] = field(default_factory=dict)

    @cached_property
    def image(self) -> Image.Image:
        return opened(self.data)

    @cached_property
    def facts(self) -> dict[str, Any]:
        return facts(self.image)

    @cached_property
    def reference(self) -> tuple[Floats, Grid]:
        """The tensor that the recipe makes, and its grid."""
        return preprocess(self.image, self.recipe)

    @cached_property
    def expected(self) -> Floats:
        """[rows, columns, 3] in levels of a byte, as the recipe makes it."""
        tensor, grid = self.reference
        return self.levels(picture(tensor, grid, self.recipe))

    @cached_property
    def uneven(self) -> bool:
        """Whether the temporal positions of a patch differ, which a still picture fills alike."""
        if self.recipe.temporal_patch == 1 or self.observed.ndim != 2:
            return False
        frames = self.observed.reshape(len(self.observed), 3, self.recipe.temporal_patch, -1)
        return bool((frames != frames[:, :, :1]).any())

    def levels(self, values: NDArray[Any]) -> Floats:
        """Normalised values [..., 3] to levels of a byte, by the constants of the recipe."""
        recipe = self.recipe
        mean = np.asarray(recipe.mean if recipe.normalise else (0.0,) * 3, np.float32)
        std = np.asarray(recipe.std if recipe.normalise else (1.0,) * 3, np.float32)
        scale = np.float32(recipe.scale if recipe.rescale else 1.0)
        return ((values.astype(np.float32) * std + mean) / scale).astype(np.float32)

    def values(self, levels: NDArray[Any]) -> Floats:
        """The inverse of `levels`."""
        recipe = self.recipe
        scaled: Floats = levels.astype(np.float32) * np.float32(recipe.scale if recipe.rescale else 1.0)
        if recipe.normalise:
            mean, std = (np.asarray(part, np.float32) for part in (recipe.mean, recipe.std))
            scaled = np.divide(scaled - mean, std, dtype=np.float32)
        return scaled

    def seen(self, grid: Grid) -> Floats | None:
        """[rows, columns, 3] in levels as the engine made it, if it has this grid; None if it has not."""
        if self.grid is not None and self.grid[1:] != grid[1:]:
            return None
        if not self.recipe.patched and self.observed.shape[1:] != (grid[1] * self.recipe.patch, grid[2] * self.recipe.patch):
            return None
        try:
            return self.levels(picture(self.observed, grid, self.recipe))
        except ValueError:
            return None


def opened(data: bytes) -> Image.Image:
    """A decoded picture. UsageError for none, or one that is too large."""
    try:
        image = Image.open(io.BytesIO(data), formats=(*FORMATS, "TIFF"))
        if image.width * image.height > MOST_PIXELS:
            raise UsageError(f"the picture has {image.width} x {image.height} pixels", f"at most {MOST_PIXELS} can be judged")
        image.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, *DAMAGED) as error:
        raise UsageError(f"the picture cannot be decoded: {error}") from error
    return image


def run_of_probes(model: Path, pairs: list[tuple[Path, Path]], grid: Grid | None = None, root: Path | None = None) -> Run:
    """A closed run that holds pictures, dumps and the model's two small files. UsageError, CheckpointError for what cannot be used."""
    ImageSettings.read(model)
    _token(model)
    with whole_run(engine="pixels", model=model.name, root=root, latest=False) as run:
        for index, (image, dump) in enumerate(pairs):
            keep_probe(run.path / FOLDER / str(index), model, image, dump, grid)
    return run


def keep_probe(folder: Path, model: Path, image: Path, dump: Path, grid: Grid | None = None) -> None:
    """Copies one picture, its dump and the model's two small files into a new folder of a run. UsageError, CheckpointError."""
    folder.mkdir(parents=True)
    try:
        if image.stat().st_size > MOST_BYTES:
            raise UsageError(f"{image.name} has more than {MOST_BYTES >> 20} MiB")
        shutil.copyfile(image, folder / "picture")
        for name in ("preprocessor_config.json", "config.json"):
            if (model / name).exists():
                shutil.copyfile(model / name, folder / name)
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}") from error
    held = read_dump(dump)
    kept: dict[str, Any] = {"pixel_values": _pixels(held), **{name: held[name] for name in BESIDE if name in held}}
    np.savez(folder / "dump.npz", **kept)
    (folder / "probe.json").write_text(json.dumps({"name": image.name, "grid": grid}))
    probe = read_probe(folder)  # what cannot be judged is said now
    target_size(probe.image.height, probe.image.width, probe.recipe)


def read_probe(folder: Path) -> Probe:
    """A picture of a run. UsageError when the dump has no pixels of three channels."""
    about = json.loads((folder / "probe.json").read_bytes())
    dump = read_dump(folder / "dump.npz")
    observed = _pixels(dump)
    recipe = ImageSettings.read(folder)
    named: list[int] | None = _grid(dump)
    named = about["grid"] or named
    return Probe(
        about["name"],
        (folder / "picture").read_bytes(),
        recipe,
        _shaped(observed, recipe),
        (named[0], named[1], named[2]) if named else None,
        _token(folder),
        dump,
    )


def probes(case: Case) -> list[Probe]:
    """The pictures of a run, read when first asked for; empty where there are none."""
    if "image-probes" not in case.memo:
        folders = sorted((case.run.path / FOLDER).glob("[0-9]*"), key=lambda folder: int(folder.name))
        case.memo["image-probes"] = [read_probe(folder) for folder in folders]
    found: list[Probe] = case.memo["image-probes"]
    return found


def _pixels(dump: dict[str, NDArray[Any]]) -> NDArray[Any]:
    floats = [dump["pixel_values"]] if "pixel_values" in dump else [value for value in dump.values() if value.dtype.kind == "f"]
    if len(floats) != 1:
        raise UsageError(f"the dump holds {', '.join(dump)} and no pixel_values", "name the tensor pixel_values")
    if not floats[0].size or floats[0].dtype.kind not in "fiu":
        raise UsageError("pixel_values holds no numbers", "dump what the vision tower was given")
    return floats[0]


def _grid(dump: dict[str, NDArray[Any]]) -> list[int] | None:
    """The grid that the dump names, of its one picture."""
    held = dump.get("image_grid_thw")
    if held is None:
        return None
    if not held.size or held.size % 3 or held.dtype.kind not in "iu":
        raise UsageError(f"image_grid_thw of shape {list(held.shape)} is no grid", "dump image_grid_thw [1, 3]: time, height, width")
    if held.size > 3:
        raise UsageError(f"the dump holds {held.size // 3} pictures", "dump one picture at a time")
    named: list[int] = held.ravel().tolist()
    return named


def _token(folder: Path) -> int | None:
    """The id that stands for a picture, by config.json; None where that says nothing. CheckpointError when it cannot be read."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"config.json cannot be read: {error}", "download it again") from error
    if not isinstance(config, dict):
        raise CheckpointError("config.json holds no object", "download it again")
    token = config.get("image_token_id", config.get("media_placeholder_token_id"))
    return token if isinstance(token, int) else None


def _shaped(observed: NDArray[Any], recipe: ImageSettings) -> NDArray[Any]:
    """Without the batch axis; UsageError for a shape that is not the family's."""
    patch = recipe.patch
    while (
        observed.ndim > 2 and observed.shape[0] == 1 and not (observed.ndim == 4 and recipe.family == "kimi" and observed.shape[2] == patch)
    ):
        observed = observed[0]
    width = 3 * recipe.temporal_patch * patch * patch
    right = {"kimi": observed.shape[1:] in ((3, patch, patch), (width,)), "qwen": observed.shape[1:] == (width,)}
    right["glm"] = right["qwen"]
    if not right.get(recipe.family, observed.ndim == 3 and observed.shape[0] == 3):
        raise UsageError(
            f"a tensor of shape {list(observed.shape)} is none of a {recipe.family} processor",
            f"expected [patches, {width}]" if recipe.patched else "expected [3, height, width]",
        )
    return observed
