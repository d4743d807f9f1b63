"""Which other way of preparing a picture explains what an engine made of it: all are carried out at the picture's own ratio, and compared.

A level is one of the 256 steps of a byte. What is left after an explanation is the mean difference in levels; the share explained is
1 - (squares left) / (squares of the drift).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from playbooks.image_drift.cause import Cause
from playbooks.image_drift.normalize_constants import fit
from playbooks.image_drift.probe import Floats, Probe
from playbooks.image_drift.way import Alternative, in_floats, way

# Reference S3.1 and S3.2: fast against slow processors of one library measured 1.04 levels at most, bfloat16 before normalising 1.24.
BENIGN = 1.5
# An explanation that leaves this many levels on average is the thing itself: the same kernel in another library leaves 0.29.
EXACT = 0.6
# Shares of the drift; a kernel of another library (OpenCV's area for PIL's box) explains 0.9 and more. Below NEAR nothing is named.
MOST, NEAR = 0.9, 0.6
# Two explanations whose rests differ by less cannot be told apart.
TIE = 0.25


@dataclass(frozen=True, slots=True)
class Candidate:
    """`left`: mean levels after it; `explained`: share of the drift's squares, of the picture's variance where the sizes differ."""

    cause: str
    words: str
    left: float
    explained: float


@dataclass(frozen=True, slots=True)
class Reading:
    """`largest`, `mean`: the drift in levels (None where the grids differ); `lap`: energy of the Laplacian, observed over expected.

    `nearest`: the largest difference from the recipe as PIL does it, or as torch does, whichever is less. PIL rounds and clips between its
    two passes, torch does not: where edges overshoot 0 or 255, values of a harmless tensor are up to 12 levels apart (0.1 % of them, on
    photographs).

    `best` first; `rivals` are other causes that explain as much. `nonfinite` counts Inf and NaN.
    """

    probe: Probe
    same_grid: bool
    nonfinite: int
    largest: float | None
    mean: float | None
    slope: tuple[float, ...] = ()
    r2: float | None = None
    lap: float | None = None
    nearest: float | None = None
    same_patches: bool = False
    candidates: tuple[Candidate, ...] = ()

    @property
    def benign(self) -> bool:
        return not self.nonfinite and not self.probe.uneven and self.nearest is not None and self.nearest <= BENIGN

    @property
    def best(self) -> Candidate | None:
        return next((one for one in self.candidates if one.explained >= NEAR), None)

    @property
    def rivals(self) -> tuple[Candidate, ...]:
        best = self.best
        if best is None:
            return ()
        near = max(TIE, 0.15 * best.left)
        return tuple(
            one for one in self.candidates if one.cause != best.cause and one.explained >= NEAR and one.left - best.left < near
        )

    def of(self, cause: str) -> Candidate | None:
        return next((one for one in self.candidates if one.cause == cause), None)


def explain(probe: Probe, others: Sequence[Probe], causes: Sequence[Cause]) -> Reading:
    """The drift of one picture, and what explains it, best first."""
    observed = probe.seen(probe.reference[1])
    nonfinite = int((~np.isfinite(probe.observed)).sum())
    if nonfinite:
        return Reading(probe, observed is not None, nonfinite, None, None)
    if observed is None:
        return Reading(probe, False, 0, None, None, candidates=_tried(probe, others, causes, None))
    drift = np.abs(observed - probe.expected)
    largest = float(drift.max())
    slope, _, r2 = fit(observed, probe.expected)
    facts: dict[str, Any] = {
        "slope": tuple(float(s) for s in slope),
        "r2": r2,
        "lap": laplacian(observed) / max(laplacian(probe.expected), 1e-9),
    }
    nearest = largest if largest <= BENIGN else min(largest, _from_floats(probe, observed))
    reading = Reading(probe, True, 0, largest, float(drift.mean()), nearest=nearest, **facts)
    if reading.benign:
        return reading
    return replace(reading, same_patches=_same_patches(probe), candidates=_tried(probe, others, causes, observed))


def _from_floats(probe: Probe, observed: Floats) -> float:
    """Largest difference from the recipe's resize in floats; infinite where it makes another size."""
    found = [one.plane() for one in way(probe, "", resize=in_floats(probe.recipe.resample)) if one.grid == probe.reference[1]]
    return min((float(np.abs(observed - plane).max()) for plane in found), default=float("inf"))


def laplacian(plane: Floats) -> float:
    """Mean square of the discrete Laplacian; 0 for a picture below 3 x 3."""
    if min(plane.shape[:2]) < 3:
        return 0.0
    inner = 4 * plane[1:-1, 1:-1] - plane[:-2, 1:-1] - plane[2:, 1:-1] - plane[1:-1, :-2] - plane[1:-1, 2:]
    return float(np.mean(inner.astype(np.float64) ** 2))


def _tried(probe: Probe, others: Sequence[Probe], causes: Sequence[Cause], observed: Floats | None) -> tuple[Candidate, ...]:
    found: list[Candidate] = []
    drift = None if observed is None else _squares(observed - probe.expected)
    for cause in causes:
        made = [_judged(probe, cause.id, one, drift) for one in cause.alternatives(probe, others)]
        found += [one for one in made if one is not None]
    return tuple(sorted(found, key=lambda one: one.left))  # stable: of equals the cause that comes first in the list


def _judged(probe: Probe, cause: str, one: Alternative, drift: float | None) -> Candidate | None:
    observed = probe.seen(one.grid)
    if observed is None:
        return None
    plane = one.plane()
    with np.errstate(over="ignore", invalid="ignore"):
        rest = observed - plane
        if plane.shape != observed.shape or not np.isfinite(plane).all():
            return None
        if drift is None or one.grid != probe.reference[1]:
            total = _squares(observed - observed.mean((0, 1)))
        else:
            total = drift
        # A plane with another range than a byte's is judged in its own: rests of "not rescaled" are large in levels and small in shares.
        unit = max(1.0, float(observed.std()) / 64)
        explained = 1 - _squares(rest) / total if total > 1e-9 else 0.0
        return Candidate(cause, one.words, float(np.abs(rest).mean()) / unit, explained)


def _squares(values: Floats) -> float:
    return float(np.sum(values.astype(np.float64) ** 2))


def _same_patches(probe: Probe) -> bool:
    """Whether both tensors hold the same patches, in whatever order: by one random projection of each, sorted."""
    if not probe.recipe.patched:
        return False
    ours, theirs = probe.reference[0].reshape(len(probe.reference[0]), -1), probe.observed.reshape(len(probe.observed), -1)
    if ours.shape != theirs.shape:
        return False
    weights = np.random.default_rng(0).standard_normal(ours.shape[1])  # a sum would not see values that change places inside a patch
    a, b = np.sort(ours.astype(np.float64) @ weights), np.sort(theirs.astype(np.float64) @ weights)
    return bool(np.allclose(a, b, atol=1e-3 * ours.shape[1]))
