"""tail.spec-reject: speculative decoding drafts tokens that are mostly rejected, and costs more than it saves.

What is seen: the time per output token is worse than without drafts, or its mean is fine and single gaps are long, because tokens come
in bursts (reference, S4 case 28: 45 to 60 ms at 40 % acceptance; median gap 22 to 160 ms with eight drafts while the mean improved).
Only engines that draft show it; ours does not.

How it is told apart: accepted and drafted tokens are counted by the engine. A is how many tokens one step yields, rho how much longer
a step takes with drafts; drafting loses when A < rho. rho needs a run without drafts (`--baseline`); without one a low acceptance is a
hypothesis, not a fault.
"""

from __future__ import annotations

from dataclasses import dataclass

from playbooks.case import Case
from playbooks.check import Check, Need, Result, passed
from playbooks.document import Finding, Impact, Remedy
from playbooks.finding import finding, subject
from traces.store import Store, open_run

ID = "tail.spec-reject"

# Reference section 2: losing if A < rho. Acceptance at which the case of the reference had begun to lose; used without a baseline.
LOW = 0.40
LEAST_DRAFTS = 100

# The counters of vLLM, by the end of their name whatever prefix and suffix a scraper gives them (reference/engine_telemetry.md).
DRAFTS, DRAFTED, ACCEPTED = "spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens"
ITL = ("inter_token_latency_seconds", "time_per_output_token_seconds")

NEEDS = (
    Need(
        "counters of speculative decoding",
        "metric",
        2,
        "run `workbench collect`, and let an engine that drafts tokens send its metrics there over OTLP",
        where=f"name LIKE '%{DRAFTED}' OR name LIKE '%{DRAFTED}_total'",
    ),
)


@dataclass(frozen=True, slots=True)
class Drafting:
    """Increases in the window: draft rounds, drafted and accepted tokens."""

    rounds: float
    drafted: float
    accepted: float

    @property
    def acceptance(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_step(self) -> float:
        """A: the accepted tokens and the one that the model itself adds."""
        return 1.0 + (self.accepted / self.rounds if self.rounds else 0.0)


def counter_sql(name: str, t0: int, t1: int) -> str:
    """Increase of a counter over all its label sets."""
    inner = (
        f"SELECT resource_id, labels, max(value) - min(value) AS n FROM metric WHERE (name LIKE '%{name}' OR name LIKE '%{name}_total') "
        f"AND ts BETWEEN {t0} AND {t1} GROUP BY resource_id, labels"
    )
    return f"SELECT coalesce(sum(n), 0) AS n FROM ({inner})"


def mean_sql(names: tuple[str, ...], since: str) -> str:
    """Mean of a histogram's increase, seconds."""
    match = " OR ".join(f"name LIKE '%{name}'" for name in names)
    inner = (
        f"SELECT max(value) - min(value) AS total, max(count) - min(count) AS n FROM metric WHERE ({match}) AND count IS NOT NULL {since} "
        "GROUP BY resource_id, name, labels"
    )
    return f"SELECT sum(total) / nullif(sum(n), 0) AS mean FROM ({inner})"


def test(case: Case) -> Result:
    t0, t1 = case.period.t0, case.period.t1
    found = Drafting(*(float(case.store.rows(counter_sql(name, t0, t1))[0]["n"]) for name in (DRAFTS, DRAFTED, ACCEPTED)))
    if found.rounds < LEAST_DRAFTS:
        return passed(f"only {found.rounds:.0f} draft rounds in the window", found.rounds, LEAST_DRAFTS, "draft rounds")
    rho = slower(case, found)
    said = f"{found.acceptance:.0%} of the drafted tokens are accepted, {found.tokens_per_step:.2f} tokens a step"
    if rho is None:
        said += "; what a step costs without drafts is not known (--baseline RUN)"
        if found.acceptance >= LOW:
            return passed(said, round(found.acceptance, 4), LOW, "share of drafted tokens")
        return Result("warn", said, round(found.acceptance, 4), LOW, "share of drafted tokens", (_finding(case, found, said, None),))
    said += f"; a step takes {rho:.2f} times as long as without drafts"
    if found.tokens_per_step >= rho:
        return passed(said, round(found.tokens_per_step, 4), round(rho, 4), "tokens a step")
    return Result("fail", said, round(found.tokens_per_step, 4), round(rho, 4), "tokens a step", (_finding(case, found, said, rho),))


def slower(case: Case, found: Drafting) -> float | None:
    """rho: time of a step here over the baseline's, from the mean time of a token. None without a baseline that does not draft."""
    if case.baseline is None:
        return None
    here = _mean(case.store, f"AND ts BETWEEN {case.period.t0} AND {case.period.t1}")
    with open_run(case.baseline) as store:
        drafted = store.rows(f"SELECT count(*) AS n FROM metric WHERE name LIKE '%{DRAFTED}%' AND value > 0")[0]["n"]
        before = None if drafted else _mean(store, "")
    return None if not here or not before else here * found.tokens_per_step / before


def _mean(store: Store, since: str) -> float | None:
    value = store.rows(mean_sql(ITL, since))[0]["mean"]
    return None if value is None else float(value)


def _finding(case: Case, found: Drafting, said: str, rho: float | None) -> Finding:
    lost = 0.0 if rho is None else 1.0 - found.tokens_per_step / rho
    t0, t1 = case.period.t0, case.period.t1
    return finding(
        case,
        ID,
        "warning" if rho is None else "error",
        subject("setting", "speculative-decoding"),
        f"Drafted tokens are rejected: {found.acceptance:.0%} accepted",
        f"{said[0].upper()}{said[1:]}.",
        0.4 if rho is None else 0.9,
        "hypothesis" if rho is None else "established",
        impact=Impact(metric="time between tokens", value=round(100 * lost, 2), unit="% longer than without drafts", share=round(lost, 4)),
        evidence=(
            case.sql(counter_sql(ACCEPTED, t0, t1), None, "tokens", "accepted"),
            case.sql(counter_sql(DRAFTED, t0, t1), None, "tokens", "drafted"),
            case.sql(counter_sql(DRAFTS, t0, t1), LEAST_DRAFTS, "draft rounds"),
        ),
        remedy=(
            Remedy(
                text="Draft fewer tokens, adapt their number to the acceptance, or turn drafting off under load; compare mean and gaps.",
                risk="low",
                verify="workbench diagnose tail-latency --baseline RUN",
            ),
        ),
    )


CHECK = Check(ID, "Drafted tokens are rejected", mandatory=False, cost=18, test=test, needs=NEEDS, page=__doc__ or "")
