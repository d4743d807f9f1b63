"""Faults of the symptom garbled-output, really produced: files of a checkpoint that are edited, and a forward pass that computes wrongly.

Each drill makes a good model, records its taps, does its harm, and examines what is left with those taps as the reference, as an
engineer would who has a recording of a good engine. Nothing is served: a drill takes seconds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from playbooks.drills.drill import HEALTHY, Dose, Drill
from playbooks.drills.variables import variables
from playbooks.garbled_output import bases, faults
from playbooks.garbled_output.examine.run import Question, examine
from runtime.forward_variable import FORWARD_STYLE
from runtime.local import LocalSequence, load_local
from runtime.taps.capture import Capture
from runtime.taps.tapped_model import TappedModel, record
from runtime.validation.coverage import covering_ids
from runtime.validation.subject import probe_ids
from traces.run import Run

TWO = ("weaker", "stronger")
NAMELESS = "model"  # the folder's name says nothing of the drill


@dataclass(frozen=True, slots=True)
class GarbledDrill:
    """`styles`: how a step is computed, by strength; `shift`: the reference was recorded so many positions later."""

    id: str
    expected: str
    title: str
    base: Callable[[Path, int], None] = bases.shipped
    fault: Callable[[Path, Dose], None] = faults.untouched
    styles: tuple[str, str] = ("right", "right")
    dtype: str = "float32"
    ranks: int = 1
    shift: int = 0
    doses: tuple[str, ...] = TWO

    def start(self, dose: Dose, root: Path, say: Callable[[str], None]) -> Run:
        """The examination of one broken model, as a run."""
        with tempfile.TemporaryDirectory(prefix="wb-garbled-") as scratch:
            folder, taps = Path(scratch) / NAMELESS, Path(scratch) / "good.safetensors"
            self.base(folder, dose.seed)
            if self.fault is faults.loud_experts:  # large in the reference, too: the fault is the dtype
                self.fault(folder, dose)
            say("recording a good forward pass")
            self._reference(folder, dose.seed).save(taps)
            if self.fault is not faults.loud_experts:
                self.fault(folder, dose)
            say("examining")
            with variables({FORWARD_STYLE: self.styles[dose.strength]}):
                return examine(Question(folder, str(taps), dtype=self.dtype, ranks=self.ranks), root)

    def _reference(self, folder: Path, seed: int) -> Capture:
        model = TappedModel.over(load_local(folder, torch.float32))
        used = min(model.arch.vocab, 998)  # ids that are in use
        ids = covering_ids(model, probe_ids(used, 100 + seed), used)
        model.take()
        if not self.shift:
            return record(model, ids)
        sequence = LocalSequence(model, len(ids))
        sequence.feed(ids, start=self.shift)
        return Capture(ids, model.take(), {"source": "another engine", "dtype": "float32"})

    def drill(self) -> Drill:
        unavailable = bases.UNAVAILABLE.get(self.base, lambda: "")
        return Drill(self.id, self.expected, self.title, doses=self.doses, start=self.start, unavailable=unavailable)


_ALL = (
    GarbledDrill("garbled.well", HEALTHY, "The shipped model as it is"),
    GarbledDrill("garbled.well-deepseek", HEALTHY, "A deepseek_v3 as it is, on two ranks", bases.deepseek, ranks=2, doses=("",)),
    GarbledDrill("garbled.well-fp8", HEALTHY, "A deepseek_v3 in fp8", bases.deepseek_fp8),
    GarbledDrill("garbled.well-bfloat16", HEALTHY, "Computed in bfloat16", dtype="bfloat16", doses=("",)),
    GarbledDrill("garbled.well-shifted", HEALTHY, "The reference counted positions from another number", shift=7, doses=("",)),
    GarbledDrill("garbled.well-template", HEALTHY, "A template that is written otherwise", fault=faults.same_rendering, doses=("",)),
    GarbledDrill("garbled.well-resharded", HEALTHY, "One file, unused rows zeroed", fault=faults.resharded, doses=("",)),
    GarbledDrill("garbled.well-mixtral", HEALTHY, "Experts in another order, the router with them", bases.mixtral,
                 faults.renumbered_experts, doses=("",)),
    GarbledDrill("garbled.well-gpt-oss", HEALTHY, "A gpt_oss as it is", bases.gpt_oss, doses=("",)),
    GarbledDrill("garbled.well-gpt-oss-renumbered", HEALTHY, "Experts in another order, biases and router with them", bases.gpt_oss,
                 faults.renumbered_experts, doses=("",)),
    GarbledDrill("garbled.well-smollm2", HEALTHY, "The upcycled SmolLM2 as it is", bases.smollm2, doses=("",)),
    GarbledDrill("garbled.well-smollm2-rerouted", HEALTHY, "Equal experts, chosen by another router", bases.smollm2, faults.other_router,
                 doses=("",)),
    GarbledDrill("garbled.well-faint", HEALTHY, "Small embeddings", bases.deepseek_faint, doses=("",)),
    GarbledDrill("garbled.other-template", "garbled.template", "The template is missing, or another's", fault=faults.template),
    GarbledDrill("garbled.twice-begun", "garbled.double-bos", "The first token is written more than once", fault=faults.double_bos),
    GarbledDrill("garbled.no-end", "garbled.stop-set", "The end of a turn is no end", fault=faults.stop_set),
    GarbledDrill("garbled.hot", "garbled.sampling-defaults", "Sampling settings that make nonsense", fault=faults.sampling),
    GarbledDrill("garbled.outside", "garbled.tokenizer-ids", "Tokens without a row", fault=faults.outside_ids),
    GarbledDrill("garbled.lost", "garbled.weight-missing", "A tensor or a shard is gone", fault=faults.missing),
    GarbledDrill("garbled.zeroed", "garbled.weight-corrupt", "The end of a file of the right size is zeros", fault=faults.zero_tail),
    GarbledDrill("garbled.loud-expert", "garbled.weight-corrupt", "One expert is scaled", fault=faults.scaled_expert),
    GarbledDrill("garbled.loud-expert-mixtral", "garbled.weight-corrupt", "One expert is scaled", bases.mixtral, faults.scaled_expert),
    GarbledDrill("garbled.loud-expert-gpt-oss", "garbled.weight-corrupt", "One expert is scaled", bases.gpt_oss, faults.scaled_expert),
    GarbledDrill("garbled.loud-expert-smollm2", "garbled.weight-corrupt", "One expert of thirty layers is scaled", bases.smollm2,
                 faults.scaled_expert),
    GarbledDrill("garbled.exchanged", "garbled.expert-map", "Experts in each other's places", fault=faults.exchanged_experts),
    GarbledDrill("garbled.halves", "garbled.expert-layout", "Gate and up exchanged", fault=faults.swapped_halves),
    GarbledDrill("garbled.exchanged-mixtral", "garbled.expert-map", "Experts in each other's places", bases.mixtral,
                 faults.exchanged_experts),
    GarbledDrill("garbled.halves-mixtral", "garbled.expert-layout", "w1 and w3 exchanged", bases.mixtral, faults.swapped_halves),
    GarbledDrill("garbled.halves-gpt-oss", "garbled.expert-layout", "Gate and up apart, where they belong in turns", bases.gpt_oss,
                 faults.halves_apart),
    GarbledDrill("garbled.window", "garbled.attention", "A window that the model has not", bases.mixtral, faults.window),
    GarbledDrill("garbled.windows", "garbled.attention", "Windows in the wrong layers", bases.gpt_oss, faults.windows_exchanged,
                 doses=("",)),
    GarbledDrill("garbled.epsilon", "garbled.norm", "Another epsilon of the norms, under small embeddings", bases.deepseek_faint,
                 faults.norm_epsilon),
    GarbledDrill("garbled.epsilon-unseen", "garbled.norm", "Another epsilon of the norms, under large ones", bases.qwen,
                 faults.norm_epsilon),
    GarbledDrill("garbled.base-gpt-oss", "garbled.rope", "Another base under yarn", bases.gpt_oss, faults.rope_base),
    GarbledDrill("garbled.base", "garbled.rope", "Another base of the positions", bases.deepseek, faults.rope_base),
    GarbledDrill("garbled.pairs", "garbled.rope", "Another layout of the pairs", bases.deepseek, faults.rope_layout, doses=("",)),
    GarbledDrill("garbled.softmax", "garbled.router", "Softmax for sigmoid", bases.deepseek, styles=("router-softmax",) * 2, doses=("",)),
    GarbledDrill("garbled.biased", "garbled.router", "The bias in the weights", bases.deepseek, styles=("router-biased",) * 2, doses=("",)),
    GarbledDrill("garbled.factor", "garbled.router", "The factor is missing or squared in the config", bases.deepseek, faults.scaling),
    GarbledDrill("garbled.factor-twice", "garbled.router", "The factor twice", bases.deepseek, styles=("scaled-twice",) * 2, doses=("",)),
    GarbledDrill("garbled.sum", "garbled.router", "Weights are not renormalised", bases.deepseek, faults.renormalise, doses=("",)),
    GarbledDrill("garbled.dropped", "garbled.capacity-drop", "A capacity", bases.deepseek, styles=("capacity", "capacity-half")),
    GarbledDrill("garbled.summed", "garbled.shared-expert-reduce", "Shared expert reduced twice at two ranks", bases.deepseek,
                 styles=("shared-twice",) * 2, ranks=2, doses=("",)),
    GarbledDrill("garbled.no-bias", "garbled.weight-unread", "Biases without a flag", bases.qwen, faults.unread_bias, doses=("",)),
    GarbledDrill("garbled.tied", "garbled.tie-mismatch", "Tied, says the config", fault=faults.tied),
    GarbledDrill("garbled.unscaled", "garbled.quant-scale", "Scales that were not written", bases.deepseek_fp8, faults.scales_unwritten),
    GarbledDrill("garbled.overflow", "garbled.numeric-overflow", "Too large for it", bases.deepseek, faults.loud_experts, dtype="float16"),
    GarbledDrill("garbled.forgotten", "garbled.length-boundary", "Chunks without their past", styles=("forget-past",) * 2, doses=("",)),
)  # fmt: skip

DRILLS: tuple[Drill, ...] = tuple(one.drill() for one in _ALL)
