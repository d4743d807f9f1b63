"""net.a2a-backend: the exchange moves more bytes than routing asks for.

What is seen: dispatch and combine take long although links, hosts and placement are well, and a faster network is used up too. Usual
reasons: a back end that gathers every token to every rank (vLLM PR 28664: about ranks / top-k times the bytes), buffers padded to a
capacity or to the fullest rank, a dispatch repeated for every replica or lane.

How it is told apart: bytes of dispatch and combine in the detailed steps, to all peers (a rank's own included), over what the router
asked for: one row for each token and chosen expert, there and back, of the size that the ranks recorded when they loaded (events
`routed_row`). An exchange with exact splits has 1.0; one that sends a token once to a host that has several of its experts has less.
Above 1.5 it is named (reference section 2, net.a2a-backend). Where all messages of a dispatch are equally long, it is said that buffers
have one size.
"""

from __future__ import annotations

from dataclasses import dataclass

from playbooks.case import Case
from playbooks.check import Check, Need, Result, passed, skipped
from playbooks.cross_node.served import LAYERS, several_hosts, transfer_share
from playbooks.document import Impact, Remedy
from playbooks.finding import finding, subject
from probes.points import ROUTED_ROW

ID = "net.a2a-backend"
TOO_MUCH = 1.5
PADDED = 0.9  # of the dispatches have messages of one size: chance gives that to few
ROWS = Need("size of a routed row", "event", 1, "serve with this version of the workbench", where=f"kind = '{ROUTED_ROW}'", time="")
MESSAGES = Need("bytes of dispatch and combine", "collective", 100, LAYERS.provide, where="op IN ('dispatch', 'combine')", time="enter")


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes over the detailed layers of the window: `bytes` were sent, `needed` the router asked for. `even`: share of dispatches, 0..1,
    whose messages are all equally long, of those that carry anything.
    """

    bytes: int
    needed: int
    even: float


def test(case: Case) -> Result:
    found = moved(case)
    if not found.needed:
        return skipped(f"tokens that are routed in detailed steps: none were; {LAYERS.provide}")
    ratio = found.bytes / found.needed
    said = f"dispatch and combine moved {found.bytes / 1e6:,.1f} MB, routing asked for {found.needed / 1e6:,.1f} MB ({ratio:.2f} times)"
    if ratio <= TOO_MUCH:
        return passed(said, round(ratio, 3), TOO_MUCH, "of what routing needs")
    share = transfer_share(case)
    how = " All messages of a dispatch are equally long: buffers of one size, or every token to every rank." if found.even > PADDED else ""
    excess = found.bytes - found.needed
    made = finding(
        case,
        ID,
        "error" if several_hosts(case) else "warning",
        subject("setting", "all-to-all", hosts=sorted(set(case.hosts.values()))),
        f"The exchange moves {ratio:.1f} times the bytes that routing needs",
        f"{said[0].upper()}{said[1:]}.{how} The exchange takes {share:.0%} of the layers' time.",
        0.9,
        "established",
        impact=Impact(metric="bytes", value=excess, unit="bytes", share=round(excess / found.bytes, 4), alone=excess),
        evidence=(
            case.sql(moved_sql(case), None, "bytes", "of dispatch and combine, and what the router asked for"),
            case.derived("moved over needed", round(ratio, 3), 1.0, "of what routing needs", "rows there and back"),
        ),
        remedy=(
            Remedy(
                text="Use an all-to-all with exact splits (in vLLM another all2all backend, in SGLang DeepEP), or a smaller capacity; "
                "with few tokens a step a fixed size may be the price of CUDA graphs: then decode larger batches.",
                risk="medium: the job restarts",
                verify="workbench diagnose cross-node-throughput",
            ),
        ),
    )
    return Result("fail", said, round(ratio, 3), TOO_MUCH, "of what routing needs", (made,))


def moved(case: Case) -> Moved:
    row = case.store.rows(moved_sql(case))[0]
    return Moved(int(row["bytes"] or 0), int(row["needed"] or 0), float(row["even"] or 0.0))


def moved_sql(case: Case) -> str:
    """Joined by step, rank and layer: what a rank sends out for its tokens, and what comes back for them."""
    window = f"ts BETWEEN {case.period.t0} AND {case.period.t1}"
    return (
        "WITH size AS (SELECT max((attrs->>'row_bytes')::BIGINT * (attrs->>'top_k')::BIGINT) AS bytes FROM event "
        f"WHERE kind = '{ROUTED_ROW}'), "
        f"asked AS (SELECT step, rank, layer, sum(tokens_in) AS tokens FROM layer WHERE {window} GROUP BY ALL), "
        "sent AS (SELECT step, rank, layer, sum(list_sum(CASE WHEN op = 'dispatch' THEN sent ELSE received END)) AS bytes, "
        "count(*) FILTER (WHERE op = 'dispatch' AND len(sent) > 1 AND list_sum(sent) > 0) AS busy, "
        "count(*) FILTER (WHERE op = 'dispatch' AND len(sent) > 1 AND list_sum(sent) > 0 AND list_min(sent) = list_max(sent)) AS even "
        "FROM collective WHERE op IN ('dispatch', 'combine') GROUP BY ALL HAVING count(DISTINCT op) = 2) "
        "SELECT sum(sent.bytes)::BIGINT AS bytes, (2 * sum(asked.tokens) * any_value(size.bytes))::BIGINT AS needed, "
        "sum(even) / nullif(sum(busy), 0) AS even FROM asked JOIN sent USING (step, rank, layer), size"
    )


CHECK = Check(ID, "More bytes than routing needs", mandatory=False, cost=20, test=test, needs=(LAYERS, ROWS, MESSAGES), page=__doc__ or "")
