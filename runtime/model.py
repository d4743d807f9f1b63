"""A model on one rank: loading, the forward pass, the vision tower, and changing the expert placement while serving."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from probes.checkpoint import Checkpoint
from probes.points import ROUTED_ROW
from runtime.arch import ArchSpec
from runtime.batch import ForwardBatch, StepContext
from runtime.boundary import crossing
from runtime.clock import Clock, clock_for
from runtime.expert_identity import ExpertIdentity
from runtime.forward_style import apply_style
from runtime.kv import KVCache
from runtime.layer_times import LayerTimes
from runtime.layers.attention_kinds import AttentionInputs, attention_inputs, context_of
from runtime.layers.experts import gated
from runtime.layers.moe import Mixture
from runtime.layers.residual import Streams
from runtime.layers.rope import Rope
from runtime.layers.slot_map import SlotMap
from runtime.load_mode import settings_for
from runtime.loader import Loader, Progress
from runtime.mesh import Mesh
from runtime.placement import Placement
from runtime.placement_stage import Staged, Stager, Switched, record_placement, swap
from runtime.plan import plan_rank
from runtime.step_rows import RowSink
from runtime.tiers.forecast import Forecast
from runtime.tiers.source import ExpertSource
from runtime.tiers.tier import ExpertTier
from runtime.towers import Tower, tower_of
from runtime.vision import Grid
from runtime.weight_hash import layer_hashes, weight_facts
from runtime.weights import ExpertBank, LayerWeights, ModelWeights, assemble
from traces import schema
from traces.errors import UsageError

log = logging.getLogger("runtime.model")


class MoeModel:
    """Call everything but `stage_placement` from the step loop's thread, inside `torch.inference_mode()` or not: it is set here."""

    tier: ExpertTier | None = None  # experts within a budget of memory
    twist: Callable[[ForwardBatch, int], ForwardBatch] | None = None  # of a drill: see forward_style.py

    def __init__(
        self, checkpoint: Checkpoint, arch: ArchSpec, mesh: Mesh, placement: Placement, loader: Loader, expert_memory: int | None = None
    ) -> None:
        self.arch = arch
        self.mesh = mesh
        self.share = mesh.layout.share(mesh.rank, len(arch.layers))
        self.moe_layers = tuple(layer for layer in arch.moe_layers if layer in self.share.layers)
        self.checkpoint = checkpoint
        self.placement = self._of_stage(placement)
        self.device, self.dtype = loader.device, loader.dtype
        self.loader = loader
        plan = plan_rank(checkpoint, arch, placement, mesh.rank, mesh.layout)
        for note in plan.notes:
            log.info("not loaded: %s", note)
        self.tier = self._tier(expert_memory)
        cold = None
        if self.tier is not None:
            plan = plan.without_experts()
            cold = {layer: self.tier.bank(layer) for layer in self.moe_layers}
        targets = loader.load(plan)
        if loader.recorder is not None:
            facts = {"lane": self.share.lane, "lanes": self.share.lanes, "targets": weight_facts(targets)}
            loader.recorder.row(schema.EVENT, dur=0, rank=mesh.rank, kind="weights", attrs=facts)
        self.weights: ModelWeights = assemble(arch, targets, self.share, cold)
        self.clock: Clock = clock_for(self.device)
        mesh.use(self.clock, self.device)
        self.rope = Rope(arch.rope, self.device) if arch.rope is not None else None
        self.tower: Tower | None = None
        if arch.vision is not None and self.share.vision:
            self.tower = tower_of(arch.vision, self.weights.vision)
        self.mixtures = self._mixtures()
        self.identity = ExpertIdentity([])
        if self.mixtures:
            local = self.tier.hashes() if self.tier is not None else layer_hashes(self._banks())
            self.identity = ExpertIdentity.agree(local, self.placement, mesh.ep)
        self._staged: Staged | None = None
        self._record_row()
        apply_style(self)
        self._record_placement(0, [0] * self.placement.layers, 0)

    def _record_row(self) -> None:
        """What routing asks of the exchange: one row a token and chosen expert, there and back."""
        if self.loader.recorder is None or not self.mixtures:
            return
        spec = next(iter(self.mixtures.values())).spec
        facts = {"row_bytes": spec.input_width(self.arch.hidden) * self.dtype.itemsize, "top_k": spec.router.top_k}
        self.loader.recorder.row(schema.EVENT, dur=0, rank=self.mesh.rank, kind=ROUTED_ROW, attrs=facts)

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        arch: ArchSpec,
        mesh: Mesh,
        placement: Placement | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        recorder: RowSink | None = None,
        progress: Progress | None = None,
        load_mode: str = "auto",
        expert_memory: int | None = None,
    ) -> MoeModel:
        """Plans from the headers, then reads this rank's part. CheckpointError before a weight byte where the headers suffice."""
        placement = placement or Placement.contiguous(len(arch.moe_layers), arch.moe.experts, mesh.layout.ep)
        how = settings_for(load_mode, checkpoint.path)
        loader = Loader(checkpoint.path, dtype, torch.device(device), mesh.rank, recorder, progress, how)
        return cls(checkpoint, arch, mesh, placement, loader, expert_memory)

    def _tier(self, budget: int | None) -> ExpertTier | None:
        if budget is None or not self.moe_layers:
            return None
        if self.device.type != "cpu":
            raise UsageError(f"--expert-memory does not work on {self.device}", "experts are computed from host memory: use --device cpu")
        source = ExpertSource(self.checkpoint, self.arch, self.loader, self.placement, self.mesh.ep.rank, self.moe_layers)
        tier = ExpertTier(source, budget, self.loader.recorder, self.mesh.rank)
        self.loader.beside = tier.shelf.frames * source.nbytes
        return tier

    def _banks(self) -> list[ExpertBank]:
        return [bank for mixture in self.mixtures.values() if isinstance(bank := mixture.weights.bank, ExpertBank)]

    def _mixtures(self) -> dict[int, Mixture]:
        """Layer index -> its mixture, for the layers of this stage."""
        mixtures = {}
        for index, layer in enumerate(self.moe_layers):
            spec, weights = self.arch.layers[layer].moe, self.weights.layers[layer - self.share.layers.start].experts
            assert spec is not None and weights is not None
            slots = SlotMap(self.placement, index, spec.experts, self.mesh.ep.rank, self.device)
            mixtures[layer] = Mixture(spec, weights, slots, self.mesh.ep, index, layer)
        if self.tier is not None:
            for mixture, following in pairwise(mixtures.values()):
                mixture.forecast = Forecast(self.tier, following)
        return mixtures

    def _of_stage(self, placement: Placement) -> Placement:
        """The layers of a whole model's placement that this stage holds."""
        first = sum(layer < self.share.layers.start for layer in self.arch.moe_layers)
        kept = placement.physical_to_logical[first : first + len(self.moe_layers)]
        return replace(placement, physical_to_logical=kept)

    def kv_cache(self, blocks: int, block_size: int, sequences: int = 64, float8: bool = False) -> KVCache:
        """A cache for the sequences of this rank's replica, its stage's layers and its lane's heads; `sequences`: how many may run."""
        layers = self.share.attentions(self.arch)
        return KVCache.create(layers, blocks, block_size, sequences, self.dtype, self.device, float8)

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, kv: KVCache, step: StepContext) -> Tensor:
        """Logits [K, V] at `batch.logits_at` on the ranks of the last stage, [0, V] elsewhere. All ranks of a replica are given one
        batch; with T = 0 they only serve the others' rows."""
        if self.twist is not None:
            batch = self.twist(batch, kv.block_size)
        rows = None if batch.image_rows is None else batch.image_rows.to(self.device)
        hidden, streams, side = self._enter(batch, rows, step)
        inputs = attention_inputs(
            batch, kv, self.arch, self.rope, self.device, lambda part: self.mesh.tp.all_reduce(part, "qk_norm", None, step)
        )
        for i, weights in zip(self.share.layers, self.weights.layers, strict=True):
            times = LayerTimes(self.clock) if step.detail else None
            hidden = self._layer(i, weights, hidden, streams, inputs, step, times)
            if rows is not None and i in side:
                hidden.index_add_(0, rows, side[i])
            if times is not None:
                times.mark()
                times.write(step, i, hidden.shape[0])
        self.clock.drain()
        if self.tier is not None:
            self.tier.end_step(step.step)
        if self.mesh.next is not None:
            rest = [side[i] for i in sorted(side) if i >= self.share.layers.stop]
            self.mesh.next.send([hidden, *streams.frozen, *rest], "boundary", step)
            return hidden.new_zeros(0, self.arch.vocab)
        hidden = streams.read(self.weights.output_residual, hidden)
        return self._logits(hidden.index_select(0, batch.logits_at.to(self.device)), step)

    def _enter(self, batch: ForwardBatch, rows: Tensor | None, step: StepContext) -> tuple[Tensor, Streams, dict[int, Tensor]]:
        """In front of this stage's layers: the stream [T, H], the frozen ones, and the side outputs [M, H] still to be added, by layer."""
        if self.mesh.previous is not None:
            shapes = crossing(self.arch, self.share.layers.start, batch)
            hidden, *rest = self.mesh.previous.receive(shapes.all, self.dtype, self.device, "boundary", step)
            side = {self.share.layers.start + i: values for i, values in enumerate(rest[len(shapes.frozen) :])}
            return hidden, Streams(rest[: len(shapes.frozen)]), side
        hidden = self._embed(batch.tokens.to(self.device), step)
        if rows is not None and batch.image_embeds is not None:
            hidden.index_copy_(0, rows, batch.image_embeds.to(hidden))
        return hidden, Streams(), {i: values.to(hidden) for i, values in enumerate(batch.deepstack)}

    def _embed(self, tokens: Tensor, step: StepContext) -> Tensor:
        """tokens [T] -> [T, H]; each lane looks up the tokens of its part of the vocabulary."""
        embed = self.weights.embed
        assert embed is not None
        if self.share.lanes == 1:
            return F.embedding(tokens, embed)
        part = self.share.split(self.arch.vocab)
        mine = (tokens >= part.start) & (tokens < part.stop)
        hidden = F.embedding((tokens - part.start).where(mine, 0), embed) * mine.unsqueeze(1)
        return self.mesh.tp.all_reduce(hidden, "embed", None, step)

    def _logits(self, last: Tensor, step: StepContext) -> Tensor:
        """last [K, H] -> [K, V]; each lane computes its part of the vocabulary."""
        norm, head = self.weights.norm, self.weights.head
        assert norm is not None and head is not None
        logits = F.linear(norm(last), head)
        if self.share.lanes == 1:
            return logits
        return self.mesh.tp.gather_rows(logits.t(), self.arch.vocab, "head", None, step).t().contiguous()

    def _layer(
        self,
        i: int,
        weights: LayerWeights,
        hidden: Tensor,
        streams: Streams,
        inputs: AttentionInputs,
        step: StepContext,
        times: LayerTimes | None,
    ) -> Tensor:
        """One decoder layer: hidden [T, H] -> [T, H]."""
        spec = self.arch.layers[i]
        seen = streams.read(weights.attention_residual, hidden)
        if spec.freezes:
            streams.frozen.append(hidden)
            hidden = torch.zeros_like(hidden)
        if hidden.shape[0]:
            place = i - self.share.layers.start
            context = context_of(weights.attention_norm(seen), self.share.attention(spec.attention), weights.attention, inputs, place)
            hidden = self._add(hidden, context, weights.attention.out, "attention", i, step)
            if weights.attention.out_bias is not None:
                hidden += weights.attention.out_bias
        if times is not None:
            times.attention_done()
        seen = streams.read(weights.ffn_residual, hidden)
        if weights.dense is None:
            return self._mix(i, weights, hidden, seen, step, times)
        if times is not None:
            times.dense_begin()
        inner = gated(F.linear(weights.ffn_norm(seen), weights.dense.gate_up), spec.activation)
        hidden = self._add(hidden, inner, weights.dense.down, "dense", i, step)
        if times is not None:
            times.experts_done()
        return hidden

    def _add(self, stream: Tensor, inner: Tensor, matrix: Tensor, op: str, layer: int, step: StepContext) -> Tensor:
        """stream [T, H] + inner [T, N] times matrix [H, N], where each lane has its part of N."""
        if self.share.lanes == 1:
            return torch.addmm(stream, inner, matrix.t())
        return stream + self.mesh.tp.all_reduce(F.linear(inner, matrix), op, layer, step)

    def _mix(self, i: int, weights: LayerWeights, hidden: Tensor, seen: Tensor, step: StepContext, times: LayerTimes | None) -> Tensor:
        """The mixture. Lanes hold the same tokens: each routes its part of them, so that no expert computes a token twice."""
        part = self.share.split(hidden.shape[0])
        mixed = self.mixtures[i].add(hidden[part], weights.ffn_norm(seen[part]), step, times)
        return self.mesh.tp.gather_rows(mixed, hidden.shape[0], "lanes", i, step)

    @torch.inference_mode()
    def encode_images(self, patches: Tensor, grids: Sequence[Grid]) -> tuple[Tensor, list[Tensor]]:
        """patches [P, C*t*p*p] float32, grids (t, h, w) in patches -> (embeddings [M, H], deepstack side outputs [M, H] each).
        ValueError without a tower, and for grids that the tower cannot read."""
        if self.tower is None:
            raise ValueError(f"{self.arch.architecture} has no vision tower on rank {self.mesh.rank}")
        return self.tower.encode(patches.to(self.device), grids)

    @property
    def staged_version(self) -> int | None:
        """Version of the placement that waits for `switch_placement`; None: there is none."""
        return None if self._staged is None else self._staged.placement.version

    def stage_placement(self, new: Placement) -> None:
        """Reads and checks the experts this rank needs under `new`; for a background thread. CheckpointError, BadPlacement,
        and UsageError where experts are in tiers."""
        if self.tier is not None:
            raise UsageError("experts cannot be placed anew while they are in tiers", "serve without --expert-memory")
        stager = Stager(self.checkpoint, self.arch, self.loader, self.identity, self.mesh.ep.rank)
        self._staged = stager.stage(self.placement, self._of_stage(new.checked(self.arch.moe.experts)), self.mixtures)

    def switch_placement(self, step: int = 0) -> Switched:
        """Puts the staged placement in force; `step` is the first one computed with it. Every rank must call it before that step."""
        if self._staged is None:
            raise ValueError("no placement is staged")
        old, staged = self.placement, self._staged
        switched = swap(staged, old, self.mixtures)
        self.placement, self._staged = staged.placement, None
        self._record_placement(step, old.moved(staged.placement), switched.stall)
        return switched

    def _record_placement(self, step: int, moved: list[int], stall: int) -> None:
        """One rank of a stage writes for all of it."""
        if self.loader.recorder is not None and self.mesh.ep.rank == 0:
            record_placement(self.loader.recorder, self.placement, self.moe_layers, self.identity, step, moved, stall)
