"""Feed-forward parts of a layer: activations, router, mixture. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Activation:
    """What is made of a gate g and an up value u.

    - silu: silu(g) u
    - clamped_swiglu: with g <= limit and |u| <= limit, g sigmoid(scale g) (u + 1) (gpt-oss)
    - situ: scale tanh(g / scale) sigmoid(g) * limit tanh(u / limit) (Kimi K3)
    """

    kind: Literal["silu", "clamped_swiglu", "situ"] = "silu"
    scale: float = 1.0
    limit: float = 0.0


SILU = Activation()


@dataclass(frozen=True, slots=True)
class RouterSpec:
    """Chooses `top_k` experts by score; `renormalise` makes their weights sum to one, `scale` multiplies them then.

    `selection_bias`: added to the scores when choosing, not when weighing. `groups`: only the best `top_groups` of so many equal groups of
    experts can be chosen from; a group's score is the sum of its two best.
    """

    top_k: int
    renormalise: bool
    score: Literal["softmax", "sigmoid"] = "softmax"
    bias: bool = False  # of the projection to logits
    selection_bias: bool = False
    groups: int = 1
    top_groups: int = 1
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """The mixture of a layer: every expert is down(act(gate(x)), up(x)) of inner width `width`.

    `latent`: experts see and answer so many values, a projection of the hidden ones; the sum over the chosen experts is normalised if
    `latent_norm`, then projected back. `shared_width` > 0: a feed-forward of that width is added for every token. `interleaved`: in the
    checkpoint's fused experts the rows of gate and up alternate, and plain ones are stored [in, out].
    """

    experts: int
    width: int
    router: RouterSpec
    activation: Activation = field(default=SILU)
    bias: bool = False  # of the experts' projections
    latent: int | None = None
    latent_norm: bool = False
    shared_width: int = 0
    interleaved: bool = False

    def input_width(self, hidden: int) -> int:
        """Values of a row that an expert is sent, and answers."""
        return hidden if self.latent is None else self.latent
