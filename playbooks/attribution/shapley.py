"""Shares a time between causes that hide one another: the Shapley value over all orders in which they could be mended.

T(S) is the time with the causes in S present. A cause's share is its mean effect over all orders; the shares of all causes add up to
T(all) - T(none) exactly. `alone` is what is gained if only this cause is mended, `last` if it is mended after all others: a cause that
is hidden behind another gains little alone (reference/causes_latency_network_hang_load.md section 3.2, "masking").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import factorial

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Present = frozenset[str]


@dataclass(frozen=True, slots=True)
class Share:
    """All [n], in the unit of T."""

    value: Floats
    alone: Floats
    last: Floats


def shares(time: Callable[[Present], Floats], causes: Sequence[str]) -> dict[str, Share]:
    """`time` gives [n] for every subset of `causes` that is present; it is called once for each of the 2^k subsets."""
    every = frozenset(causes)
    known = {frozenset(some): time(frozenset(some)) for size in range(len(causes) + 1) for some in combinations(causes, size)}
    found = {}
    for cause in causes:
        others = sorted(every - {cause})
        value = np.zeros_like(known[every])
        for size in range(len(others) + 1):
            weight = factorial(size) * factorial(len(others) - size) / factorial(len(causes))
            for some in combinations(others, size):
                value = value + weight * (known[frozenset(some) | {cause}] - known[frozenset(some)])
        found[cause] = Share(value, known[every] - known[every - {cause}], known[frozenset({cause})] - known[frozenset()])
    return found
