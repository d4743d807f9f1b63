"""What a norm makes of faint rows, where its epsilon is as large as they are.

Another epsilon is invisible in a prompt whose rows have a root mean square of a half, and shows in one of small rows
(reference/causes_oom_garbled_image.md, S2.2). So every norm is also given a row of its own, beside the ones of the prompt.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

FAINT = 1e-3  # root mean square of a faint row: its square is the usual epsilon
OF_NORM = ".faint"  # behind the name of a norm's tap


def faint_gain(norm: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    """`like` [T, H] -> [T, 1] float32: root mean square of what a norm makes of a row of FAINT over that of a row of ones.

    Weights cancel, and no row of the prompt is in it: sqrt((1 + eps) / (1 + eps / FAINT^2)) for every token alike."""
    rows = like.new_tensor([FAINT, 1.0]).unsqueeze(1).expand(2, like.shape[-1])
    faint, loud = norm(rows.contiguous()).float().square().mean(-1).sqrt()
    gain: Tensor = faint / loud
    return gain.expand(like.shape[0], 1)


def epsilon_of(gain: float) -> float:
    """The epsilon of a norm with such a gain; inf where nothing is left of a faint row."""
    square = gain * gain
    return max(0.0, (1 - square) / (square / FAINT**2 - 1)) if square > FAINT**2 else float("inf")


def gain_of(epsilon: float) -> float:
    """The gain of a norm with such an epsilon, in float64."""
    return float(((1 + epsilon) / (1 + epsilon / FAINT**2)) ** 0.5)


def is_faint(tap: str) -> bool:
    return tap.endswith(OF_NORM)
