"""Splits the time of the experts between two causes: uneven work, and ranks of unequal speed.

The layer's experts take E = max_r f_r w_r, with w_r the work of rank r (ns at common speed) and f_r its slowness (1 = typical). With work
evened out and speeds made equal E becomes mean(w). The two-factor Shapley value shares the difference exactly:
imbalance = 1/2 [(E10 - E00) + (E11 - E01)], speed = 1/2 [(E01 - E00) + (E11 - E10)]; reference section 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Split:
    """All [n], ns per layer of a step. `alone` = gained if only this is fixed, `last` = gained if the other is fixed already."""

    ideal: Floats
    imbalance: Floats
    imbalance_alone: Floats
    imbalance_last: Floats
    speed: Floats
    speed_alone: Floats
    speed_last: Floats


def split(work: Floats, slowness: Floats) -> Split:
    """`work` [n, R] ns (NaN where a rank has no row), `slowness` [R]."""
    e00 = np.nanmean(work, axis=1)
    e10 = np.nanmax(work, axis=1)
    e01 = e00 * np.nanmax(np.where(np.isnan(work), np.nan, slowness[None, :]), axis=1)
    e11 = np.nanmax(work * slowness[None, :], axis=1)
    return Split(
        ideal=e00,
        imbalance=((e10 - e00) + (e11 - e01)) / 2,
        imbalance_alone=e11 - e01,
        imbalance_last=e10 - e00,
        speed=((e01 - e00) + (e11 - e10)) / 2,
        speed_alone=e11 - e10,
        speed_last=e01 - e00,
    )
