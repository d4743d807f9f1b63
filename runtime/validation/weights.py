"""Tier 1: the files. What `workbench verify --deep` examines."""

from __future__ import annotations

from pathlib import Path

from runtime.validation.document import Check
from runtime.verification.verify import Wanted, verify


def examine_weights(path: Path) -> list[Check]:
    """Coverage, shapes, finite values, spread against siblings. CheckpointError for what is no checkpoint."""
    found = verify(path, Wanted(deep=True))
    told = f"{found.tensors:,} tensors, {found.bytes:,} bytes: {', '.join(found.checked)}"
    if found.status == "ok":
        return [Check("files", "pass", told), *(Check("not loaded", "note", note) for note in found.notes)]
    kinds = ", ".join(f"{count} {kind}" for kind, count in found.counts.items())
    worst = found.problems[0]
    place = " ".join(word for word in (worst.file, worst.tensor) if word)
    return [Check("files", "fail", f"{kinds}; first: {place}: {worst.detail}", float(sum(found.counts.values())), 0.0)]
