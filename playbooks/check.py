"""What a check is: it tests one root cause, declares what it needs, and returns an outcome with findings.

A cause is one file that ends in `CHECK = Check(...)`. Its docstring is its page: what it is, how it is told apart, where the thresholds
come from. A site adds causes of its own through the entry-point group `workbench.playbooks` (see symptoms.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from playbooks.document import Finding, Observed, Outcome

if TYPE_CHECKING:
    from playbooks.case import Case


@dataclass(frozen=True, slots=True)
class Need:
    """Rows without which a check cannot decide. `count` over `table` within the window must reach `minimum`.

    `time` is the column that places a row in the window, "" for tables that are read whole. `provide` is the flag or command that would
    provide the rows: "{url}" and "{run}" are filled in.
    """

    what: str
    table: str
    minimum: int
    provide: str
    count: str = "count(*)"
    where: str = ""
    time: str = "ts"

    def sql(self, t0: int, t1: int) -> str:
        terms = [f"{self.time} BETWEEN {t0} AND {t1}"] if self.time else []
        terms += [f"({self.where})"] if self.where else []
        return f"SELECT {self.count} AS n FROM {self.table}" + (f" WHERE {' AND '.join(terms)}" if terms else "")


@dataclass(frozen=True, slots=True)
class Result:
    """What a check says. `summary` is one sentence with the numbers: it is also what rules the cause out when the check passes."""

    outcome: Outcome
    summary: str
    observed: Observed = None
    threshold: Observed = None
    unit: str = ""
    findings: tuple[Finding, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """One root cause. `cost` orders the checks (cheapest first); `test` may raise, which the runner reports as outcome error.

    `relate` is called when all checks have run, with the finding of this one and the root findings of the others: it says whether this
    one is a consequence of them (role cascade, caused_by), and returns the finding as it should stand.
    """

    id: str
    title: str
    mandatory: bool
    cost: int
    test: Callable[[Case], Result]
    needs: tuple[Need, ...] = ()
    page: str = ""
    relate: Callable[[Case, Finding, tuple[Finding, ...]], Finding] | None = None


def passed(summary: str, observed: Observed = None, threshold: Observed = None, unit: str = "") -> Result:
    return Result("pass", summary, observed, threshold, unit)


def not_applicable(summary: str) -> Result:
    return Result("not_applicable", summary)


def skipped(what: str, summary: str = "") -> Result:
    """`what` names the missing thing and the flag or command that would provide it."""
    return Result("skipped", summary or what, missing=(what,))
