"""Faults of the symptom image-drift, really produced: the picture is prepared by other libraries, other settings, in another order.

The faulty pipelines stand here and in `other_engines.py`, and are made with other means than those the playbook compares with: torch's
interpolation, numpy arrays, hand-written layouts. The pictures differ by seed in content, size and ratio; a strength is another variant.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from playbooks.drills.drill import HEALTHY, Dose, Drill
from playbooks.image_drift import other_engines as engines
from playbooks.image_drift.explain import BENIGN
from playbooks.image_drift.other_engines import Config
from playbooks.image_drift.pictures import jpeg, photograph, png
from playbooks.image_drift.probe import run_of_probes
from runtime.images import Grid
from traces.run import Run

STRENGTHS = ("a first variant", "a second variant")
CONFIG: dict[str, Any] = {
    "image_processor_type": "Qwen2VLImageProcessor", "patch_size": 16, "merge_size": 2, "temporal_patch_size": 2,
    "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"shortest_edge": 16384, "longest_edge": 90112},
}  # fmt: skip
Make = Callable[[bytes, Config, Dose], tuple[NDArray[Any], Grid]]


@dataclass(frozen=True, slots=True)
class PictureDrill:
    """`make` is the faulty engine: the file's bytes to a tensor and its grid. `save` writes the seed's photograph as a file.

    `take` gives a photograph by its number, RGB: drawn ones, unless real ones are at hand."""

    id: str
    expected: str
    title: str
    make: Make
    save: Callable[[Image.Image, Dose], bytes] = lambda image, dose: jpeg(image)
    pictures: int = 1
    well: Make = engines.well  # the engine that makes no fault, for such files
    take: Callable[[int], Image.Image] = photograph

    def start(self, dose: Dose, root: Path, say: Callable[[str], None]) -> Run:
        """One comparison, as a run."""
        say("preparing pictures")
        config = Config.of(CONFIG)
        files = [self.save(self.take(dose.seed * 8 + dose.strength * 4 + n), dose) for n in range(self.pictures)]
        made = [self.make(data, config, dose) for data in files]
        if self.pictures > 1:
            made = made[::-1] if dose.strength else [made[0], made[0]]  # the wrong key: each other's, or always the first
        self._differs(files, made, config, dose)
        with tempfile.TemporaryDirectory(prefix="wb-pictures-") as name:
            folder = Path(name)
            (folder / "preprocessor_config.json").write_text(json.dumps(CONFIG))
            pairs = []
            for n, (data, (tensor, grid)) in enumerate(zip(files, made, strict=True)):
                (folder / f"picture-{n}").write_bytes(data)
                np.savez(folder / f"{n}.npz", pixel_values=tensor, image_grid_thw=np.array([grid]))
                pairs.append((folder / f"picture-{n}", folder / f"{n}.npz"))
            return run_of_probes(folder, pairs, root=root)

    def _differs(self, files: list[bytes], made: list[tuple[NDArray[Any], Grid]], config: Config, dose: Dose) -> None:
        """ValueError when a faulty engine made what a good one makes: the drill would then show nothing."""
        if self.expected == HEALTHY:
            return
        for data, (tensor, grid) in zip(files, made, strict=True):
            good, right = self.well(data, config, Dose(0, dose.seed))
            level = 1 / 255 / max(config.std)
            if grid != right or tensor.shape != good.shape or not np.abs(tensor - good).max() <= BENIGN * level:
                return
        raise ValueError(f"{self.id} makes no fault at strength {dose.strength}, seed {dose.seed}")

    def drill(self) -> Drill:
        return Drill(self.id, self.expected, self.title, doses=STRENGTHS, start=self.start)


def _turned(image: Image.Image, dose: Dose) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = (3, 6)[dose.strength]
    return jpeg(image, exif=exif)


def _oblong(image: Image.Image, dose: Dose) -> bytes:
    """No square: there padding, or exchanging the sides, changes nothing."""
    square = image.width == image.height
    return jpeg(image.crop((0, 0, image.width, image.height * 2 // 3)) if square else image)


def _with_alpha(image: Image.Image, dose: Dose) -> bytes:
    x = np.linspace(-1, 1, image.width)[None, :] ** 2 + np.linspace(-1, 1, image.height)[:, None] ** 2
    image = image.copy()
    image.putalpha(Image.fromarray((np.clip(1.3 - x, 0, 1) * 255).astype(np.uint8)))
    return png(image)


def _deep(image: Image.Image, dose: Dose) -> bytes:
    return png(Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257 + 40))


_ALL: tuple[PictureDrill, ...] = (
    PictureDrill("image.well", HEALTHY, "torch's antialiased resize, bytes or floats", engines.well),
    PictureDrill("image.well-turned", HEALTHY, "A turned photograph, turned back", engines.well, _turned),
    PictureDrill("image.well-alpha", HEALTHY, "Transparency on white, by numpy", engines.well_alpha, _with_alpha),
    PictureDrill("image.well-bf16", HEALTHY, "bfloat16 after or before the normalisation", engines.well_bf16),
    PictureDrill("image.constants", "image.normalize-constants", "CLIP's or ImageNet's constants", engines.constants),
    PictureDrill("image.not-normalised", "image.normalize-constants", "No normalisation, or odd constants", engines.odd_constants),
    PictureDrill("image.rescaled", "image.rescale", "Rescaled twice, or not at all", engines.rescaled),
    PictureDrill("image.normalised-twice", "image.rescale", "Normalised twice", engines.normalised_twice),
    PictureDrill("image.bgr", "image.channel-order", "BGR, or GBR", engines.channels),
    PictureDrill("image.tag-ignored", "image.exif", "The EXIF tag is ignored", engines.tag_ignored, _turned),
    PictureDrill("image.mirrored", "image.exif", "Upside down, or mirrored", engines.mirrored),
    PictureDrill("image.alpha", "image.load-mode", "Alpha dropped, or on black", engines.alpha, _with_alpha, well=engines.well_alpha),
    PictureDrill("image.deep", "image.load-mode", "16 bits clamped, or their low byte", engines.deep, _deep, well=engines.well_deep),
    PictureDrill("image.grey", "image.load-mode", "Colours lost", engines.grey),
    PictureDrill("image.plain-bicubic", "image.resize-filter", "torch's bicubic or bilinear without antialias", engines.plain),
    PictureDrill("image.other-kernel", "image.resize-filter", "torch's antialiased bilinear, or areas", engines.kernel),
    PictureDrill("image.nearest", "image.resize-filter", "torch's nearest, or Lanczos", engines.nearest),
    PictureDrill("image.twice", "image.resize-geometry", "Resized for factor 28 or 14 first", engines.twice),
    PictureDrill("image.padded", "image.resize-geometry", "Padded, or sides exchanged", engines.padded, _oblong),
    PictureDrill("image.budget", "image.pixel-budget", "A quarter of the budget, or the class default", engines.budget),
    PictureDrill("image.reading-order", "image.patch-order", "Patches in reading order, or exchanged inside the merge", engines.order),
    PictureDrill("image.inside", "image.patch-order", "Channels last, or temporal first, inside a patch", engines.inside),
    PictureDrill("image.bits", "image.dtype-path", "bfloat16 read as float16, or whole numbers", engines.bits),
    PictureDrill("image.again", "image.decoder", "Compressed again", engines.again),
    PictureDrill("image.chroma", "image.decoder", "Nearest chroma, or decoded at half size", engines.chroma),
    PictureDrill("image.wrong-key", "image.cross-request-cache", "Another request's picture", engines.well, pictures=2),
)  # fmt: skip

DRILLS: tuple[Drill, ...] = tuple(one.drill() for one in _ALL)
