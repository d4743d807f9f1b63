"""Climbs the rungs in order, keeps what still holds from an earlier call, and stops at the first that fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from traces.errors import WorkbenchError
from workbench.bringup.document import BringupDocument, Step
from workbench.bringup.record import Record
from workbench.bringup.rung import Outcome, Rung, failed, skipped
from workbench.bringup.rungs import batch, environment, hosts, image, long, one_host, operators, plan, serial, single_step, weights
from workbench.bringup.site import Site

LADDER: tuple[Rung, ...] = (
    environment.RUNG,
    operators.RUNG,
    weights.RUNG,
    plan.RUNG,
    single_step.RUNG,
    one_host.RUNG,
    hosts.TWO,
    hosts.ALL,
    serial.RUNG,
    batch.RUNG,
    long.RUNG,
    image.RUNG,
)
OUTSIDE = "the engine was started elsewhere: this can only be seen inside ours"


def climb(site: Site, record: Record, rungs: Sequence[Rung] = LADDER, told: Callable[[Step], None] | None = None) -> BringupDocument:
    """The document, which is in the record after every rung, so that an interrupted call is resumed too."""
    basis, unreached = site.aspects(), [Step(name=rung.name, adds=rung.adds, status="not reached") for rung in rungs]
    holding = _holding(site, record, rungs, basis)
    kept = _kept(site, rungs, holding)
    steps = [holding.get(step.name, step) for step in unreached]  # an interrupted call forgets none of them
    for place, rung in enumerate(rungs):
        steps[place] = kept.get(rung.name) or _climbed(site, rung, basis)
        if steps[place].status == "fail":
            steps[place + 1 :] = unreached[place + 1 :]
        document = _document(site, record, steps)
        record.write(document)
        if told is not None:
            told(steps[place])
        if steps[place].status == "fail":
            break
    return document


def _holding(site: Site, record: Record, rungs: Sequence[Rung], basis: dict[str, str]) -> dict[str, Step]:
    """Rungs that passed and still hold, up to the first that does not."""
    holding: dict[str, Step] = {}
    before = {step.name: step for step in record.read()}
    for rung in rungs:
        step = before.get(rung.name)
        if step is None or step.status not in ("pass", "skipped") or step.basis != {name: basis[name] for name in rung.depends}:
            break
        if step.status == "skipped":  # cheap, and what was missing may be there now
            continue
        if rung.asks and site.options.endpoint is not None:  # what runs behind a URL may have changed: it is asked again
            break
        holding[rung.name] = msgspec.structs.replace(step, kept=True)
    return holding


def _kept(site: Site, rungs: Sequence[Rung], holding: dict[str, Step]) -> dict[str, Step]:
    """Those that are not climbed again. One that leaves a server is, for those that ask it."""
    if site.options.endpoint is not None or all(rung.name in holding for rung in rungs if rung.asks):
        return holding
    return {rung.name: holding[rung.name] for rung in rungs if rung.name in holding and not rung.serves}


def _climbed(site: Site, rung: Rung, basis: dict[str, str]) -> Step:
    began = time.monotonic()
    outcome = _outcome(site, rung)
    return Step(
        name=rung.name,
        adds=rung.adds,
        status=outcome.status,
        summary=outcome.summary,
        evidence=list(outcome.evidence),
        seconds=round(time.monotonic() - began, 3),
        ended=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        basis={name: basis[name] for name in rung.depends},
        next=list(outcome.next),
    )


def _outcome(site: Site, rung: Rung) -> Outcome:
    if rung.inside and site.options.endpoint is not None:
        return skipped(OUTSIDE)
    try:
        return rung.climb(site)
    except WorkbenchError as error:
        return failed(error.message, next=(error.hint,) if error.hint else ())


def _document(site: Site, record: Record, steps: Sequence[Step]) -> BringupDocument:
    stopped = next((step for step in steps if step.status == "fail"), None)
    return BringupDocument(
        model=str(site.model),
        endpoint=site.options.endpoint,
        record=str(record.folder),
        status="fail" if stopped is not None else "unfinished" if any(step.status == "not reached" for step in steps) else "pass",
        stopped_at=stopped.name if stopped is not None else None,
        variable=stopped.adds if stopped is not None else None,
        steps=list(steps),
    )
