"""Which ordered pairs of hosts are slow, and whether a host, a direction or a single path is to blame.

Rule of reference/causes_latency_network_hang_load.md, section 3.5: a pair is slow when its bandwidth is below 0.7 of the usual and more
than 4 median absolute deviations (of logarithms) away; a host is to blame when at least 80 % of its pairs are slow and fewer than 20 % of
all others. The usual is the median of the fastest third rather than of all pairs: among three hosts one bad one spoils two thirds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

BELOW_USUAL = 0.7
DEVIATIONS = 4.0
CERTAIN = 0.3  # below it a pair is slow however much the good ones differ: a busy CPU does not do that to the quickest of twenty tries
CRAWLING = 0.1  # of the usual: no two healthy links of a fabric differ that much. Our choice
OF_ITS_PAIRS, OF_OTHERS = 0.8, 0.2

Pair = tuple[str, str]
Blame = Literal["host", "sending", "receiving", "path"]


@dataclass(frozen=True, slots=True)
class Outlier:
    """`blame` sending: every path out of `name` is slow; receiving: every path into it; host: both; path: one ordered pair, `a>b`."""

    blame: Blame
    name: str
    pairs: tuple[Pair, ...]
    share: float  # its median bandwidth over the usual


def slow_pairs(bandwidth: Mapping[Pair, float]) -> tuple[Pair, ...]:
    """bandwidth: bytes/s of each ordered pair. Among fewer than four pairs nothing stands out: none is slow."""
    if len(bandwidth) < 4:
        return ()
    fastest = _fastest(bandwidth)
    good = statistics.median(fastest)
    spread = statistics.median(abs(math.log(value / good)) for value in fastest)
    limit = good * max(CERTAIN, min(BELOW_USUAL, math.exp(-DEVIATIONS * spread)))
    return tuple(pair for pair, value in sorted(bandwidth.items()) if value < limit)


def usual(bandwidth: Mapping[Pair, float]) -> float:
    """Bytes/s that a good pair reaches: the median of the fastest third."""
    return statistics.median(_fastest(bandwidth))


def _fastest(bandwidth: Mapping[Pair, float]) -> list[float]:
    return sorted(bandwidth.values())[-max(2, len(bandwidth) // 3) :]


def blamed(bandwidth: Mapping[Pair, float]) -> tuple[Outlier, ...]:
    """Hosts first, then directions, then single paths; every slow pair is explained once.

    Slow pairs without such a pattern, a fifth of all or more, are nobody's: they are not blamed one by one. Where good pairs differ so much
    that some of them pass for slow, the pattern of those with a tenth of the usual is looked for by itself.
    """
    slow = set(slow_pairs(bandwidth))
    crawling = {pair for pair in slow if bandwidth[pair] < CRAWLING * usual(bandwidth)}
    return _explained(bandwidth, slow) or _explained(bandwidth, crawling)


def _explained(bandwidth: Mapping[Pair, float], slow: set[Pair]) -> tuple[Outlier, ...]:
    found: list[Outlier] = []
    names = sorted({name for pair in bandwidth for name in pair})
    kinds: tuple[Blame, ...] = ("host", "sending", "receiving")
    for kind in kinds:
        for name in names:
            own = {pair for pair in bandwidth if _touches(kind, name, pair)}
            rest = set(bandwidth) - own
            if len(own) < 2 or len(own & slow) < OF_ITS_PAIRS * len(own) or (rest and len(rest & slow) >= OF_OTHERS * len(rest)):
                continue
            found.append(_outlier(kind, name, own & slow, bandwidth))
            slow -= own
    if len(slow) >= OF_OTHERS * len(bandwidth):
        return tuple(found)
    return (*found, *(_outlier("path", f"{a}>{b}", {(a, b)}, bandwidth) for a, b in sorted(slow)))


def _touches(kind: Blame, name: str, pair: Pair) -> bool:
    return name in pair if kind == "host" else pair[0 if kind == "sending" else 1] == name


def _outlier(blame: Blame, name: str, pairs: set[Pair], bandwidth: Mapping[Pair, float]) -> Outlier:
    share = statistics.median(bandwidth[pair] for pair in pairs) / usual(bandwidth)
    return Outlier(blame, name, tuple(sorted(pairs)), share)
