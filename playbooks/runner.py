"""Runs the playbook of a symptom over a run and writes one document.

Cheapest checks first, environment drift before all others; then consequences are told apart from roots, and what was ruled out is
written into the first finding. A check whose needs are not met is skipped with the command that would meet them: not measured is
never healthy.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from playbooks.case import Case
from playbooks.check import Check, Need, Result
from playbooks.document import (
    Alternative,
    CheckRecord,
    Diagnosis,
    Finding,
    Invocation,
    RunFacts,
    Source,
    Tool,
    ordered,
    verdict_of,
)
from playbooks.exit_codes import exit_code
from playbooks.symptoms import BadPlaybook, symptom
from playbooks.window import Period, choose
from traces.errors import WorkbenchError
from traces.run import Run
from traces.store import Store, open_run

# A check is a plug-in: whatever it raises becomes outcome "error", and the other checks still run.
CHECK_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError, WorkbenchError)


@dataclass(frozen=True, slots=True)
class CheckEvent:
    """A check starts, or has finished with a record and findings: what a screen shows while a diagnosis runs."""

    state: Literal["started", "finished"]
    check: str
    title: str
    index: int
    total: int
    record: CheckRecord | None = None
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """A stretch of time asked for: ns since the epoch, or the last seconds of traffic."""

    since: int | None = None
    until: int | None = None
    last: float | None = None


OnStep = Callable[[CheckEvent], None]


def diagnose(
    run: Run,
    name: str,
    baseline: Run | None = None,
    window: Asked | None = None,
    on_step: OnStep | None = None,
    argv: Iterable[str] | None = None,
) -> Diagnosis:
    """The diagnosis of `run` for a symptom. Raises UnknownSymptom, and what opening the run raises; never what a check raises."""
    started = time.time_ns()
    playbook, failures = symptom(name)
    asked = window or Asked()
    with open_run(run) as store:
        case = Case(run, store, choose(store, asked.since, asked.until, asked.last), baseline)
        records, found = _run_checks(case, playbook.checks, on_step)
        records += [_unloaded(failure) for failure in failures]
        findings = _explain(_related(case, playbook.checks, found), records)
        verdict = verdict_of(records, findings)
        document = Diagnosis(
            tool=Tool.here(),
            invocation=Invocation(
                argv=tuple(sys.argv if argv is None else argv), started=started, ended=time.time_ns(), exit_code=exit_code(verdict)
            ),
            run=RunFacts(id=run.id, engine=run.info.engine, model=run.info.model, world_size=run.info.world_size),
            symptom=name,
            verdict=verdict,
            sources=(_source(case, store), *_baseline_source(baseline)),
            checks=tuple(records),
            findings=findings,
        )
    return document


def _run_checks(case: Case, checks: tuple[Check, ...], on_step: OnStep | None) -> tuple[list[CheckRecord], list[Finding]]:
    records: list[CheckRecord] = []
    findings: list[Finding] = []
    tell = on_step or (lambda event: None)
    for index, check in enumerate(checks):
        tell(CheckEvent("started", check.id, check.title, index, len(checks)))
        began = time.perf_counter()
        result = _result(case, check)
        record = CheckRecord(
            id=check.id,
            mandatory=check.mandatory,
            outcome=result.outcome,
            missing=result.missing,
            observed=result.observed,
            threshold=result.threshold,
            unit=result.unit,
            seconds=round(time.perf_counter() - began, 4),
            summary=result.summary,
        )
        records.append(record)
        findings += result.findings
        tell(CheckEvent("finished", check.id, check.title, index, len(checks), record, result.findings))
    return records, findings


def _result(case: Case, check: Check) -> Result:
    try:
        missing = tuple(word for need in check.needs if (word := _missing(case, need)))
        if missing:
            return Result("skipped", "; ".join(missing), missing=missing)
        return check.test(case)
    except CHECK_ERRORS as error:
        return Result("error", f"{type(error).__name__}: {error}")


def _missing(case: Case, need: Need) -> str:
    """Empty when met, else what is missing and the command that would provide it."""
    query = need.sql(case.period.t0, case.period.t1)
    if query not in case.memo:
        case.memo[query] = int(case.store.rows(query)[0]["n"] or 0)
    have = case.memo[query]
    if have >= need.minimum:
        return ""
    endpoint = case.run.info.endpoint or {}
    provide = need.provide.replace("{url}", str(endpoint.get("url", "URL"))).replace("{run}", case.run.id)
    return f"{need.what}: {have} of {need.minimum} in the window; {provide}"


def _unloaded(failure: BadPlaybook) -> CheckRecord:
    return CheckRecord(id="playbook", mandatory=False, outcome="error", summary=str(failure))


def _related(case: Case, checks: tuple[Check, ...], findings: list[Finding]) -> tuple[Finding, ...]:
    """Consequences are marked as such, then all are put in order."""
    relate = {check.id: check.relate for check in checks if check.relate is not None}
    roots = tuple(one for one in findings if one.role == "root" and one.id not in relate and one.severity != "info")
    return ordered(relate[one.id](case, one, roots) if roots and one.id in relate else one for one in findings)


def _explain(findings: tuple[Finding, ...], records: list[CheckRecord]) -> tuple[Finding, ...]:
    """Writes into the first finding what else could have caused the symptom, and what rules it out."""
    if not findings or findings[0].severity == "info":
        return findings
    first = findings[0]
    others = [record for record in records if record.id not in (first.id, "playbook")]
    beliefs = {one.id: one.confidence.score * (one.impact.share if one.impact else 0.0) for one in findings if one.role == "root"}
    alternatives = tuple(_alternative(record, beliefs.get(record.id, 0.0)) for record in others)
    return (msgspec.structs.replace(first, alternatives=alternatives), *findings[1:])


def _alternative(record: CheckRecord, belief: float) -> Alternative:
    if record.outcome in ("pass", "not_applicable"):
        return Alternative(id=record.id, score=0.0, ruled_out_by=(record.summary,))
    return Alternative(id=record.id, score=round(belief, 3))


def _source(case: Case, store: Store) -> Source:
    period: Period = case.period
    window = f"ts BETWEEN {period.t0} AND {period.t1}"
    steps = store.rows(f"SELECT count(DISTINCT step) AS n, list_sort(list(DISTINCT rank)) AS ranks FROM step WHERE {window}")[0]
    detailed = store.rows(f"SELECT count(DISTINCT step) AS n FROM layer WHERE {window}")[0]["n"]
    requests = store.rows(f"SELECT count(*) AS n FROM request WHERE {window}")[0]["n"]
    dropped = store.rows(f'SELECT coalesce(sum("rows"), 0) AS n FROM "drop" WHERE {window}')[0]["n"]
    left_out = case.layers.steps_left_out if detailed else 0
    return Source(
        kind="live" if store.live else "store",
        uri=case.source,
        ranks=tuple(int(rank) for rank in steps["ranks"] or ()),
        steps=int(steps["n"]),
        detailed=int(detailed),
        requests=int(requests),
        window=period.window,
        clock_error_us=_clock_error_us(case, detailed > 0),
        dropped=int(dropped),
        note=period.reason + (f"; {left_out} older detailed steps were left out" if left_out else ""),
    )


def _clock_error_us(case: Case, detailed: bool) -> float | None:
    """0 on one clock; else as measured by the collector, or from the exits of tiny collectives; None where neither is known."""
    if case.one_clock:
        return 0.0
    known = case.store.rows("SELECT max(error) / 1e3 AS us FROM clock_offset")[0]["us"]
    if known is None and detailed and case.layers.steps:
        return round(max(float(case.offsets.error.max()), case.offsets.violation) / 1e3, 3)
    return None if known is None else float(known)


def _baseline_source(baseline: Run | None) -> tuple[Source, ...]:
    return () if baseline is None else (Source(kind="baseline", uri=f"run:{baseline.id}"),)
