"""Our forward pass with taps: a subclass that records, so that the model which serves has no hook and no branch for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.arch import AttentionSpec, MlaSpec
from runtime.batch import ForwardBatch, StepContext
from runtime.layer_times import LayerTimes
from runtime.layers.attention import AttentionWeights
from runtime.layers.attention_kinds import AttentionInputs
from runtime.layers.experts import gated
from runtime.layers.norm import RmsNorm
from runtime.layers.residual import Streams
from runtime.local import LocalSequence
from runtime.model import MoeModel
from runtime.taps.capture import Capture, by_expert
from runtime.taps.faint import OF_NORM, faint_gain
from runtime.weights import LayerWeights


class _HeardNorm(RmsNorm):
    """The same norm; what it returns is also told, and what it leaves of a faint row."""

    __slots__ = ("_inner", "_tell")

    def __init__(self, inner: RmsNorm, tell: Callable[[Tensor, Tensor], None]) -> None:
        self.weight = inner.weight
        self._inner, self._tell = inner, tell

    def __call__(self, x: Tensor) -> Tensor:
        out = self._inner(x)
        self._tell(out, faint_gain(self._inner, x))
        return out


class TappedModel(MoeModel):
    """One rank alone. Give it one sequence a step; `take` returns what was recorded since the last one.

    The stream itself is computed as in serving; routed and shared parts are computed once more, apart, because the sum that serves
    never holds them alone.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._taps: dict[str, list[Tensor]] = {}

    @classmethod
    def over(cls, model: MoeModel) -> TappedModel:
        """A view that records, of a model that is loaded: the weights are shared, the model itself stays as it is."""
        view = cls.__new__(cls)
        vars(view).update(vars(model), _taps={})
        return view

    def take(self) -> dict[str, Tensor]:
        """Tap -> [T, ...] over the steps since the last call; empties the record."""
        taken = {name: torch.cat(parts) for name, parts in self._taps.items()}
        self._taps.clear()
        return taken

    def _tap(self, name: str, value: Tensor) -> None:
        self._taps.setdefault(name, []).append(value.detach().flatten(1).cpu().clone())

    def _enter(self, batch: ForwardBatch, rows: Tensor | None, step: StepContext) -> tuple[Tensor, Streams, dict[int, Tensor]]:
        hidden, streams, side = super()._enter(batch, rows, step)
        self._tap("embed", hidden)
        return hidden, streams, side

    def _layer(
        self, i: int, weights: LayerWeights, hidden: Tensor, streams: Streams, inputs: AttentionInputs, step: StepContext,
        times: LayerTimes | None,
    ) -> Tensor:  # fmt: skip
        at = f"layers.{i}."

        def before(seen: Tensor, gain: Tensor) -> None:
            self._tap(at + "attention_norm", seen)
            self._tap(at + "attention_norm" + OF_NORM, gain)
            self._key_before_rope(i, weights.attention, seen)

        def between(seen: Tensor, gain: Tensor) -> None:
            self._tap(at + "ffn_norm", seen)
            self._tap(at + "ffn_norm" + OF_NORM, gain)

        heard = replace(
            weights,
            attention_norm=_HeardNorm(weights.attention_norm, before),
            ffn_norm=_HeardNorm(weights.ffn_norm, between),
        )
        output = super()._layer(i, heard, hidden, streams, inputs, step, times)
        self._cached(i, inputs)
        self._tap(at + "output", output)
        return output

    def _key_before_rope(self, i: int, weights: Any, seen: Tensor) -> None:
        spec = self.arch.layers[i].attention
        if not isinstance(spec, AttentionSpec) or not isinstance(weights, AttentionWeights):
            return
        both = spec.heads + spec.kv_heads
        heads = torch.unflatten(F.linear(seen, weights.qkv, weights.qkv_bias), 1, (-1, spec.head_dim))[:, :both]
        heads = weights.normed(heads, lambda part: part)  # there is one lane
        self._tap(f"layers.{i}.key_before_rope", heads[:, spec.heads :])

    def _cached(self, i: int, inputs: AttentionInputs) -> None:
        """What the layer's cache now holds of the step's tokens, as attention will read it."""
        spec = self.arch.layers[i].attention
        if not isinstance(spec, AttentionSpec | MlaSpec):
            return
        slots, size = inputs.plan.slots, inputs.kv.block_size
        pages = inputs.kv.pools[i - self.share.layers.start].read(slots // size, size, slots.shape[0])  # [rows, T, block, width]
        held = pages[:, torch.arange(slots.shape[0], device=slots.device), slots % size].transpose(0, 1)  # [T, rows, width]
        if isinstance(spec, MlaSpec):
            self._tap(f"layers.{i}.latent", held)
            return
        self._tap(f"layers.{i}.key", held[:, : spec.kv_heads])
        self._tap(f"layers.{i}.value", held[:, spec.kv_heads :])

    def _add(self, stream: Tensor, inner: Tensor, matrix: Tensor, op: str, layer: int, step: StepContext) -> Tensor:
        part = F.linear(inner, matrix)
        if op == "attention":
            bias = self.weights.layers[layer - self.share.layers.start].attention.out_bias
            self._tap(f"layers.{layer}.attention", part if bias is None else part + bias)
        else:
            self._tap(f"layers.{layer}.ffn", part)
        return super()._add(stream, inner, matrix, op, layer, step)

    def _mix(self, i: int, weights: LayerWeights, hidden: Tensor, seen: Tensor, step: StepContext, times: LayerTimes | None) -> Tensor:
        at, mixture, normed = f"layers.{i}.", self.mixtures[i], weights.ffn_norm(seen)
        own = mixture.weights
        bias = None if own.router_bias is None else own.router_bias.float()
        self._tap(at + "router.logits", F.linear(normed.float(), own.router.float(), bias))
        shares, experts = mixture.route(normed)
        experts, shares = by_expert(experts, shares)
        self._tap(at + "router.experts", experts)
        self._tap(at + "router.weights", shares)
        alone = type(mixture)(mixture.spec, replace(own, shared=None), mixture.slots, mixture.group, mixture.index, i)
        ffn = alone.add(torch.zeros_like(hidden), normed, StepContext(step.step), None)
        self._tap(at + "routed", ffn)
        if own.shared is not None:
            shared = F.linear(gated(F.linear(normed, own.shared.gate_up), mixture.spec.activation), own.shared.down)
            self._tap(at + "shared", shared)
            ffn = ffn + shared
        self._tap(at + "ffn", ffn)
        silent = replace(weights, ffn_norm=weights.ffn_norm._inner) if isinstance(weights.ffn_norm, _HeardNorm) else weights
        return super()._mix(i, silent, hidden, seen, step, times)

    def _logits(self, last: Tensor, step: StepContext) -> Tensor:
        assert self.weights.norm is not None
        self._tap("norm", self.weights.norm(last))
        self._tap("norm" + OF_NORM, faint_gain(self.weights.norm, last))
        logits = super()._logits(last, step)
        self._tap("logits", logits)
        return logits


def record(model: TappedModel, ids: list[int], chunks: Iterable[int] = (), float8: bool = False) -> Capture:
    """Taps of a prompt: in one step, or in steps of `chunks` tokens and a last one with the rest. UsageError for unusable ids."""
    sequence = LocalSequence(model, len(ids), float8)
    model.take()
    done = 0
    for size in [*chunks, len(ids)]:
        part = ids[done : done + size]
        if part:
            sequence.feed(part)
        done += len(part)
    facts = {
        "source": "workbench",
        "model": str(model.checkpoint.path),
        "architecture": model.arch.architecture,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        "kv": "fp8" if float8 else str(model.dtype).removeprefix("torch."),
    }
    return Capture(list(ids), model.take(), facts)
