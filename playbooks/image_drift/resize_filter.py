"""image.resize-filter: another kernel, or the right kernel without antialias.

How it is told apart: the size is right, and the picture resized with the other kernel at the same ratio leaves least of the drift. The
energy of the Laplacian says whether detail was lost or invented: below 1 the picture is softer, above 1 sharper or aliased. Between fast
and slow processors of one library up to one level is normal. Below a reduction of 1.1 all filters look alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from playbooks.image_drift import kernels
from playbooks.image_drift.cause import Cause
from playbooks.image_drift.probe import Probe
from playbooks.image_drift.way import Alternative, stretch, way

_PIL = {
    "nearest": Image.Resampling.NEAREST, "box (area)": Image.Resampling.BOX, "bilinear": Image.Resampling.BILINEAR,
    "hamming": Image.Resampling.HAMMING, "bicubic": Image.Resampling.BICUBIC, "lanczos": Image.Resampling.LANCZOS,
}  # fmt: skip
_PLAIN = {
    "nearest, from the upper left": kernels.nearest,
    "means over whole pixels (area)": kernels.area,
    "bilinear without antialias": kernels.bilinear,
    "bicubic without antialias": kernels.bicubic,
    "bilinear without antialias, corners aligned": kernels.bilinear_corners,
    "bicubic without antialias, corners aligned": kernels.bicubic_corners,
}


def alternatives(probe: Probe, others: Sequence[Probe]) -> list[Alternative]:
    found: list[Alternative] = []
    for name, resample in _PIL.items():
        if resample != probe.recipe.resample:
            found += way(probe, f"resized with {name}", resize=stretch(resample))
    for name, resize in _PLAIN.items():
        found += way(probe, f"resized with {name}", resize=resize)
    return found


CAUSE = Cause(
    "image.resize-filter", "Another resize filter", "resize", alternatives,
    "Use the kernel of preprocessor_config.json (resample) with antialias: PIL, or torch's interpolate with antialias=True.", __doc__ or "",
)  # fmt: skip
