"""The tensors of the vision towers: MoonViT (Kimi) and the Qwen3-VL tower."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.inventory.builder import Builder


@dataclass(frozen=True, slots=True)
class MoonVit:
    """MoonViT-3D. K3 drops biases, uses RMS norms and a narrower attention; K2.5 has layer norms and biases (both as published)."""

    patch: int
    hidden: int
    layers: int
    attention: int  # columns of the output projection, a third of wqkv's rows
    width: int
    grid: tuple[int, int]
    merge: int  # patches merged into one token
    text_hidden: int
    bias: bool
    pre_norm: bool  # the projector's norm stands before (K2.5) or after (K3)

    def add(self, builder: Builder, tower: str, projector: str) -> None:
        builder.tensor(tower + "patch_embed.proj.weight", (self.hidden, 3, self.patch, self.patch), "vision")
        if self.bias:
            builder.tensor(tower + "patch_embed.proj.bias", (self.hidden,), "vision", role="vector")
        builder.tensor(tower + "patch_embed.pos_emb.weight", (*self.grid, self.hidden), "vision")
        for block in range(self.layers):
            at = f"{tower}encoder.blocks.{block}."
            builder.norm(at + "norm0", self.hidden, "vision", bias=self.bias)
            builder.norm(at + "norm1", self.hidden, "vision", bias=self.bias)
            self._linear(builder, at + "wqkv", 3 * self.attention, self.hidden)
            self._linear(builder, at + "wo", self.hidden, self.attention)
            self._linear(builder, at + "mlp.fc0", self.width, self.hidden)
            self._linear(builder, at + "mlp.fc1", self.hidden, self.width)
        builder.norm(tower + "encoder.final_layernorm", self.hidden, "vision", bias=self.bias)
        self._projector(builder, projector)

    def _projector(self, builder: Builder, at: str) -> None:
        merged = self.hidden * self.merge
        if self.pre_norm:
            builder.norm(at + "pre_norm", self.hidden, "projector", bias=self.bias)
        for name, rows in (("proj.0", merged), ("proj.2", self.text_hidden)):
            builder.tensor(f"{at}{name}.weight", (rows, merged), "projector")
            if self.bias:
                builder.tensor(f"{at}{name}.bias", (rows,), "projector", role="vector")
        if not self.pre_norm:
            builder.norm(at + "post_norm", self.text_hidden, "projector")

    @staticmethod
    def _plain(builder: Builder, name: str, shape: tuple[int, ...]) -> None:
        builder.tensor(name, shape, "vision", role="matrix" if len(shape) > 1 else "vector")

    def _linear(self, builder: Builder, module: str, rows: int, columns: int) -> None:
        """The tower is never packed."""
        self._plain(builder, module + ".weight", (rows, columns))
        if self.bias:
            self._plain(builder, module + ".bias", (rows,))


def add_shapes(builder: Builder, at: str, shapes: dict[str, tuple[int, ...]]) -> None:
    """A tower whose names and shapes are known already (`runtime.vision_plan`)."""
    for name, shape in shapes.items():
        kind = "projector" if "merger" in name else "vision"
        builder.tensor(at + name, shape, "projector" if kind == "projector" else "vision", role="matrix" if len(shape) > 1 else "vector")
