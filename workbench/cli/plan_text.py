"""workbench.plan.v1 for reading."""

from __future__ import annotations

from runtime.budget.compared import ComparedLine, Comparison
from runtime.budget.document import PlanDocument
from runtime.budget.units import human
from workbench.cli.output import table

SHOWN = 12  # candidates; --json has all


def plan_text(plan: PlanDocument) -> str:
    """Model, ranks, traffic, precisions, candidates, advice."""
    parts = [_model(plan), _ranks(plan), _numbers(plan), _precision(plan)]
    if len(plan.candidates) > 1:
        parts.append(_candidates(plan))
    if plan.verification is not None:
        parts.append(_verification(plan.verification))
    parts += [_listed("assumed", plan.assumptions), _listed("advice", plan.advice), _verdict(plan)]
    return "\n\n".join(part for part in parts if part)


def _model(plan: PlanDocument) -> str:
    model = plan.model
    active = "unknown" if model.active_parameters is None else f"{model.active_parameters:,}"
    rows = [
        ("model", f"{model.architecture} ({model.layers} layers, from {model.source})"),
        ("parameters", f"{model.parameters:,}" + (f" + {model.draft_parameters:,} in draft layers" if model.draft_parameters else "")),
        ("active", f"{active} a token"),
        ("stored", f"{model.stored_bytes:,} bytes ({human(model.stored_bytes)}) in {model.tensors:,} tensors"),
        ("KV", f"{plan.kv_bytes_per_token:,} bytes a token"),
        ("state", f"{plan.state_bytes_per_sequence:,} bytes a sequence ({human(plan.state_bytes_per_sequence)})"),
    ]
    return "\n".join(f"{name:<11} {text}" for name, text in rows)


def _ranks(plan: PlanDocument) -> str:
    """One row for ranks that are alike."""
    layout = plan.layout
    title = f"layout tp{layout.tp} pp{layout.pp} dp{layout.dp} ep{layout.ep}"
    if layout.expert_slots is not None:
        title += f", {layout.expert_slots} expert slots a rank and layer"
    rows: dict[tuple[object, ...], list[int]] = {}
    for rank in plan.per_rank:
        sizes = (rank.weights, rank.kv, rank.state, rank.activations, rank.buffers, rank.overhead, rank.total, rank.limit)
        rows.setdefault((*(human(size) for size in sizes), _yes(rank.fits)), []).append(rank.rank)
    columns = ("ranks", "weights", "KV", "state", "activations*", "buffers*", "overhead*", "total", "limit", "fits")
    body = table(columns, [(_span(ranks), *cells) for cells, ranks in rows.items()], right=columns[1:-1])
    return f"{title}\n{body}\n* estimates; weights, KV and state are facts"


def _span(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return str(ranks[0])
    step = ranks[1] - ranks[0]
    if ranks == list(range(ranks[0], ranks[-1] + 1, step)):
        return f"{ranks[0]}-{ranks[-1]}" + (f" every {step}" if step > 1 else "")
    return f"{ranks[0]}-{ranks[-1]} ({len(ranks)})"


def _yes(fits: bool | None) -> str:
    return "" if fits is None else "yes" if fits else "NO"


def _tokens(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def _numbers(plan: PlanDocument) -> str:
    rows: list[tuple[str, str]] = []
    context = plan.context
    if context.fits is not None:
        concurrency = plan.workload["concurrency"]
        rows.append(("context", f"{context.fits:,} tokens fit for {concurrency} sequences, {(context.alone or 0):,} for one a group"))
    moved = plan.traffic
    if moved is not None:
        rows.append(("dispatch", f"{moved.dispatch:,} bytes a token and MoE layer, and as much back in the combine"))
        far = f"{moved.inter_share:.0%} cross hosts ({moved.hosts} hosts); {moved.inter_host_once:,} bytes if sent once a host"
        rows.append(("", far if moved.hosts > 1 else "all inside one host"))
        if plan.layout.tp > 1:
            rows.append(("all-reduce", f"{moved.all_reduce:,} bytes a token and layer (tp {plan.layout.tp})"))
    if plan.layout.pp > 1:
        boundary = f", {moved.boundary:,} bytes a token between stages" if moved is not None else ""
        rows.append(("bubble", f"{plan.pipeline_bubble:.0%} of a filled and drained pipeline{boundary}"))
    return "\n".join([f"{name:<11} {text}" for name, text in rows] + _floor_lines(plan))


def _floor_lines(plan: PlanDocument) -> list[str]:
    floors = plan.floors
    named = {"reading": floors.memory, "arithmetic": floors.compute, "sending": floors.communication, "a decode step": floors.decode_step}
    known = [f"{name} {seconds * 1e3:.2f} ms" for name, seconds in named.items() if seconds is not None]
    lines = [f"{'floors':<11} {', '.join(known)}"] if known else []
    if floors.load is not None:
        lines.append(f"{'load':<11} at least {floors.load:.0f} s")
    if floors.communication_exceeds_work_at is not None:
        lines.append(f"{'crossover':<11} sending exceeds work from {floors.communication_exceeds_work_at} devices in one expert group")
    return lines


def _precision(plan: PlanDocument) -> str:
    rows = [
        (row.weights, row.kv, human(row.rank_weights), human(row.rank_total), _yes(row.fits), _tokens(row.context))
        for row in plan.precision
    ]
    columns = ("experts in", "KV in", "weights", "total", "fits", "context")
    return "precision, on the fullest rank\n" + table(columns, rows, right=columns[2:])


def _candidates(plan: PlanDocument) -> str:
    rows = [
        (
            one.tp, one.pp, one.dp, one.ep, _yes(one.fits), "" if one.total is None else human(one.total),
            "" if one.decode_step is None else f"{one.decode_step * 1e3:.2f} ms", one.reason or "best",
        )
        for one in plan.candidates[:SHOWN]
    ]  # fmt: skip
    columns = ("tp", "pp", "dp", "ep", "fits", "fullest rank", "decode floor", "why not")
    left = len(plan.candidates) - len(rows)
    more = f"\n{left} more with --json" if left > 0 else ""
    return "layouts\n" + table(columns, rows, right=("fullest rank", "decode floor")) + more


def _listed(title: str, lines: list[str]) -> str:
    return "\n".join([title, *(f"- {line}" for line in lines)]) if lines else ""


def _verdict(plan: PlanDocument) -> str:
    if plan.fits is None:
        return ""
    return "it fits" if plan.fits else "it does not fit"


def _verification(found: Comparison) -> str:
    rows = [
        (line.rank, line.phase, line.measure, human(line.planned), human(line.used), _percent(line.difference), _judgement(line))
        for line in found.lines
    ]
    columns = ("rank", "phase", "measured as", "planned", "used", "off by", "within")
    title = f"against run {found.run}, within {found.tolerance:.0%}: " + {True: "yes", False: "NO", None: "nothing to judge"}[found.agrees]
    return f"{title}\n{table(columns, rows, right=('planned', 'used', 'off by'))}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:+.1%}"


def _judgement(line: ComparedLine) -> str:
    if line.used is None:
        return "not measured"
    return "too small to judge" if line.within is None else _yes(line.within)
