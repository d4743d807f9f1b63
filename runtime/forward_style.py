"""How a step is computed. `right`, the default, changes nothing; the others are how engines go wrong. One of them, `padded-exchange`,
gives the right answers and moves too much for them.

They really compute what they are called, so that a drill can show what each does to the answers, and the garbled-output playbook can be
measured. Each is a defect that some engine had (reference/causes_oom_garbled_image.md, S2.4). The variable WORKBENCH_DRILL_FORWARD
chooses one, and the rank's log says so; nothing in the store and no fingerprint names it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.arch import MoeSpec
from runtime.batch import ForwardBatch, StepContext
from runtime.forward_variable import FORWARD_STYLE
from runtime.layers.moe import Mixture
from runtime.layers.router import choose
from runtime.layers.slot_map import SlotMap
from runtime.parallel import Flight, Group
from runtime.weights import ExpertWeights
from traces.errors import UsageError

if TYPE_CHECKING:
    from runtime.model import MoeModel

log = logging.getLogger("runtime.forward")


class SoftmaxRouter(Mixture):
    """Scores by softmax, whatever the model was trained with (mlxcel#391)."""

    def route(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return choose(hidden, self.weights, replace(self.spec.router, score="softmax"))


class BiasInWeights(Mixture):
    """The selection bias stays in the weights that it was only to choose with (vLLM-metax#270)."""

    def route(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        shares, experts = super().route(hidden)
        router, select = self.spec.router, self.weights.select
        if select is None:
            return shares, experts
        scores = F.linear(hidden.float(), self.weights.router.float()).sigmoid() + select
        biased = scores.gather(1, experts)
        biased = biased / biased.sum(-1, keepdim=True) if router.renormalise else biased
        return (biased * router.scale).to(hidden.dtype), experts


class ScaledTwice(Mixture):
    """The routed scaling factor is applied by the router, and again behind it (vllm#45037)."""

    def route(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        shares, experts = super().route(hidden)
        return shares * self.spec.router.scale, experts


class Capped(Mixture):
    """An expert takes `factor` times its even share of the tokens; later ones are dropped (Switch transformers' capacity)."""

    factor = 1.0

    def route(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        shares, experts = super().route(hidden)
        capacity = max(1, int(self.factor * experts.numel() / self.spec.experts))
        chosen = F.one_hot(experts.flatten(), self.spec.experts)
        place = (chosen.cumsum(0) * chosen).sum(1).view_as(experts)  # 1 for the first token of an expert
        return shares.masked_fill(place > capacity, 0.0), experts


class TightlyCapped(Capped):
    """Half of an even share."""

    factor = 0.5


class PaddedFlight(Flight):
    """Rows on their way among padding; `kept` are the places of those that are rows."""

    kept: Tensor

    def wait(self) -> Tensor:
        return super().wait().index_select(0, self.kept)


class PaddedGroup(Group):
    """Every message of an exchange of rows is as long as the fullest of all ranks, as where buffers have one size (vllm#28664 and what
    came before exact splits).
    """

    def __init__(self, group: Group) -> None:
        self.__dict__ = group.__dict__  # one number for the collectives of both

    def start_all_to_all(self, rows: Tensor, sent: list[int], received: list[int], op: str, layer: int | None, step: StepContext) -> Flight:
        if self.size == 1 or op not in ("dispatch", "combine"):
            return super().start_all_to_all(rows, sent, received, op, layer, step)
        width = int(self.all_gather(torch.tensor([max(*sent, *received)]), "fullest", step).max())
        padded = rows.new_zeros((self.size * width, *rows.shape[1:])).index_copy_(0, _places(sent, width), rows)
        even = [width] * self.size
        plain = super().start_all_to_all(padded, even, even, op, layer, step)
        flight = PaddedFlight(plain._out, plain._sent, plain._work, plain.landed)
        flight.kept = _places(received, width)
        return flight


def _places(counts: list[int], width: int) -> Tensor:
    """Where the rows of each peer stand among messages of one width: [sum(counts)]."""
    return torch.cat([torch.arange(count) + peer * width for peer, count in enumerate(counts)])


class PaddedExchange(Mixture):
    """Messages of one size between all ranks; the answers are right."""

    def __init__(self, spec: MoeSpec, weights: ExpertWeights, slots: SlotMap, group: Group, index: int, layer: int) -> None:
        super().__init__(spec, weights, slots, PaddedGroup(group), index, layer)


class SharedReducedTwice(Mixture):
    """The shared expert is whole on every rank of the group, and is summed over them all the same (vllm#49122, sglang#31475)."""

    def _shared_outward(self, stream: Tensor, inner: Tensor, step: StepContext) -> Tensor:
        shared = self.weights.shared
        assert shared is not None
        part = F.linear(inner, shared.down)
        if self.group.size == 1:
            return stream + part
        count = int(self.group.all_reduce(torch.tensor([part.shape[0]]), "shared", self.layer, step))
        whole = self.group.gather_rows(part, count, "shared", self.layer, step)
        summed = self.group.all_reduce(whole, "shared", self.layer, step)
        first = self.group.rank * -(-count // self.group.size)
        return stream + summed[first : first + part.shape[0]]


def forget_past(batch: ForwardBatch, block_size: int) -> ForwardBatch:
    """Every prefill chunk attends to itself alone; its keys are cached where they belong, and decoding reads them all (imp#114)."""
    cached, tables = batch.cached.clone(), list(batch.block_tables)
    lengths = batch.query_starts.diff()
    for i, before in enumerate(batch.cached.tolist()):
        if before and lengths[i] > 1 and before % block_size == 0:
            cached[i], tables[i] = 0, tables[i][before // block_size :]
    return replace(batch, cached=cached, block_tables=tables)


_MIXTURES: dict[str, type[Mixture]] = {
    "router-softmax": SoftmaxRouter,
    "router-biased": BiasInWeights,
    "scaled-twice": ScaledTwice,
    "capacity": Capped,
    "capacity-half": TightlyCapped,
    "shared-twice": SharedReducedTwice,
    "padded-exchange": PaddedExchange,
}
_BATCHES: dict[str, Callable[[ForwardBatch, int], ForwardBatch]] = {"forget-past": forget_past}
STYLES = ("right", *_MIXTURES, *_BATCHES)


def apply_style(model: MoeModel) -> None:
    """Makes a loaded model compute as the variable says. UsageError for an unknown style."""
    name = os.environ.get(FORWARD_STYLE, "right")
    if name not in STYLES:
        raise UsageError(f"there is no forward style {name!r}", f"{FORWARD_STYLE} is one of {', '.join(STYLES)}")
    if name == "right":
        return
    log.warning("%s=%s: this model computes in a bad way on purpose; unset it", FORWARD_STYLE, name)
    if name in _BATCHES:
        model.twist = _BATCHES[name]
        return
    for layer, mixture in model.mixtures.items():
        parts = (mixture.spec, mixture.weights, mixture.slots, mixture.group, mixture.index, mixture.layer)
        model.mixtures[layer] = _MIXTURES[name](*parts)
