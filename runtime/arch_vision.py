"""The vision towers: what their forward passes need to know. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal


@dataclass(frozen=True, slots=True)
class VisionSpec:
    """The Qwen3-VL tower: patches -> blocks -> merged tokens of width `out_hidden`, and side outputs after the `deepstack` blocks."""

    pictures: ClassVar[str] = "qwen"  # whose patches it reads: Recipe.family in runtime/pixels/recipe.py
    depth: int
    hidden: int
    heads: int
    width: int
    channels: int
    patch: int
    temporal_patch: int
    merge: int
    out_hidden: int
    grid_side: int  # the learned position grid is grid_side x grid_side
    deepstack: tuple[int, ...]
    rope_theta: float
    activation: Literal["gelu_pytorch_tanh"] = "gelu_pytorch_tanh"

    @property
    def patch_values(self) -> int:
        """Values of one patch: channels x temporal x patch x patch."""
        return self.channels * self.temporal_patch * self.patch * self.patch


@dataclass(frozen=True, slots=True)
class MoonVitSpec:
    """MoonViT-3D and its projector: patches -> blocks -> the mean over frames of merge x merge patches -> tokens of width `out_hidden`.

    K2.5 has layer norms, biases, and the projector's norm before its matrices; K3 RMS norms, no biases, and that norm behind them.
    """

    pictures: ClassVar[str] = "kimi"
    temporal_patch: ClassVar[int] = 1
    deepstack: ClassVar[tuple[int, ...]] = ()
    depth: int
    hidden: int
    heads: int
    attention: int  # width of queries, keys and values each
    width: int
    patch: int
    merge: int
    out_hidden: int
    grid: tuple[int, int]  # rows and columns of the learned positions
    frames: int  # the most that one grid may have: their positions are a fixed table
    form: Literal["k2.5", "k3"]
    resampling: Literal["bicubic", "bilinear"]  # of the learned positions
    projector_eps: float
    rope_theta: float = 10_000.0

    @property
    def bias(self) -> bool:
        """Whether every matrix and every norm of tower and projector has one."""
        return self.form == "k2.5"

    @property
    def patch_values(self) -> int:
        """Values of one patch: three channels x patch x patch."""
        return 3 * self.patch * self.patch


AnyVision = VisionSpec | MoonVitSpec
