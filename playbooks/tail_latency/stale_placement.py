"""A fault for demonstrations and drills: an expert placement that was made for other traffic.

Nothing is slowed down and no answer changes. The experts that are popular now sit together on one rank, as they would under a map
computed for yesterday's traffic, so every layer waits for that rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traces.errors import BadAnswer
from traces.store import Store

Counts = dict[int, list[float]]
"""Model layer -> tokens per logical expert."""

COUNTS = """
SELECT layer, expert, sum(tokens) AS tokens FROM expert_heat_window WHERE bucket >= $since - 1000000000
GROUP BY layer, expert ORDER BY layer, expert
"""


@dataclass(frozen=True, slots=True)
class StalePlacement:
    """`layers[i]` is the map of the i-th MoE layer, slot by slot; `experts` are those packed on `rank`, by model layer."""

    rank: int
    experts: dict[int, tuple[int, ...]]
    layers: tuple[tuple[int, ...], ...]


def measured_counts(store: Store, since: int) -> Counts:
    """Tokens per layer and expert since a moment (ns), to the second. Raises BadAnswer when none were recorded."""
    counts: Counts = {}
    for row in store.rows(COUNTS, {"since": since}, limit=1_000_000):
        counts.setdefault(int(row["layer"]), []).append(float(row["tokens"]))
    if not counts:
        raise BadAnswer("the traffic left no expert load", "look at the logs folder of the run")
    return counts


def stale(counts: Counts, ranks: int, rank: int, share: float = 1.0) -> StalePlacement:
    """Packs the most popular experts of every layer on one rank; the others keep their order on the other ranks.

    `share` of the rank's slots get them; the rest of its slots get the least popular ones.
    """
    experts: dict[int, tuple[int, ...]] = {}
    layers = []
    for layer in sorted(counts):
        tokens = counts[layer]
        room = len(tokens) // ranks
        hot = most_popular(tokens, max(1, round(share * room)))
        cold = most_popular([-one for one in tokens], room - len(hot)) if len(hot) < room else ()
        experts[layer] = hot
        layers.append(_slots(len(tokens), ranks, rank, tuple(sorted(hot + cold))))
    return StalePlacement(rank, experts, tuple(layers))


def most_popular(tokens: Sequence[float], n: int) -> tuple[int, ...]:
    """The n experts with the most tokens, in ascending order; ties keep the lower number."""
    return tuple(sorted(sorted(range(len(tokens)), key=lambda expert: (-tokens[expert], expert))[:n]))


def _slots(experts: int, ranks: int, rank: int, popular: tuple[int, ...]) -> tuple[int, ...]:
    room = experts // ranks
    others = [expert for expert in range(experts) if expert not in popular]
    return tuple(others[: rank * room]) + popular + tuple(others[rank * room :])
