"""tail.straggler-rank: one rank takes longer for the same work, and every collective waits for it.

What is seen: all ranks wait, except one. Typical origins: a slow core or hot device, a CPU quota or a noisy neighbour, a wrong
affinity or NUMA placement, another process on the same core.

How it is told apart: work is divided out first. The attention is slow per token *and* the experts per row, by a similar factor, on
the same rank, and that rank waits least. A rank with many rows has a normal cost per row (tail.expert-imbalance); a slow link leaves
the rates normal; a garbage collection (tail.gc-pause) is an event, and its steps are left out here. A rank that is slow in CPU time
too runs slow code or a slow core; one that is slow in wall time only is being interrupted, and the host's counters say by what. On a
contended host wall times of all ranks scatter, so more is asked of them, and a rank that stands out only now and then is
undetermined, unless the others wait for it: then it waits less than half as long as they do. On a quiet host, too, a rank that is far
from the others without being steadily slow is not called well.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from playbooks.attribution.frontier import waits
from playbooks.attribution.rates import block_slowness, mean_slowness
from playbooks.case import Case
from playbooks.check import Check, Need, Result, not_applicable, passed, skipped
from playbooks.document import Evidence, Finding, Impact, Remedy, Severity
from playbooks.finding import finding, subject
from playbooks.measured import Floats

ID = "tail.straggler-rank"

# Reference section 2: c_r/median > 1.15 and MAD z > 4 over >= 30 steps.
RATIO = 1.15
Z = 4.0
LEAST_STEPS = 30
# On a contended host: compute wall per rank spread by up to 1.9x between ranks of a healthy run of 40 steps (fault_lab.md section 3),
# but never on the same rank in attention and experts throughout; our choice, together with PERSISTENT.
RATIO_CONTENDED = 1.4
# Compute that takes this many times its CPU time waits for a CPU as long as it runs: a rank that is stopped for half of its time looks
# like its neighbours then. Our choice.
STARVED = 2.0
# Attention and experts must be slow by factors this close; our choice (measured 2.35 and 2.45 for an injected 2.5, reference section 2).
SIMILAR = 2.0
# Share of consecutive blocks of the window in which the rank is the slowest in both; by chance 1/ranks.
BLOCKS = 6
PERSISTENT = 0.80
# Part of the step gained by a rank of normal speed: the same line as for the imbalance; below the lower one it is not worth a word.
IMPACT_FAIL = 0.05
IMPACT_WARN = 0.02
# Second way: the others wait for it. On a host where ranks share CPUs each of them is slow now and then, which hides a rank that is
# stopped half of the time from z and blocks; but what the others wait for is not chance. Ranks stopped 20 or 30 of 40 ms waited 0.09 to
# 0.38 of what the median other did (11 runs, z 2.4 or more, first in 4 of 6 blocks or more), the slowest of healthy ranks 0.87 to
# 1.04 (9 runs, 6 of them beside one or two processes that compute); our choice.
WAITS = 0.5
Z_WAITED_FOR = 2.0
PERSISTENT_WAITED_FOR = 0.5
# A floor for the scatter between ranks: with three other ranks the MAD alone is often near zero.
LEAST_SCATTER = 0.02

STEADY = "send traffic for longer and measure again"
HINT = "this host has far too little CPU for its processes, so end other work on it and measure again"
_TRAFFIC = "send traffic with `workbench traffic {url}`, or ask for a window of full detail: POST /control/window"
NEEDS = (Need("detailed steps", "layer", LEAST_STEPS, _TRAFFIC, count="count(DISTINCT step)", where="tokens_routed > 0"),)


@dataclass(frozen=True, slots=True)
class Slow:
    """The slowest rank by one clock: its factor over the median of the others, z, and share of blocks in which it is the slowest."""

    column: int
    attention: float
    experts: float
    z: float
    persistent: float

    @property
    def factor(self) -> float:
        return float(np.sqrt(self.attention * self.experts))

    @property
    def least(self) -> float:
        return min(self.attention, self.experts)

    def similar(self) -> bool:
        return max(self.attention, self.experts) <= SIMILAR * self.least


def test(case: Case) -> Result:
    layers = case.layers
    if len(layers.ranks) < 2:
        return not_applicable("one rank waits for nobody")
    quiet = undisturbed(case)
    if len(np.unique(layers.key[quiet])) < LEAST_STEPS:
        return skipped(f"only {len(np.unique(layers.key[quiet]))} detailed steps without a pause, {LEAST_STEPS} are needed: {_TRAFFIC}")
    wall = slowest(case, "wall", quiet)
    cpu = slowest(case, "cpu", quiet) if case.inflation is not None else None
    needed = RATIO_CONTENDED if case.contended else RATIO
    suspect = next((one for one, ratio in ((cpu, RATIO), (wall, needed)) if one is not None and _is_slow(one, ratio)), None)
    if suspect is None and _is_waited_for(case, wall):
        suspect = wall
    if suspect is None:
        rank = layers.ranks[wall.column]
        said = (
            f"no rank is slow per unit of work: rank {rank} at most, {wall.attention:.2f}x in attention and {wall.experts:.2f}x in experts"
        )
        chance = RATIO if (case.inflation or 0.0) >= STARVED else RATIO_CONTENDED
        if wall.least > chance:
            return skipped(f"{said}, and not steadily: {HINT if case.contended else STEADY}")
        return passed(said, round(wall.least, 4), needed, "x the typical rank")
    return _judge(case, suspect, wall, cpu, quiet)


def _is_slow(one: Slow, ratio: float) -> bool:
    return one.least > ratio and one.z > Z and one.similar() and one.persistent >= PERSISTENT


def _is_waited_for(case: Case, one: Slow) -> bool:
    waited = mean_waits(case)
    clear = waited[one.column] < WAITS * float(np.median(np.delete(waited, one.column)))
    return clear and one.least > RATIO and one.z > Z_WAITED_FOR and one.similar() and one.persistent >= PERSISTENT_WAITED_FOR


def _judge(case: Case, suspect: Slow, wall: Slow, cpu: Slow | None, quiet: np.ndarray) -> Result:
    rank = case.layers.ranks[suspect.column]
    waited = mean_waits(case)
    said = (
        f"rank {rank} takes {suspect.attention:.2f}x in attention and {suspect.experts:.2f}x in experts per unit of "
        f"work (z {suspect.z:.0f})"
    )
    if waited[suspect.column] > np.min(waited) + 0.1 * np.median(waited):
        least = case.layers.ranks[int(np.argmin(waited))]
        return passed(f"{said}, but rank {least} waits least: the others do not wait for rank {rank}", round(suspect.least, 4), RATIO, "x")
    alone, last = gains(case, suspect, quiet)
    share = alone / float(case.step_wall.mean())
    said += f", waits least, and costs {share:.1%} of the step"
    if share < IMPACT_WARN:
        return passed(said, round(share, 4), IMPACT_FAIL, "share of step time")
    severity: Severity = "error" if share >= IMPACT_FAIL else "warning"
    cpu_slow = cpu is not None and cpu.column == suspect.column and _is_slow(cpu, RATIO)
    found = _finding(case, severity, suspect, cpu_slow, waited, (share, alone, last))
    return Result("fail" if severity == "error" else "warn", said, round(share, 4), IMPACT_FAIL, "share of step time", (found,))


def undisturbed(case: Case) -> np.ndarray:
    """[n] rows of steps in which no rank collected garbage for more than a millisecond."""
    layers, t0 = case.layers, case.period.t0
    pauses = case.store.rows(
        f"SELECT ts - {t0} AS ts, dur FROM event WHERE kind = 'gc' AND dur > 1000000 AND ts BETWEEN {t0} AND {case.period.t1}"
    )
    begin = np.nanmin(case.steps["ts"], axis=1)
    end = np.nanmax(case.steps["ts"] + case.steps["dur"], axis=1)
    hit = np.zeros(len(begin), dtype=bool)
    for pause in pauses:
        hit |= (begin < pause["ts"] + pause["dur"]) & (end > pause["ts"])
    return ~np.isin(layers.step, case.steps.step[hit])


def slowest(case: Case, clock: str, quiet: np.ndarray) -> Slow:
    """By mean cost over modelled work, so that interruptions count (a CPU quota stops a rank for tens of ms and leaves its median
    normal).
    """
    layers, suffix = case.layers, "_cpu" if clock == "cpu" else ""
    attention, experts = layers[f"attention{suffix}"][quiet], layers[f"experts{suffix}"][quiet]
    attention_work = case.attention_cost(clock).work((case.feature("tokens_in"), case.feature("context")))[quiet]
    experts_work = case.expert_cost(clock).work((case.feature("tokens_routed"), case.feature("active")))[quiet]
    by_attention, by_experts = over_others(mean_slowness(attention, attention_work)), over_others(mean_slowness(experts, experts_work))
    column = int(np.nanargmax(np.minimum(by_attention, by_experts)))
    blocks = [over_others(block_slowness(cost, work, BLOCKS)) for cost, work in ((attention, attention_work), (experts, experts_work))]
    first = [np.nanargmax(np.nan_to_num(block, nan=-1.0), axis=1) == column for block in blocks]
    return Slow(
        column=column,
        attention=float(by_attention[column]),
        experts=float(by_experts[column]),
        z=min(_z(by_attention, blocks[0], column), _z(by_experts, blocks[1], column)),
        persistent=float(np.mean(first[0] & first[1])),
    )


def over_others(slowness: Floats) -> Floats:
    """[..., R] each rank over the median of the others."""
    ranks = slowness.shape[-1]
    others = [median_known(np.delete(slowness, r, axis=-1)) for r in range(ranks)]
    return np.asarray(slowness / np.stack(others, axis=-1))


def median_known(values: Floats) -> Floats:
    """Median over the last axis of what is known, NaN where nothing is (as in a block of time in which no other rank had work)."""
    known = np.asarray(np.isfinite(values).any(axis=-1))
    return np.where(known, np.nanmedian(np.where(known[..., None], values, 0.0), axis=-1), np.nan)


def _z(ratios: Floats, blocks: Floats, column: int) -> float:
    """log ratio over the larger of the scatter between the other ranks (MAD) and its own standard error over blocks of time."""
    others = np.log(np.delete(ratios, column))
    scatter = 1.4826 * float(median_known(np.abs(others - median_known(others))))
    own = np.log(blocks[:, column])
    known = own[np.isfinite(own)]
    error = float(np.std(known)) / np.sqrt(len(known)) if len(known) else 0.0
    return float(np.log(ratios[column]) / np.nanmax([scatter, error, LEAST_SCATTER]))


def mean_waits(case: Case) -> Floats:
    """[R] mean ns a rank waits for the last one at the count exchange and at the combine, summed over a step's layers."""
    layers = case.layers
    if not case.one_clock:
        # Without a common clock: what a rank spends in the collectives, which is waiting plus a transfer common to all.
        spent = layers["exchange"] + layers["dispatch"] + layers["combine"]
        return np.asarray(np.nansum(spent, axis=0) / layers.steps)
    enter_exchange = layers["ts"] + layers["attention"] + layers["router"]
    waited = waits(enter_exchange) + waits(case.frontier.ends)
    return np.asarray(np.nansum(waited, axis=0) / layers.steps)


def gains(case: Case, suspect: Slow, quiet: np.ndarray) -> tuple[float, float]:
    """Mean ns per step gained if this rank ran like the median of the others: as things are, and with the expert load evened out first."""
    layers, column = case.layers.select(quiet), suspect.column
    work = case.attention_cost("wall").work((case.feature("tokens_in"), case.feature("context")))[quiet]
    attention = _gain(layers["attention"] + layers["router"], work, column)
    rows, active = layers["tokens_routed"], layers["active"]
    experts = _gain(layers["experts"], case.expert_cost("wall").work((rows, active)), column)
    even = np.nanmean(case.expert_cost("wall").work((rows, active)), axis=1)
    last = even * (suspect.experts - 1.0)
    return float((attention + experts).sum() / layers.steps), float((attention + last).sum() / layers.steps)


def _gain(cost: Floats, work: Floats, column: int) -> Floats:
    """[n] how much earlier the last rank would be with `column` at the median pace of the others."""
    with np.errstate(divide="ignore", invalid="ignore"):
        pace = np.where(work > 0, cost / work, np.nan)
    others = np.delete(pace, column, axis=1)
    typical = np.array([np.median(row[np.isfinite(row)]) if np.isfinite(row).any() else 0.0 for row in others])
    mended = cost.copy()
    mended[:, column] = np.minimum(cost[:, column], np.where(work[:, column] > 0, typical * work[:, column], cost[:, column]))
    return np.asarray(np.nanmax(cost, axis=1) - np.nanmax(mended, axis=1))


# -- the finding --------------------------------------------------------------------------------------------------------------------


def _finding(case: Case, severity: Severity, suspect: Slow, cpu_slow: bool, waited: Floats, costs: tuple[float, float, float]) -> Finding:
    rank = case.layers.ranks[suspect.column]
    host = case.hosts.get(rank, "")
    share, alone, last = costs
    evidence, reason = _host_evidence(case, rank)
    nature = "in CPU time too: slow code, core, clock or memory" if cpu_slow else f"in wall time only: it is interrupted{reason}"
    return finding(
        case,
        ID,
        severity,
        subject("rank", rank, ranks=[rank], hosts=[host] if host else []),
        f"Rank {rank} is slow: {suspect.factor:.1f}x the time of the others for the same work",
        f"Rank {rank} takes {suspect.attention:.2f}x per token in attention and {suspect.experts:.2f}x per row "
        f"in experts, {nature}. It waits "
        f"least of all ranks ({waited[suspect.column] / 1e6:.2f} ms a step against {np.median(waited) / 1e6:.2f}): the others wait for it, "
        f"for {share:.0%} of the step.",
        0.95 if cpu_slow or not case.contended else 0.8,
        "established" if suspect.persistent == 1.0 else "supported",
        impact=Impact(
            metric="step time",
            value=round(alone / 1e6, 4),
            unit="ms",
            share=round(share, 4),
            alone=round(alone / 1e6, 4),
            last=round(last / 1e6, 4),
        ),
        evidence=(*_rates(case, suspect, rank), *evidence),
        remedy=_remedy(rank, host),
    )


def _rates(case: Case, suspect: Slow, rank: int) -> tuple[Evidence, ...]:
    span = f"step BETWEEN {case.first_step} AND {case.period.last} AND tokens_routed > 0"
    per_row = f"SELECT rank, sum(experts) / sum(tokens_routed) AS c FROM layer WHERE {span} GROUP BY rank"
    per_token = f"SELECT rank, sum(attention) / greatest(sum(tokens_in), 1) AS c FROM layer WHERE {span} GROUP BY rank"
    over = f"max(c) FILTER (WHERE rank = {rank}) / median(c) FILTER (WHERE rank <> {rank})"
    number = len(case.layers.ranks)
    return (
        case.sql(
            f"SELECT {over} AS ratio FROM ({per_row})", 1.0, "ratio", f"wall time of the experts per row, rank {rank} over the others"
        ),
        case.sql(
            f"SELECT {over} AS ratio FROM ({per_token})", 1.0, "ratio", f"wall time of the attention per token, rank {rank} over the others"
        ),
        case.derived(
            "playbooks.attribution.rates", round(suspect.factor, 4), RATIO, "ratio", f"with work divided out; z {suspect.z:.1f} > {Z}"
        ),
        case.derived(
            f"slowest rank in {BLOCKS} blocks of the window", round(suspect.persistent, 4), round(1 / number, 4), "share of blocks"
        ),
        case.sql(
            f"SELECT avg((last_rank = {rank})::INT) AS last FROM frontier WHERE step BETWEEN {case.first_step} AND {case.period.last}",
            round(1 / number, 4),
            "share of layers",
            f"rank {rank} is last at the end of the experts; expected by chance",
        ),
    )


def _host_evidence(case: Case, rank: int) -> tuple[tuple[Evidence, ...], str]:
    """Counters of the host that say by what a rank is interrupted; as a share of the window."""
    found, reasons = [], []
    for column, words in (("throttled", "its CPU quota"), ("run_queue_delay", "other work on its core")):
        query = (
            f"SELECT (max({column}) - min({column})) / nullif(max(ts) - min(ts), 0) AS share FROM host "
            f"WHERE rank = {rank} AND ts BETWEEN {case.period.t0} AND {case.period.t1}"
        )
        others = query.replace(f"rank = {rank} AND", f"rank <> {rank} AND").replace("SELECT", "SELECT rank,", 1) + " GROUP BY rank"
        typical = case.store.rows(f"SELECT median(share) AS share FROM ({others})")
        expected = typical[0]["share"] if typical else None
        evidence = case.sql(
            query, None if expected is None else round(float(expected), 4), "share of time", f"{column} of rank {rank}; expected: others"
        )
        if evidence.observed is None:
            continue
        found.append(evidence)
        if float(evidence.observed) > 0.05 and float(evidence.observed) > 2 * float(expected or 0.0):
            reasons.append(words)
    return tuple(found), f" by {' and '.join(reasons)}" if reasons else ""


def _remedy(rank: int, host: str) -> tuple[Remedy, ...]:
    where = f" on {host}" if host else ""
    return (
        Remedy(
            text=(
                f"Look at rank {rank}{where}: CPU quota, affinity and NUMA, clock and throttling, other processes; "
                "then drain or replace it."
            ),
            command=(
                'workbench query "SELECT ts, psi_cpu, throttled, run_queue_delay, involuntary, cpu_time FROM host '
                f'WHERE rank = {rank} ORDER BY ts"'
            ),
            risk="medium: draining a rank takes its experts out of service",
            verify="workbench diagnose tail-latency",
        ),
    )


CHECK = Check(ID, "One rank is slow for the same work", mandatory=True, cost=20, test=test, needs=NEEDS, page=__doc__ or "")
