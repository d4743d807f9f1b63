"""The finding of tail.expert-imbalance: who, which experts, how sure, by which numbers, and what to do."""

from __future__ import annotations

import numpy as np

from playbooks.attribution.placement_gain import gain
from playbooks.attribution.tail import compare
from playbooks.case import Case
from playbooks.document import Evidence, Finding, Impact, Remedy, Severity
from playbooks.expert_counts import ExpertCounts
from playbooks.finding import finding, listed, subject
from playbooks.tail_latency.expert_limits import (
    ID,
    IMPACT_FAIL,
    IMPACT_WARN,
    LAST_IS_HOTTEST,
    NAMED_LAYER,
    NAMED_RANK,
    PADDING,
    RECOVERABLE,
)
from playbooks.tail_latency.expert_load import ExpertLoad, LayerLoad


def describe(case: Case, measured: ExpertLoad, severity: Severity) -> Finding:
    uneven = sorted(measured.uneven, key=lambda one: -one.excess)
    cost: dict[int, float] = {one.hot_rank: 0.0 for one in uneven}
    for one in uneven:
        cost[one.hot_rank] += one.excess
    total = sum(cost.values())
    hottest = max(cost, key=lambda rank: cost[rank])
    ranks = [rank for rank in sorted(cost, key=lambda rank: -cost[rank]) if rank == hottest or cost[rank] >= NAMED_RANK * total]
    main = [one for one in uneven if one.hot_rank in ranks and one.excess >= NAMED_LAYER * total] or uneven[:1]
    experts = {str(one.layer): hot_experts(measured.counts, one.layer, one.hot_rank, case.layers.ranks) for one in main}
    every = sorted({expert for named in experts.values() for expert in named})
    hosts = sorted({case.hosts[rank] for rank in ranks if rank in case.hosts})
    layers = sorted(one.layer for one in main)
    about = subject(
        "rank",
        ranks[0],
        ranks=sorted(ranks),
        layers=layers,
        experts=every,
        experts_by_layer=experts,
        hosts=hosts,
        placement=measured.counts.version,
    )
    worst = main[0]
    named = ", ".join(map(str, experts[str(worst.layer)]))
    summary = (
        f"In {listed(layers, 'layer')} the experts of {listed(sorted(ranks), 'rank')} receive up to {worst.ratio:.2f} times the mean rows "
        f"(a uniform router stays below {worst.null:.2f} in 99 of 100 steps); experts {named} make it so in "
        f"layer {worst.layer}. The excess "
        f"takes {measured.share.value:.0%} of the step. {_cure(measured)}{_regime(measured)}"
    )
    title = f"Expert load is uneven: rank {ranks[0]} computes {worst.ratio:.1f}x the mean rows under placement {measured.counts.version}"
    sure = measured.last_wall > LAST_IS_HOTTEST and measured.share.low >= IMPACT_WARN
    return finding(
        case,
        ID,
        severity,
        about,
        title,
        summary,
        0.95 if sure else 0.8,
        "established" if sure else "supported",
        impact=_impact(case, measured),
        evidence=_evidence(case, measured, worst, experts[str(worst.layer)]),
        remedy=_remedy(case, measured),
    )


def hot_experts(counts: ExpertCounts, layer: int, rank: int, ranks: tuple[int, ...], most: int = 8) -> list[int]:
    """Logical experts of `rank` that have more rows per slot than the mean expert: what makes the rank hot. At most the `most` hottest."""
    placed, rows = counts.maps[layer], counts.counts[layer].sum(axis=0)
    size, column = len(placed) // counts.ranks, ranks.index(rank)
    per_slot = rows / np.maximum(np.bincount(np.asarray(placed), minlength=len(rows)), 1)
    owned = sorted(set(placed[column * size : (column + 1) * size]), key=lambda expert: -per_slot[expert])
    hot = [expert for expert in owned if per_slot[expert] > rows.sum() / len(placed)]
    return sorted((hot or owned[:1])[:most])


def _cure(measured: ExpertLoad) -> str:
    worst = max(measured.uneven, key=lambda one: one.excess)
    how = "on counts it was not made from" if worst.gain.held_out else "on the same counts"
    if measured.recoverable >= RECOVERABLE:
        return f"Moving experts would bring layer {worst.layer} from {worst.gain.now:.2f} to {worst.gain.best:.2f} ({how})."
    return (
        f"Moving experts alone would bring layer {worst.layer} from {worst.gain.now:.2f} only to {worst.gain.best:.2f} ({how}): "
        "the skew changes with the traffic or sits in single experts, which need replicas."
    )


def _regime(measured: ExpertLoad) -> str:
    return " Time follows the active experts more than the rows (small batches)." if measured.by_active > 0.5 else ""


def _impact(case: Case, measured: ExpertLoad) -> Impact:
    layers, parts, steps = case.layers, measured.parts, case.layers.steps
    value, alone, last = (
        float(layers.per_step(np.where(measured.flagged, part, 0.0)).sum() / steps / 1e6)
        for part in (parts.imbalance, parts.imbalance_alone, parts.imbalance_last)
    )
    return Impact(
        metric="step time",
        value=round(value, 4),
        unit="ms",
        share=round(measured.share.value, 4),
        alone=round(alone, 4),
        last=round(last, 4),
    )


def _evidence(case: Case, measured: ExpertLoad, worst: LayerLoad, experts: list[int]) -> tuple[Evidence, ...]:
    first, last = case.first_step, case.period.last
    span = f"step BETWEEN {first} AND {last}"
    number, ours = len(case.layers.ranks), f"layer = {worst.layer} AND {span}"
    heat = f"SELECT unnest(tokens) AS n, generate_subscripts(tokens, 1) - 1 AS expert FROM expert_load WHERE layer = {worst.layer} "
    heat += f"AND placement = {measured.counts.version} AND ts >= {case.period.t0}"
    per_row = (
        f"SELECT rank, sum(experts{'_cpu' if case.basis == 'cpu' else ''}) / sum(tokens_routed) AS c FROM layer WHERE {span} GROUP BY rank"
    )
    even = len(experts) / len(measured.counts.counts[worst.layer][0])
    evidence = [
        case.sql(
            f"SELECT sum(rows_max) / sum(rows_mean) AS imbalance FROM frontier WHERE {ours}",
            round(worst.null, 4),
            "max/mean",
            f"rows per rank in layer {worst.layer}; expected: 99th percentile of a uniform router",
        ),
        case.derived(
            "playbooks.attribution.imbalance_null", round(worst.above, 4), 0.01, "share of steps", "above the null's 99th percentile"
        ),
        case.sql(
            f"SELECT avg((last_rank = rows_argmax_rank)::INT) AS agrees FROM frontier WHERE {ours}",
            round(1 / number, 4),
            "share of steps",
            "wall clock: the last rank at the end of the experts has the most rows; expected by chance",
        ),
        case.derived(
            f"playbooks.attribution.rates.fit on the {case.basis} time of the experts",
            round(measured.share.value, 4),
            IMPACT_FAIL,
            "share of step time",
            f"cost of the excess rows, 90 % interval [{measured.share.low:.3f}, {measured.share.high:.3f}]; {_basis(case)}",
        ),
        case.sql(f"SELECT max(c) / median(c) AS spread FROM ({per_row})", 1.15, "ratio", "cost per row, slowest over typical rank"),
        case.sql(
            f"SELECT sum(n) FILTER (WHERE expert IN ({', '.join(map(str, experts))})) / sum(n) AS share FROM ({heat})",
            round(even, 4),
            "share of rows",
            f"the experts that make rank {worst.hot_rank} hot in layer {worst.layer}",
        ),
        case.derived(
            "playbooks.attribution.placement_gain.gain",
            round(worst.gain.best, 4),
            round(worst.gain.now, 4),
            "max/mean",
            "best placement from one half of the counts judged on the other half; expected: as it is now",
        ),
    ]
    if measured.last_cpu is not None:
        evidence.append(
            case.derived(
                "argmax(experts_cpu) = argmax(tokens_routed), table layer",
                round(measured.last_cpu, 4),
                round(1 / number, 4),
                "share of layers",
                "CPU time: the costliest rank has the most rows",
            )
        )
    return (*evidence, *_tail(case, measured), *_nodes(case, worst), *_padding(case, measured, worst))


def _tail(case: Case, measured: ExpertLoad) -> list[Evidence]:
    """Does it make the slow steps slow, or all steps alike? Left out where the tail has too few steps to tell."""
    excess = case.layers.per_step(np.where(measured.flagged, np.maximum(measured.parts.imbalance_last, 0.0), 0.0))
    found = compare(case.step_time, {"excess": excess})
    if not found.determined:
        return []
    part = found.parts["excess"]
    note = f"of what the slowest 5 % of steps take more than the typical ({found.excess / 1e6:.1f} ms); expected: as in all steps; "
    note += f"90 % interval [{part.low / 1e6:.2f}, {part.high / 1e6:.2f}] ms"
    how = "playbooks.attribution.tail.compare"
    return [case.derived(how, round(found.share("excess"), 4), round(measured.share.value, 4), "share of the tail", note)]


def _basis(case: Case) -> str:
    if case.basis == "cpu":
        said = "CPU time, because the host is contended (compute takes"
        return f"{said} {case.inflation:.1f}x its CPU time); step time divided by the same factor"
    return "wall time"


def _nodes(case: Case, worst: LayerLoad) -> list[Evidence]:
    """With several hosts: is it uneven between them or inside one? Totals per host can be even while one rank is hot."""
    names = [case.hosts.get(rank, "") for rank in case.layers.ranks]
    if len(set(names)) < 2:
        return []
    rows = np.nansum(case.layers["tokens_routed"][case.layers.layer == worst.layer], axis=0)
    groups = [rows[[i for i, name in enumerate(names) if name == host]] for host in sorted(set(names))]
    between = max(group.mean() for group in groups) / rows.mean()
    within = max(group.max() / max(group.mean(), 1e-9) for group in groups)
    return [
        case.derived("rows per host, table layer", round(float(between), 4), 1.0, "max/mean", "between hosts"),
        case.derived("rows per rank inside a host, table layer", round(float(within), 4), 1.0, "max/mean", "inside the most uneven host"),
    ]


def _padding(case: Case, measured: ExpertLoad, worst: LayerLoad) -> list[Evidence]:
    query = (
        f"SELECT sum(padding) / greatest(sum(list_sum(physical)), 1) AS share FROM expert_load "
        f"WHERE layer = {worst.layer} AND placement = {measured.counts.version} AND ts >= {case.period.t0}"
    )
    evidence = case.sql(query, PADDING, "share of rows", "padding rows; above this they, not the router, make a rank hot")
    return [evidence] if isinstance(evidence.observed, float) and evidence.observed > PADDING else []


def _remedy(case: Case, measured: ExpertLoad) -> tuple[Remedy, ...]:
    move = Remedy(
        text="Move experts: a placement that spreads the measured rows evenly over the ranks (as many slots on each as now).",
        command=f"workbench diagnose tail-latency --run {case.run.id} --apply",
        risk="low: stepping stops while weights are switched; fixed prompts are answered before and after, and the old placement "
        "is put back if an answer differs or nothing is gained",
        verify="imbalance and expert time per routed row under the same traffic, with a 90 % interval",
        automatic=measured.avoidable >= IMPACT_WARN / 2,
    )
    return (move,) if measured.recoverable >= RECOVERABLE else (_replicate(measured), move)


def _replicate(measured: ExpertLoad) -> Remedy:
    """One more slot on every rank, and what that would bring on the counts of the worst layer."""
    counts, worst = measured.counts, max(measured.uneven, key=lambda one: one.excess)
    placed, rows = counts.maps[worst.layer], counts.counts[worst.layer]
    better = gain(rows, placed, counts.ranks, len(placed) + counts.ranks)
    spare = len(placed) - rows.shape[1] + counts.ranks
    return Remedy(
        text="Give the hottest experts one more slot a rank (redundant experts): moving alone does not split one expert's rows. "
        f"Layer {worst.layer} would come from {better.now:.2f} to {better.best:.2f} times the mean.",
        command=f"workbench serve MODEL --redundant-experts {spare}",
        config={"redundant_experts": spare},
        risk="medium: a restart, and each extra slot costs the memory of one expert in every layer",
        verify="workbench diagnose tail-latency",
    )
