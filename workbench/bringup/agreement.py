"""Whether two greedy answers to one question agree: equal up to a token that was nearly a tie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FULL_PRECISION = 1e-3  # natural logarithm; DESIGN, section 4: in float32 the same tokens wherever the gap is larger
HALF_PRECISION = 0.25  # two bfloat16 numbers between 16 and 32, where logits lie, are 0.125 apart; either may be rounded by one step


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two answers part. `gap` by which the first one's token was likelier than the next; None: not known."""

    at: int
    gap: float | None

    def near_tie(self, full_precision: bool) -> bool | None:
        """Whether arithmetic in another order explains it; None: cannot be told."""
        return None if self.gap is None else self.gap < (FULL_PRECISION if full_precision else HALF_PRECISION)

    @property
    def words(self) -> str:
        gap = "not told" if self.gap is None else f"{self.gap:.2g}"
        return f"part at token {self.at}, where the likeliest was ahead by {gap}"


def parting(first: Sequence[str], second: Sequence[str], gaps: Sequence[float]) -> Parting | None:
    """None when both are equal; `gaps` are the first one's."""
    for at, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return Parting(at, gaps[at] if at < len(gaps) else None)
    if len(first) != len(second):
        at = min(len(first), len(second))
        return Parting(at, gaps[at] if at < len(gaps) else None)
    return None
