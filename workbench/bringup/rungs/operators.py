"""Rung 2: everything the model's config asks for exists here, has a kernel on the device, and computes the right numbers."""

from __future__ import annotations

from workbench.bringup.document import Evidence
from workbench.bringup.rung import Outcome, Rung, failed, passed
from workbench.bringup.site import Site

SHOWN = 8


def climb(site: Site) -> Outcome:
    """A feature without an implementation is refused by name: CheckpointError."""
    from runtime.operators.inventory import Asked, operators

    dtype = site.options.config.dtype
    found = operators(site.model, Asked(site.device, None if dtype == "auto" else dtype, run=True))
    wrong = [(op.name, one) for op in found.operators for one in op.measured if one.outcome == "fail"]
    unknown = [op.name for op in found.operators if op.status == "unknown"]
    evidence = [
        Evidence("architecture", f"{found.architecture}, {found.dtype} on {found.device}, torch {found.torch}"),
        Evidence("layers", ", ".join(f"{len(kind.layers)} x {kind.kind}" for kind in found.kinds)),
        *(Evidence("note", note) for note in found.notes),
    ]
    next_ = (f"workbench operators {site.model} --device {site.device} --run",)
    if found.gaps or unknown:
        names = found.gaps or unknown
        why = "has no kernel for" if found.gaps else "is unknown to this torch; not judged:"
        advice = [Evidence(op.name, op.how, op.advice) for op in found.operators if op.name in names]
        return failed(f"{site.device} {why} {', '.join(names[:SHOWN])}", *evidence, *advice[:SHOWN], next=next_)
    if wrong:
        shown = [Evidence(name, f"error {one.error} at {one.shapes} {one.detail}", f"at most {one.limit}") for name, one in wrong[:SHOWN]]
        names = list(dict.fromkeys(name for name, _ in wrong))
        return failed(f"{', '.join(names[:SHOWN])}: wrong numbers on {site.device}", *evidence, *shown, next=next_)
    ran = sum(any(one.outcome == "pass" for one in op.measured) for op in found.operators)
    if not ran:
        skipped = [Evidence(op.name, one.detail) for op in found.operators for one in op.measured]
        return failed(f"no operator could be executed on {site.device}; not judged", *evidence, *skipped[:SHOWN], next=next_)
    return passed(f"{len(found.operators)} operators have a kernel on {site.device}, {ran} were executed against float64", *evidence)


RUNG = Rung("operators", "the operators that the config asks for", ("environment", "config", "settings"), climb, inside=True)
