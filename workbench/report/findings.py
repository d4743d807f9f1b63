"""Stored diagnoses: the verdicts in order, and each finding with its evidence, remedy and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from traces.store import Store
from workbench.report.scope import Scope, clock
from workbench.report.section import Table
from workbench.report.units import number

FULL = 12  # diagnoses shown in full; older ones keep their place in the row of verdicts
WORDS = {"healthy": "Healthy", "problem": "Problem", "warning": "Warning", "inconclusive": "Inconclusive", "error": "Failed"}
TONES = {"healthy": "good", "problem": "bad", "warning": "warn", "inconclusive": "mute", "error": "bad"}
SEVERITY = {"critical": "bad", "error": "bad", "warning": "warn", "info": "mute"}
OUTCOMES = {"pass": "good", "fail": "bad", "warn": "warn", "skipped": "mute", "not_applicable": "mute", "error": "bad"}
QUERY = "SELECT ts, body FROM document WHERE kind = 'workbench.diagnosis.v1' ORDER BY ts"


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """One stored diagnosis, ready to be shown. `body` is the document itself, as plain mappings."""

    ts: int
    when: str
    verdict: str
    tone: str
    body: dict[str, Any]
    full: bool

    @property
    def symptom(self) -> str:
        return str(self.body.get("symptom", ""))

    @property
    def findings(self) -> list[dict[str, Any]]:
        return list(self.body.get("findings") or [])

    @property
    def headline(self) -> str:
        """The first finding's title, or what the verdict rests on."""
        if self.findings:
            return str(self.findings[0].get("title", ""))
        checks = list(self.body.get("checks") or [])
        ran = sum(c.get("outcome") in ("pass", "fail", "warn") for c in checks)
        return f"{ran} of {len(checks)} checks ran, nothing found"


def diagnoses(store: Store, scope: Scope) -> list[Diagnosed]:
    """All stored diagnoses, oldest first. One that was stored again with what was applied is shown once, as it was last."""
    latest: dict[object, tuple[int, dict[str, Any]]] = {}
    for place, row in enumerate(store.rows(QUERY)):
        body = msgspec.json.decode(row["body"])
        started = body.get("invocation", {}).get("started")
        latest[("unknown", place) if started is None else started] = (row["ts"], body)
    found = []
    for index, (ts, body) in enumerate(latest.values()):
        verdict = str(body.get("verdict", "error"))
        when = f"{clock(ts)}, {scope.seconds(ts):.0f} s into the window"
        found.append(Diagnosed(ts, when, WORDS.get(verdict, verdict), TONES.get(verdict, "mute"), body, index >= len(latest) - FULL))
    return found


def labels(subject: dict[str, Any]) -> list[tuple[str, str]]:
    """Who is meant, as (name, value) pairs: `layers` 2, `experts` 3, 7, 9."""
    shown = []
    for name, value in dict(subject.get("labels") or {}).items():
        text = listed(value)
        shown.append((str(name).replace("_", " "), text if len(text) <= 160 else text[:159] + "…"))
    return shown


def listed(value: object) -> str:
    """3, 7, 9 of a list; 0: 3, 7; 1: 2 of a mapping."""
    if isinstance(value, dict):
        return "; ".join(f"{key}: {listed(value[key])}" for key in sorted(value))
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else number(value)


def applied_rows(one: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(what, before, after) of a remedy that was carried out."""
    before, after = dict(one.get("before") or {}), dict(one.get("after") or {})
    keys = [key for key in {**before, **after} if not isinstance(before.get(key, after.get(key)), dict | list)]
    return [(str(key).replace("_", " "), number(before.get(key)), number(after.get(key))) for key in keys]


def demo_tables(store: Store) -> list[Table]:
    """Before, during and after, when the run was a demonstration."""
    rows = store.rows("SELECT body FROM document WHERE kind = 'workbench.demo.v1' ORDER BY ts DESC LIMIT 1")
    tables = []
    for row in rows:
        body = msgspec.json.decode(row["body"])
        lines = tuple((r["text"], r["before"], r["during"], r["after"], r["verdict"]) for r in body.get("comparison", []))
        how = (
            "The same traffic, three times: as it should be, with a stale placement, and after the remedy. "
            "Intervals are 90 % bootstrap intervals; where they overlap, no claim is made."
        )
        tables.append(
            Table("Before, during, after", ("", "before", "during", "after", "during → after"), lines, ("before", "during", "after"), how)
        )
    return tables
