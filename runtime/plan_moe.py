"""What the mixture of a layer reads: router, shared expert, latent projections, and the experts of a rank's slots."""

from __future__ import annotations

from collections.abc import Mapping

from runtime.arch import MoeSpec
from runtime.expert_layout import ExpertLayout, detect
from runtime.planner import Planner


def plan_mixture(planner: Planner, moe: MoeSpec, i: int, local: tuple[int, ...]) -> None:
    """Everything of layer i's mixture; `local` are the experts of this rank's slots."""
    arch, ours, hidden = planner.arch, f"layers.{i}.", planner.arch.hidden
    router = (moe.experts, hidden)
    sigmoid = moe.router.score == "sigmoid"  # these families compute their logits in float32
    planner.take(arch.names("router", layer=i), router, planner.matrix(ours + "router", *router, precise=sigmoid))
    if moe.router.bias:
        planner.take(arch.names("router_bias", layer=i), (moe.experts,), planner.target(ours + "router_bias", moe.experts))
    if moe.router.selection_bias:
        select = planner.target(ours + "router_select", moe.experts, precise=True)
        planner.take(arch.names("router_select", layer=i), (moe.experts,), select)
    if moe.shared_width:
        plan_feed_forward(planner, ours + "shared", "shared.", moe.shared_width, i)
    if moe.latent is not None:
        down, up = (moe.latent, hidden), (hidden, moe.latent)
        planner.take(arch.names("latent.down", layer=i), down, planner.matrix(ours + "latent.down", *down))
        planner.take(arch.names("latent.up", layer=i), up, planner.matrix(ours + "latent.up", *up))
        if moe.latent_norm:
            planner.take(arch.names("latent.norm", layer=i), (moe.latent,), planner.target(ours + "latent.norm", moe.latent))
    plan_slots(planner, moe, i, dict(enumerate(local)), len(local))


def plan_feed_forward(planner: Planner, ours: str, theirs: str, width: int, i: int, split: bool = False) -> None:
    """A dense feed-forward: targets `ours`.gate_up and .down, from the keys `theirs`gate, up and down; `split`: this lane's part of it."""
    arch, hidden = planner.arch, planner.arch.hidden
    part = planner.share.split(width) if split else slice(0, width)
    mine = part.stop - part.start
    gate_up = planner.matrix(f"{ours}.gate_up", 2 * mine, hidden)
    planner.take(arch.names(f"{theirs}gate", layer=i), (width, hidden), gate_up, (slice(0, mine),), rows=part)
    planner.take(arch.names(f"{theirs}up", layer=i), (width, hidden), gate_up, (slice(mine, 2 * mine),), rows=part)
    planner.take(arch.names(f"{theirs}down", layer=i), (hidden, width), planner.matrix(f"{ours}.down", hidden, mine), columns=part)


def plan_slots(planner: Planner, moe: MoeSpec, i: int, wanted: Mapping[int, int], slots: int) -> None:
    """The experts alone: `wanted` maps local slot -> expert; targets hold `slots` slots."""
    arch, inward = planner.arch, moe.input_width(planner.arch.hidden)
    layout = detect(arch, moe, planner.tensors, i)
    gate_up = planner.matrix(f"layers.{i}.experts.gate_up", slots, 2 * moe.width, inward)
    down = planner.matrix(f"layers.{i}.experts.down", slots, inward, moe.width)
    if moe.bias:
        planner.target(f"layers.{i}.experts.gate_up_bias", slots, 2 * moe.width)
        planner.target(f"layers.{i}.experts.down_bias", slots, inward)
    if layout == "separate":
        _check_separate(planner, moe, i)
    half, width = (moe.width, inward), moe.width
    for slot, expert in wanted.items():
        if layout == "separate":
            planner.take(arch.names("expert.gate", layer=i, expert=expert), half, gate_up, (slot, slice(0, width)))
            planner.take(arch.names("expert.up", layer=i, expert=expert), half, gate_up, (slot, slice(width, 2 * width)))
            planner.take(arch.names("expert.down", layer=i, expert=expert), (inward, width), down, (slot,))
        else:
            _take_fused(planner, moe, i, expert, slot, layout)


def _take_fused(planner: Planner, moe: MoeSpec, i: int, expert: int, slot: int, layout: ExpertLayout) -> None:
    arch, inward, transposed = planner.arch, moe.input_width(planner.arch.hidden), layout == "in_out"
    for name, rows, columns in (("gate_up", 2 * moe.width, inward), ("down", inward, moe.width)):
        stored = (moe.experts, columns, rows) if transposed else (moe.experts, rows, columns)
        interleaved = moe.interleaved and name == "gate_up"
        ours = f"layers.{i}.experts.{name}"
        planner.take_expert(arch.key(f"experts.{name}", layer=i), stored, expert, ours, (slot,), transposed, interleaved)
        if moe.bias:
            bias = arch.key(f"experts.{name}_bias", layer=i)
            planner.take_expert(bias, (moe.experts, rows), expert, f"{ours}_bias", (slot,), False, interleaved)


def _check_separate(planner: Planner, moe: MoeSpec, i: int) -> None:
    """Every expert must be there and well-shaped, also those that other ranks read."""
    arch, inward = planner.arch, moe.input_width(planner.arch.hidden)
    for expert in range(moe.experts):
        planner.find(arch.names("expert.gate", layer=i, expert=expert), (moe.width, inward))
        planner.find(arch.names("expert.up", layer=i, expert=expert), (moe.width, inward))
        planner.find(arch.names("expert.down", layer=i, expert=expert), (inward, moe.width))
