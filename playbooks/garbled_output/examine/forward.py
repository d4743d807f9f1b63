"""Our own forward pass over a short prompt: finite values, experts reached, chunks, several ranks, and taps against a reference."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from playbooks.garbled_output.examine.lanes import PARTIAL, record_on_lanes
from playbooks.garbled_output.examine.sent import Fact
from playbooks.garbled_output.examine.trials import trials
from playbooks.garbled_output.facts import CHUNKS, COMPARED, COVERAGE, FINITE, LOAD, NORMS, TAP, TRIAL
from runtime.local import load_local
from runtime.model import MoeModel
from runtime.taps.capture import Capture
from runtime.taps.compare import Comparison, compare
from runtime.taps.faint import OF_NORM, epsilon_of
from runtime.taps.reference import record_reference, transformers_model
from runtime.taps.tapped_model import TappedModel, record
from runtime.validation.coverage import covering_ids, examine_coverage, unreached
from runtime.validation.subject import Subject, probe_ids
from traces.errors import UsageError, WorkbenchError

CHUNK = 32  # tokens: two blocks, so that a prompt of 128 crosses three edges
TRANSFORMERS = "transformers"
LANES = " ranks"
# Parts that a comparison may do without: what lanes hold in part only, and what transformers has under no name of its own.
WITHHELD = (*PARTIAL, "ffn")
UNKNOWN = ("key_before_rope", "key", "value", "latent", "shared")


@dataclass(frozen=True, slots=True)
class Asked:
    """`reference`: a checkpoint folder, a file of taps, the word transformers, or None. `ranks`: lanes to compute on beside one."""

    folder: Path
    reference: str | None = None
    dtype: torch.dtype = torch.float32
    ranks: int = 1
    seed: int = 0


def forward_facts(asked: Asked) -> Iterator[Fact]:
    """UsageError for a reference that cannot be used; a model that cannot be loaded is a fact."""
    file = Capture.load(Path(asked.reference)) if asked.reference is not None and Path(asked.reference).is_file() else None
    try:
        model = load_local(asked.folder, asked.dtype)
    except WorkbenchError as error:
        yield LOAD, {"problem": error.message, "hint": error.hint}
        return
    except OSError as error:
        yield LOAD, {"problem": str(error), "hint": ""}
        return
    yield LOAD, {"dtype": str(asked.dtype).removeprefix("torch."), "model_type": model.arch.family}
    good = load_local(asked.reference, torch.float32) if asked.reference is not None and Path(asked.reference).is_dir() else None
    ids = file.ids if file is not None else probe_ids(model.arch.vocab, asked.seed)
    if file is None and asked.reference is not None:
        ids = covering_ids(good or model, ids)
    if any(i >= model.arch.vocab for i in ids):
        raise UsageError(f"the reference's ids do not fit a vocabulary of {model.arch.vocab}", "give a reference of the same model")
    view = TappedModel.over(model)
    own = record(view, ids)
    yield FINITE, finite_fact(own)
    yield from _coverage(model, ids, own)
    yield CHUNKS, chunk_fact(view, own)
    for name, other in _others(asked, file, good, own):
        yield from compared_facts(name, model, *other)


def _others(asked: Asked, file: Capture | None, good: MoeModel | None, own: Capture) -> Iterator[tuple[str, tuple[Capture, Capture]]]:
    """Name -> (reference, observed) of every comparison there is."""
    ids = own.ids
    if file is not None:
        yield "reference", (file, own)
    elif asked.reference == TRANSFORMERS:
        yield "reference", (record_reference(transformers_model(asked.folder), ids), own)
    elif good is not None:
        yield "reference", (record(TappedModel.over(good), ids), own)
    if asked.ranks > 1:
        yield f"{asked.ranks}{LANES}", (own, record_on_lanes(asked.folder, ids, asked.ranks, asked.dtype))


def finite_fact(own: Capture) -> dict[str, Any]:
    """`first`: the first tap with values that are not finite, and how many of its positions."""
    largest, where = 0.0, ""
    for name in own.names():
        tap = own.taps[name]
        if not tap.is_floating_point():
            continue
        rows = (~tap.isfinite().all(1)).nonzero().flatten()
        if len(rows):
            return {
                "largest": largest, "where": where, "first": name, "positions": len(rows), "from": int(rows[0]),
                "count": tap.shape[0], "inf": int(tap.isinf().sum()), "nan": int(tap.isnan().sum()), "dtype": own.facts["dtype"],
            }  # fmt: skip
        if float(tap.abs().max()) > largest:
            largest, where = float(tap.abs().max()), name
    return {"largest": largest, "where": where, "first": None, "dtype": own.facts["dtype"]}


def _coverage(model: MoeModel, ids: list[int], own: Capture) -> Iterator[Fact]:
    """Experts that no probe token reaches show nothing at all (S2.2): they are named, and computed by force."""
    missed = unreached(model, own)
    checks = (
        examine_coverage(Subject(model, ids, captured=own, room=512)) if model.moe_layers and own.taps["logits"].isfinite().all() else []
    )
    yield (
        COVERAGE,
        {
            "missed": {str(layer): experts for layer, experts in missed.items()},
            "missed_count": sum(map(len, missed.values())),
            "total": model.arch.moe.experts * len(model.moe_layers) if model.moe_layers else 0,
            "bad": [check.detail for check in checks if check.outcome == "fail"],
            "told": [check.detail for check in checks],
        },
    )


def chunk_fact(view: TappedModel, own: Capture) -> dict[str, Any]:
    """The prompt in chunks beside the prompt in one. Needs no reference: both are ours."""
    parts = record(view, own.ids, [CHUNK] * (len(own.ids) // CHUNK))
    found = compare(own, parts)
    return {"chunk": CHUNK, "tokens": len(own.ids), **_whole(found), **_tap(found)}


def _part(tap: str) -> str:
    """layers.3.router.weights -> router.weights; a tap of no layer is its own."""
    return re.sub(r"layers\.\d+\.", "", tap)


def compared_facts(name: str, model: MoeModel, reference: Capture, observed: Capture) -> Iterator[Fact]:
    """`lacks`: parts that only one side has; `lacking`: those of them that this kind of reference should have."""
    found = compare(reference, observed)
    lacks = {_part(tap) for tap in found.missing}
    free = WITHHELD if name.endswith(LANES) else UNKNOWN if reference.facts.get("source", "").startswith(TRANSFORMERS) else ()
    source = f"{reference.facts.get('source', 'taps')} ({reference.facts.get('dtype', 'dtype unknown')})"
    yield (
        COMPARED,
        {
            "with": name,
            "source": source,
            "tokens": len(reference.ids),
            "missing": found.missing[:16],
            "lacks": sorted(lacks),
            "lacking": sorted(lacks.difference(free)),
            **_whole(found),
            **_tap(found),
        },
    )
    yield NORMS, {"with": name, **norm_fact(found, reference, observed)}
    for tap in found.taps:
        yield TAP, {
            "with": name, "name": tap.name, "relative": number(tap.relative), "gain": number(tap.gain), "cosine": number(tap.cosine),
            "hit": tap.hit, "first_hit": tap.first_hit, "last_hit": tap.last_hit, "non_finite": tap.non_finite, "diverges": tap.diverges,
        }  # fmt: skip
    if found.first is not None:
        for trial in trials(model, found.first.name, reference, observed):
            yield TRIAL, {"with": name, "tap": found.first.name, **trial}


def norm_fact(found: Comparison, reference: Capture, observed: Capture) -> dict[str, Any]:
    """`count`: norms that both sides gave a faint row; `unlike`: those that leave something else of it, in the order of execution;
    `theirs` and `ours`: the epsilon of the first of them; `smallest`: root mean square of the faintest row that the prompt gave a norm."""
    unlike = [tap.name for tap in found.faint if tap.diverges]
    streams = [tap for name, tap in observed.taps.items() if name == "embed" or name.endswith(".output")]
    smallest = min((float(tap.double().square().mean(1).sqrt().min()) for tap in streams), default=None)
    fact = {"count": len(found.faint), "unlike": [name.removesuffix(OF_NORM) for name in unlike], "smallest": number(smallest)}
    if not unlike:
        return fact
    theirs, ours = (epsilon_of(float(side.taps[unlike[0]][0, 0])) for side in (reference, observed))
    return fact | {"theirs": number(theirs), "ours": number(ours)}


def _whole(found: Comparison) -> dict[str, Any]:
    return {
        "kl": number(found.kl), "kl_infinite": found.kl is not None and math.isinf(found.kl), "late": number(found.kl_late_over_early),
        "top1": found.top1, "visible": found.visible, "limit": found.limit, "flipped": len(found.flipped), "changed": found.changed[:32],
    }  # fmt: skip


def _tap(found: Comparison) -> dict[str, Any]:
    first = found.first
    if first is None:
        return {"first": None}
    return {
        "first": first.name, "relative": number(first.relative), "gain": number(first.gain), "cosine": number(first.cosine),
        "hit": first.hit, "first_hit": first.first_hit, "last_hit": first.last_hit, "non_finite": first.non_finite,
    }  # fmt: skip


def number(value: float | None) -> float | None:
    """JSON has no infinity: None for what is not finite."""
    return value if value is not None and math.isfinite(value) else None
