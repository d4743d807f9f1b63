"""What a model is: one description that spans the families. Torch-free; the playbooks read it too.

A family (runtime/families/) turns config.json into an ArchSpec. What the runtime cannot compute is refused here, by name, before a
weight byte is read. A new attention, feed-forward or router kind is a new value of `kind` or `score` and one file in layers/.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from runtime.arch_attention import AnyAttention, AttentionSpec, KdaSpec, MlaSpec, RopeSpec, YarnSpec
from runtime.arch_moe import SILU, Activation, MoeSpec, RouterSpec
from runtime.arch_vision import AnyVision, MoonVitSpec, VisionSpec
from traces.errors import CheckpointError

__all__ = [
    "SILU", "Activation", "AnyAttention", "AnyVision", "ArchSpec", "AttentionSpec", "KdaSpec", "LayerSpec", "MlaSpec", "MoeSpec",
    "MoonVitSpec", "QuantSpec", "RopeSpec", "RouterSpec", "Skipped", "SpecialTokens", "VisionSpec", "YarnSpec", "read_arch",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One decoder layer. `moe` None means a dense feed-forward of width `dense_width`.

    `residual` "attention": its two parts read a mix of the frozen streams and the running one, not the running one alone; `freezes`: the
    stream before this layer is frozen, and starts anew.
    """

    attention: AnyAttention
    moe: MoeSpec | None
    dense_width: int = 0
    activation: Activation = SILU  # of the dense feed-forward
    residual: Literal["plain", "attention"] = "plain"
    freezes: bool = False


@dataclass(frozen=True, slots=True)
class QuantSpec:
    """How the quantised tensors of a checkpoint are stored; those stored as plain floats are taken as they are.

    - fp8_block: float8_e4m3, one scale per `block` of rows and columns
    - mxfp4: two e2m1 values a byte, one e8m0 scale per `group` values of a row
    - int4: eight values of a row an int32, less 8, one float scale per `group` values of a row
    """

    kind: Literal["fp8_block", "mxfp4", "int4"]
    block: tuple[int, int] = (128, 128)
    group: int = 32


@dataclass(frozen=True, slots=True)
class Skipped:
    """Tensors of the checkpoint that are known and not used; `why` is for people."""

    prefix: str
    why: str


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Token ids with a meaning to the model; None where the config names none."""

    eos: tuple[int, ...] = ()
    bos: int | None = None
    pad: int | None = None
    image: int | None = None
    video: int | None = None
    vision_start: int | None = None
    vision_end: int | None = None


@dataclass(frozen=True, slots=True)
class ArchSpec:
    """A whole model. `keys` maps our names of weights to the checkpoint's, with {layer}, {expert} and {index} to fill in; where
    checkpoints of a family differ, the alternatives are separated by |."""

    family: str
    architecture: str
    hidden: int
    vocab: int
    norm_eps: float
    max_positions: int
    rope: RopeSpec | None  # None: positions are not encoded
    layers: tuple[LayerSpec, ...]
    tied_embeddings: bool
    keys: Mapping[str, str]
    tokens: SpecialTokens = field(default_factory=SpecialTokens)
    vision: AnyVision | None = None
    quant: QuantSpec | None = None
    skipped: tuple[Skipped, ...] = ()

    @property
    def recurrent(self) -> bool:
        """Whether a sequence has a state besides its cached tokens."""
        return any(isinstance(layer.attention, KdaSpec) for layer in self.layers)

    @property
    def spatial_positions(self) -> bool:
        """Whether the tokens of a picture have positions t, h, w; else they count on like text."""
        return self.rope is not None and self.rope.sections is not None

    @property
    def attention_residuals(self) -> bool:
        """Whether frozen streams travel with the running one."""
        return any(layer.residual == "attention" for layer in self.layers)

    @property
    def moe_layers(self) -> tuple[int, ...]:
        """Indices of the layers that hold experts."""
        return tuple(i for i, layer in enumerate(self.layers) if layer.moe is not None)

    @property
    def moe(self) -> MoeSpec:
        """The mixture of the first MoE layer; in every supported family all MoE layers are alike."""
        for layer in self.layers:
            if layer.moe is not None:
                return layer.moe
        raise CheckpointError(f"{self.architecture} has no expert layer", "serve a Mixture-of-Experts checkpoint")

    def key(self, name: str, **places: int) -> str:
        """The checkpoint's name of one of our weights; of several, the first."""
        return self.names(name, **places)[0]

    def names(self, name: str, **places: int) -> tuple[str, ...]:
        """Every name that checkpoints of this family give to one of our weights."""
        return tuple(self.keys[name].format(**places).split("|"))


def read_arch(config: Mapping[str, Any]) -> ArchSpec:
    """The ArchSpec of a config.json; CheckpointError names what is unsupported and what is supported."""
    from runtime.families import FAMILIES  # the families import the specs above
    from runtime.quantisation import read_quantisation

    kind = config.get("model_type")
    architecture = (config.get("architectures") or [kind])[0]
    reader = FAMILIES.get(kind) if isinstance(kind, str) else None
    if reader is None:
        hint = f"supported model types: {', '.join(sorted(FAMILIES))}"
        raise CheckpointError(f"the architecture {architecture} (model_type {kind}) is not supported", hint)
    _refuse_two_answers(config)
    quantisation = read_quantisation(config)
    return replace(reader(config), quant=None if quantisation is None else quantisation.spec)


def _refuse_two_answers(config: Mapping[str, Any]) -> None:
    """A setting that stands in the config and in its text_config, with different values: either may be what the weights were made for."""
    inner = config.get("text_config")
    for key in ("vocab_size", "hidden_size"):
        if isinstance(inner, dict) and key in config and key in inner and config[key] != inner[key]:
            message = f"config.json says {key} {config[key]!r} at the top and {inner[key]!r} in text_config"
            raise CheckpointError(message, "remove the one that does not belong to the weights")
