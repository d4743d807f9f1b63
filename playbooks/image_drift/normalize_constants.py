"""image.normalize-constants: mean and deviation are not those of the checkpoint, mostly a class default.

How it is told apart: an affine fit of every channel leaves nothing (R2 >= 0.9999), and its slope is the quotient of the deviations. The
constants in force follow from slope and intercept, and are named where they are well known. Photographs often have a channel of little
contrast, of which rounding to whole levels alone takes more than that: there a rest of half a level leaves nothing, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from playbooks.image_drift.cause import Cause
from playbooks.image_drift.probe import Floats, Probe
from playbooks.image_drift.way import Alternative, same
from runtime.pixels.recipe import CLIP_MEAN, CLIP_STD, HALF

KNOWN = (
    ("normalised with CLIP's constants", CLIP_MEAN, CLIP_STD),
    ("normalised with 0.5 and 0.5", HALF, HALF),
    ("normalised with ImageNet's constants", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ("not normalised", (0.0,) * 3, (1.0,) * 3),
)
LINEAR = 0.9999  # R2 of the fit (reference S3.2)
# Levels, root of the mean square. Rounding is 1/sqrt(12) = 0.29; another library's resize without it measured 0.28 to 0.38 on eight
# photographs, where R2 went down to 0.9996. Below the second R2 a picture is too flat for its slope to mean anything.
ROUNDED, FLAT = 0.5, 0.99


def alternatives(probe: Probe, others: Sequence[Probe]) -> list[Alternative]:
    recipe = probe.recipe
    used = (recipe.mean, recipe.std) if recipe.normalise else ((0.0,) * 3, (1.0,) * 3)
    known: list[tuple[str, Sequence[float], Sequence[float]]] = [*KNOWN]
    known.append(("divided by the deviation of the checkpoint without its mean", (0.0,) * 3, recipe.std))
    known.append(("centred by the mean of the checkpoint without its deviation", recipe.mean, (1.0,) * 3))
    known.append(("normalised with the checkpoint's constants in reverse channel order", recipe.mean[::-1], recipe.std[::-1]))
    found = [
        same(probe, words, partial(_with, probe, mean, std))
        for words, mean, std in known
        if not np.allclose(np.array([mean, std]), np.array(used), atol=1e-4)
    ]
    return found + _fitted(probe)


def fit(observed: Floats, expected: Floats) -> tuple[Floats, Floats, float]:
    """Per channel observed = slope * expected + intercept: slopes [3], intercepts [3], the smallest R2 (0 for a flat picture)."""
    slopes, intercepts, worst = [], [], 1.0
    for channel in range(3):
        x, y = expected[..., channel].ravel().astype(np.float64), observed[..., channel].ravel().astype(np.float64)
        dx, dy = x - x.mean(), y - y.mean()
        xx, yy, xy = float(dx @ dx), float(dy @ dy), float(dx @ dy)
        slope = xy / xx if xx else 0.0
        slopes.append(slope)
        intercepts.append(float(y.mean() - slope * x.mean()))
        worst = min(worst, xy * xy / (xx * yy) if xx > 0 and yy > 0 else 0.0)
    return np.array(slopes, np.float32), np.array(intercepts, np.float32), worst


def _with(probe: Probe, mean: Sequence[float], std: Sequence[float]) -> Floats:
    scale = np.float32(probe.recipe.scale if probe.recipe.rescale else 1.0)
    return probe.levels((probe.expected * scale - np.array(mean, np.float32)) / np.array(std, np.float32))


def _fitted(probe: Probe) -> list[Alternative]:
    """Constants nobody has a name for, computed from the fit. A slope of 255 or 1/255 is left to image.rescale."""
    observed = probe.seen(probe.reference[1])
    if observed is None or not np.isfinite(observed).all():
        return []
    slope, intercept, r2 = fit(observed, probe.expected)
    if r2 < FLAT or (slope < 0.05).any() or (slope > 20).any():
        return []
    rest = (observed - probe.expected * slope - intercept) / slope
    if r2 < LINEAR and float(np.sqrt(np.mean(rest.astype(np.float64) ** 2, (0, 1))).max()) > ROUNDED:
        return []
    recipe = probe.recipe
    base_mean = np.array(recipe.mean if recipe.normalise else (0.0,) * 3)
    base_std = np.array(recipe.std if recipe.normalise else (1.0,) * 3)
    std = base_std / slope
    mean = std * (base_mean - intercept * (recipe.scale if recipe.rescale else 1.0)) / base_std
    words = f"normalised with mean {_listed(mean)} and deviation {_listed(std)}"
    return [same(probe, words, lambda: probe.expected * slope + intercept)]


def _listed(values: Iterable[float]) -> str:
    return "[" + ", ".join(f"{value:.3f}" for value in values) + "]"


CAUSE = Cause(
    "image.normalize-constants", "Other normalisation constants", "normalise", alternatives,
    "Read image_mean and image_std of the checkpoint's preprocessor_config.json, never a class default.", __doc__ or "",
)  # fmt: skip
