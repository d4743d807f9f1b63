"""What one rank reads: every byte range, and where in which target it goes. Torch-free, made from headers alone."""

from __future__ import annotations

from collections.abc import Mapping

from probes.checkpoint import Checkpoint
from runtime.arch import ArchSpec
from runtime.layout import Layout
from runtime.placement import Placement
from runtime.plan_attention import plan_attention_weights
from runtime.plan_moe import plan_feed_forward, plan_mixture, plan_slots
from runtime.planner import Part, Planner, RankPlan
from runtime.vision_plan import vision_shapes
from traces.errors import CheckpointError

__all__ = ["Part", "RankPlan", "plan_all", "plan_experts", "plan_rank"]


def plan_rank(checkpoint: Checkpoint, arch: ArchSpec, placement: Placement, rank: int, layout: Layout | None = None) -> RankPlan:
    """Everything `rank` of a layout needs: its stage's layers, its lane of what is split, and the experts of its slots.

    The placement is that of all MoE layers. Without a layout the experts are split over the placement's ranks, and nothing else is.
    """
    planner = Planner(checkpoint, arch, (layout or Layout(dp=placement.ranks)).share(rank, len(arch.layers)))
    plan_all(planner, placement)
    _note_skipped(planner)
    _refuse_extra(planner)
    return planner.plan


def plan_all(planner: Planner, placement: Placement) -> None:
    """Every target of the planner's share, and what fills it."""
    arch, share = planner.arch, planner.share
    _plan_ends(planner)
    moe_index = 0
    for i, layer in enumerate(arch.layers):
        planner.taking = i in share.layers
        _plan_norms(planner, i)
        plan_attention_weights(planner, i)
        if layer.moe is None:
            plan_feed_forward(planner, f"layers.{i}.dense", "", layer.dense_width, i, split=True)
        else:
            plan_mixture(planner, layer.moe, i, placement.local(moe_index, share.ep))
            moe_index += 1
    planner.taking = share.vision
    if arch.vision is not None:
        for name, shape in vision_shapes(arch.vision).items():
            planner.take(arch.key("vision") + name, shape, planner.target("vision." + name, *shape))


def plan_experts(checkpoint: Checkpoint, arch: ArchSpec, layer: int, wanted: Mapping[int, int], slots: int) -> RankPlan:
    """The experts of one layer only: `wanted` maps local slot -> expert; targets hold `slots` slots."""
    planner = Planner(checkpoint, arch, Layout().share(0, len(arch.layers)))
    moe = arch.layers[layer].moe
    assert moe is not None
    plan_slots(planner, moe, layer, wanted, slots)
    return planner.plan


def _plan_ends(planner: Planner) -> None:
    """Embedding and head: this lane's rows of the vocabulary. A last stage behind the first has a tied matrix once more, as its head."""
    arch, share = planner.arch, planner.share
    rows = share.split(arch.vocab)
    stored, kept = (arch.vocab, arch.hidden), (rows.stop - rows.start, arch.hidden)
    planner.taking = share.first
    planner.take(arch.key("embed"), stored, planner.target("embed", *kept), rows=rows)
    planner.taking = share.last
    planner.take(arch.key("norm"), (arch.hidden,), planner.target("norm", arch.hidden))
    if arch.attention_residuals:
        _plan_residual(planner, "output_residual", "output_residual")
    planner.taking = share.last and not (arch.tied_embeddings and share.first)
    planner.take(arch.key("embed" if arch.tied_embeddings else "head"), stored, planner.matrix("head", *kept), rows=rows)


def _plan_norms(planner: Planner, i: int) -> None:
    arch, ours = planner.arch, f"layers.{i}."
    for norm in ("attention_norm", "ffn_norm"):
        planner.take(arch.names(norm, layer=i), (arch.hidden,), planner.target(ours + norm, arch.hidden))
    if arch.layers[i].residual == "attention":
        for part in ("attention_residual", "ffn_residual"):
            _plan_residual(planner, ours + part, part, layer=i)


def _plan_residual(planner: Planner, ours: str, theirs: str, **places: int) -> None:
    """The query over frozen streams: a norm weight and a projection to one value. Kept in float32, as it is applied."""
    arch, hidden = planner.arch, planner.arch.hidden
    planner.take(arch.names(f"{theirs}.norm", **places), (hidden,), planner.target(f"{ours}.norm", hidden, precise=True))
    planner.take(arch.names(f"{theirs}.proj", **places), (1, hidden), planner.target(f"{ours}.proj", 1, hidden, precise=True))


def _note_skipped(planner: Planner) -> None:
    """Tensors that are known and not used are said to be so."""
    for skipped in planner.arch.skipped:
        names = {name for name in planner.tensors if name.startswith(skipped.prefix)}
        planner.seen |= names
        if names:
            planner.plan.notes.append(f"{len(names)} tensors under {skipped.prefix}: {skipped.why}")


def _refuse_extra(planner: Planner) -> None:
    """A tensor nobody asked for means that config and weights disagree."""
    arch, extra = planner.arch, set(planner.tensors) - planner.seen
    if arch.tied_embeddings:
        extra.discard(arch.key("head"))  # some files store the tied matrix twice
    extra = {name for name in extra if not name.endswith("rotary_emb.inv_freq")}  # a buffer that old versions saved
    if extra:
        name = min(extra)
        message = f"{len(extra)} tensors of the checkpoint are unknown to {arch.architecture}, first {name} in {planner.tensors[name].file}"
        raise CheckpointError(message, "config.json and weights belong to different models")
