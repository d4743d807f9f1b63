"""From a question to workbench.validate.v1."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from runtime.local import check_device
from runtime.taps.capture import Capture
from runtime.taps.reference import record_reference, transformers_model
from runtime.taps.tapped_model import TappedModel, record
from runtime.validation.coverage import covering_ids, unreached
from runtime.validation.document import TIERS, Check, Tier, ValidateDocument, tier_of
from runtime.validation.long import examine_long
from runtime.validation.multimodal import examine_multimodal
from runtime.validation.short import examine_short
from runtime.validation.single_step import examine_single_step
from runtime.validation.subject import Subject, open_subject
from runtime.validation.weights import examine_weights
from traces.errors import UsageError

TRANSFORMERS = "transformers"


@dataclass(frozen=True, slots=True)
class Wanted:
    """`reference`: "transformers" or the folder of another checkpoint; `against`: a file of taps, whose ids are then used; `record`: where
    taps are written. What is compared or recorded is `ids`, or else as many random ones as it takes to reach every expert: one that
    none reaches can be damaged and show nothing. `last`: the last tier to run; `told`: called with each tier as it ends."""

    dtype: str = "float32"
    device: str = "cpu"
    float8: bool = False
    reference: str | None = None
    against: Path | None = None
    record: Path | None = None
    ids: list[int] | None = None
    seed: int = 0
    room: int = 4096
    last: str = TIERS[-1]
    told: Callable[[Tier], None] | None = None


def validate(path: str | Path, wanted: Wanted) -> ValidateDocument:
    """Tiers in order; a failed one stops those behind it. CheckpointError and UsageError for what cannot be examined."""
    if wanted.last != TIERS[0]:
        check_device(wanted.device)  # before the long reading of the weights, as are the taps
    if wanted.record is not None and (wanted.record.is_dir() or not wanted.record.absolute().parent.is_dir()):
        raise UsageError(f"taps cannot be written to {wanted.record}", "name a file in a folder that exists")
    taps = Capture.load(wanted.against) if wanted.against is not None else None
    path, tiers, stopped = Path(path), list[Tier](), ""
    held: list[Subject] = []

    def subject() -> Subject:
        if not held:
            held.append(_opened(path, wanted, taps))
        return held[0]

    runs: dict[str, Callable[[], list[Check]]] = {
        "weights": lambda: examine_weights(path),
        "single-step": lambda: examine_single_step(subject()),
        "short": lambda: examine_short(subject()),
        "long": lambda: examine_long(subject()),
        "multimodal": lambda: examine_multimodal(subject()),
    }
    for name in TIERS[: TIERS.index(wanted.last) + 1]:
        began = time.monotonic()
        if stopped:
            tier = Tier(name, "skipped", f"not released: {stopped} failed")
        else:
            tier = tier_of(name, runs[name](), round(time.monotonic() - began, 3))
        stopped = stopped or (name if tier.status == "fail" else "")
        tiers.append(tier)
        if wanted.told is not None:
            wanted.told(tier)
    notes = _recorded(subject(), wanted.record) if wanted.record is not None and (held or stopped != "weights") else []
    if wanted.record is not None and not notes:
        notes = ["no taps were recorded: the weights are damaged"]
    settings = {"dtype": wanted.dtype, "device": wanted.device, "kv": "fp8" if wanted.float8 else wanted.dtype, "seed": str(wanted.seed)}
    settings["reference"] = str(wanted.against or wanted.reference or "none")
    return ValidateDocument(path=str(path), status="fail" if stopped else "pass", settings=settings, tiers=tiers, notes=notes)


def _opened(path: Path, wanted: Wanted, reference: Capture | None) -> Subject:
    ids = reference.ids if reference is not None else wanted.ids
    dtype = getattr(torch, wanted.dtype)
    found = open_subject(path, dtype, wanted.device, wanted.float8, ids, wanted.seed, wanted.room)
    found.reference = reference
    if wanted.reference is not None and wanted.reference != TRANSFORMERS and reference is None:
        other = open_subject(wanted.reference, dtype, wanted.device, wanted.float8, found.ids, wanted.seed, wanted.room)
        if ids is None:
            found.ids = covering_ids(other.model, found.ids, min(found.model.arch.vocab, other.model.arch.vocab))
        found.reference = record(TappedModel.over(other.model), found.ids, float8=wanted.float8)
        return found
    if ids is None and (wanted.record is not None or wanted.reference is not None):
        found.ids = covering_ids(found.model, found.ids)
    if wanted.reference == TRANSFORMERS:
        found.outside = transformers_model(path, dtype)
        found.reference = reference or record_reference(found.outside, found.ids, str(path))
    return found


def _recorded(subject: Subject, file: Path) -> list[str]:
    """What was written, and which experts of it can be held to nothing."""
    capture = subject.capture()
    capture.save(file)
    notes = [f"{len(capture.taps)} taps of {len(capture.ids)} tokens written to {file}"]
    left = unreached(subject.model, capture)
    if left:
        total = len(subject.model.moe_layers) * subject.model.arch.moe.experts
        where = ", ".join(map(str, left))
        notes.append(f"the tokens reach {total - sum(map(len, left.values()))} of {total} experts; not all of the layers {where}")
    return notes
