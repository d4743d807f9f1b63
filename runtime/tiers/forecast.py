"""Which experts the next mixture will ask this rank for, guessed with its own router from the rows that enter this one."""

from __future__ import annotations

from torch import Tensor

from runtime.layers.moe import Mixture
from runtime.layers.router import choose
from runtime.tiers.tier import ExpertTier


class Forecast:
    """From this rank's own tokens alone: what other ranks will send is not known before it arrives."""

    def __init__(self, tier: ExpertTier, following: Mixture) -> None:
        self._tier, self._following = tier, following

    def __call__(self, hidden: Tensor) -> None:
        """hidden [T, H], normalised for this layer: the next one's norm differs, the direction hardly does."""
        mixture, first = self._following, self._following.group.rank * self._tier.source.slots
        if not hidden.shape[0]:
            return
        _, experts = choose(hidden, mixture.weights, mixture.spec.router)
        counts = mixture.slots(experts).bincount(minlength=mixture.slots.slots)[first : first + self._tier.source.slots]
        likely = counts.argsort(descending=True)[: int(counts.count_nonzero())]
        self._tier.expect(mixture.layer, likely.tolist())
