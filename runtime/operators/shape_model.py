"""A model of shapes alone: every weight on the meta device, made from the config, so that no checkpoint is needed and no byte allocated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from probes.checkpoint import TensorEntry
from runtime.arch import ArchSpec, AttentionSpec, KdaSpec, LayerSpec, MlaSpec
from runtime.batch import StepContext
from runtime.clock import HostClock
from runtime.layer_times import LayerTimes
from runtime.layers.attention_kinds import AttentionInputs
from runtime.layers.residual import Streams
from runtime.layers.rope import Rope
from runtime.layout import Layout, Share
from runtime.mesh import Mesh
from runtime.model import MoeModel
from runtime.operators.recording import Recorder
from runtime.placement import Placement
from runtime.plan import plan_all
from runtime.planner import ALL, Index, Planner, RankPlan
from runtime.weights import LayerWeights, ModelWeights, assemble

META = torch.device("meta")


class ShapeModel(MoeModel):
    """The forward pass as it is served; the recorder is told which layer computes."""

    def __init__(self, arch: ArchSpec, dtype: torch.dtype, recorder: Recorder) -> None:
        self.arch, self.mesh, self.device, self.dtype = arch, Mesh.alone(), META, dtype
        self.share = self.mesh.layout.share(0, len(arch.layers))
        self.moe_layers = arch.moe_layers
        self.placement = Placement.contiguous(len(arch.moe_layers), arch.moe.experts, 1)
        self.weights = _weights(arch, self.share, dtype)
        self.clock = HostClock()
        self.mesh.use(self.clock, META)
        self.rope = Rope(arch.rope, META) if arch.rope is not None else None
        self.tower = None
        self.mixtures = self._mixtures()
        self.recorder = recorder

    def _layer(
        self, i: int, weights: LayerWeights, hidden: Tensor, streams: Streams, inputs: AttentionInputs, step: StepContext,
        times: LayerTimes | None,
    ) -> Tensor:  # fmt: skip
        spec = self.arch.layers[i]
        alike = (spec, bool(streams.frozen))  # how many are frozen changes sizes, not which operators mix them
        with self.recorder.layer(kind_of(spec), alike) as known:
            if known:  # its operators are counted again, not dispatched again
                streams.frozen += [hidden] * spec.freezes
                return hidden
            return super()._layer(i, weights, hidden, streams, inputs, step, times)


def kind_of(layer: LayerSpec) -> str:
    """A layer in a few words: its attention, and its feed-forward."""
    spec = layer.attention
    if isinstance(spec, AttentionSpec):
        attention = "attention" if spec.window is None else f"attention window {spec.window}"
    else:
        attention = {MlaSpec: "latent attention", KdaSpec: "delta attention"}[type(spec)]
    return f"{attention} + {'dense' if layer.moe is None else 'mixture'}"


def _weights(arch: ArchSpec, share: Share, dtype: torch.dtype) -> ModelWeights:
    """Layers that are alike share their tensors: there are no values in them."""
    kinds = list(dict.fromkeys(arch.layers))
    small = replace(arch, layers=tuple(kinds), vision=None)
    mine = Layout().share(0, len(kinds))
    plan = _plan(small, mine)
    dtypes = {name: torch.float32 if name in plan.precise else dtype for name in plan.targets}
    targets = {name: torch.empty(shape, dtype=dtypes[name], device=META) for name, shape in plan.targets.items()}
    made = assemble(small, targets, mine)
    by_kind = dict(zip(kinds, made.layers, strict=True))
    return replace(made, layers=[by_kind[arch.layers[i]] for i in share.layers])


class _Any(dict[str, TensorEntry]):
    """Every name is in it, or none: nothing is looked up but whether experts are stored apart."""

    def __init__(self, every: bool) -> None:
        super().__init__()
        self.every = every

    def __contains__(self, name: object) -> bool:
        return self.every


class _TargetPlanner(Planner):
    """Collects the targets; there are no files that could fill them."""

    def __init__(self, arch: ArchSpec, share: Share) -> None:
        self.tensors: dict[str, TensorEntry] = _Any("expert.up" in arch.keys)
        self.arch, self.share, self.taking, self.plan, self.seen = arch, share, True, RankPlan(), set()

    def find(self, names: str | tuple[str, ...], shape: tuple[int, ...]) -> Any:
        return None

    def take(
        self, names: str | tuple[str, ...], shape: tuple[int, ...], target: str, index: Index = (), rows: slice = ALL, columns: slice = ALL
    ) -> None:
        pass

    def take_first(self, name: str, target: str, count: int, rows: slice = ALL) -> None:
        pass

    def take_expert(
        self, name: str, stacked: tuple[int, ...], expert: int, target: str, index: Index, transpose: bool, interleaved: bool = False
    ) -> None:
        pass


def _plan(arch: ArchSpec, share: Share) -> RankPlan:
    planner = _TargetPlanner(arch, share)
    plan_all(planner, Placement.contiguous(len(arch.moe_layers), arch.moe.experts, 1))
    return planner.plan
