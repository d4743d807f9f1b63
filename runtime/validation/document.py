"""workbench.validate.v1: the answer of `workbench validate`."""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA = "workbench.validate.v1"
TIERS = ("weights", "single-step", "short", "long", "multimodal")
Outcome = Literal["pass", "fail", "skipped", "note"]
"""note: said, and not judged."""


class Check(msgspec.Struct, frozen=True):
    """One examination of a tier. `observed` and `limit` are null where nothing was measured against a number."""

    name: str
    outcome: Outcome
    detail: str
    observed: float | None = None
    limit: float | None = None


class Tier(msgspec.Struct, frozen=True):
    """fail: a check failed; skipped: nothing was judged, and `detail` says why."""

    name: str
    status: Literal["pass", "fail", "skipped"]
    detail: str
    checks: list[Check] = []
    seconds: float = 0.0


class Changed(msgspec.Struct, frozen=True):
    """A prompt whose answer differs between two sides; texts where the model has a tokenizer, else token ids."""

    prompt: str
    before: str
    after: str
    at: int  # tokens that are still alike


class Sides(msgspec.Struct, frozen=True, kw_only=True):
    """What `--compare A B` found; A is the reference. KL(A | B) in nats a token."""

    a: str
    b: str
    tokens: int
    kl: float | None
    kl_worst: float | None  # of a prompt
    top1: float
    answers: int
    changed: list[Changed]
    first_tap: str | None  # the first that diverges
    first_relative: float | None
    first_gain: float | None
    visible: bool  # KL above 0.05, or top-1 agreement below 0.95


class ValidateDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`settings`: what the tiers were run with. `compared` is null unless two sides were compared; there are no tiers then."""

    schema: str = SCHEMA
    path: str
    status: Literal["pass", "fail"]
    settings: dict[str, str]
    tiers: list[Tier]
    compared: Sides | None = None
    notes: list[str] = []


def tier_of(name: str, checks: list[Check], seconds: float) -> Tier:
    """Its status and its sentence from its checks."""
    failed = [check for check in checks if check.outcome == "fail"]
    judged = [check for check in checks if check.outcome == "pass"]
    if failed:
        return Tier(name, "fail", "; ".join(f"{check.name}: {check.detail}" for check in failed[:3]), checks, seconds)
    if not judged:
        return Tier(name, "skipped", "; ".join(check.detail for check in checks) or "nothing to examine", checks, seconds)
    return Tier(name, "pass", ", ".join(check.name for check in judged), checks, seconds)
