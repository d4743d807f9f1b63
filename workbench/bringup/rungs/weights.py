"""Rung 3: the files are whole, undamaged, and what the config describes."""

from __future__ import annotations

from runtime.verification.verify import Wanted, verify
from workbench.bringup.document import Evidence
from workbench.bringup.rung import Outcome, Rung, failed, passed
from workbench.bringup.site import Site, diagnose

SHOWN = 8


def climb(site: Site) -> Outcome:
    found = verify(site.model, Wanted(deep=site.options.every_value))
    seen = Evidence("examined", ", ".join(found.checked), "headers, values")
    size = Evidence("size", f"{found.tensors} tensors, {found.bytes} bytes")
    if found.status == "ok" and site.options.endpoint is not None:
        words = f"{', '.join(found.checked)} of the folder that was given; what the engine loaded cannot be seen from outside"
        seen = Evidence("examined", words)
    if found.status == "ok":
        return passed(f"{found.tensors} tensors agree with index and config", seen, size, *(Evidence("note", one) for one in found.notes))
    problems = [Evidence(one.kind, f"{one.file} {one.tensor}: {one.detail}".strip()) for one in found.problems[:SHOWN]]
    told = "the weights are damaged: " + ", ".join(f"{count} {kind}" for kind, count in found.counts.items())
    deep = " --deep" if site.options.every_value else ""
    more = diagnose("garbled-output", f"--model {site.model}")
    return failed(told, seen, size, *problems, next=(found.hint, f"workbench verify {site.model}{deep}", *more))


RUNG = Rung("weights", "the files of the checkpoint", ("config", "weights", "settings"), climb)
