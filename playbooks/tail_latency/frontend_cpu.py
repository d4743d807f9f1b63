"""tail.frontend-cpu: the API process, not the engine, keeps requests and tokens waiting.

What is seen: clients wait much longer than the engine took; the engine's queue is empty and its ranks are idle. Typical origins: a slow
tokenizer, image files decoded on the event loop, one process for all text, logging, or a host that gives the process no core
(reference, S4 cases 18 to 21).

How it is told apart: a request's time outside the engine is what the client measured less the time from its queue stage to its last
token. Our client and server share the trace id, so it is known request by request; the stages `tokenize`, `image.preprocess` and
`detokenize` say which part it is. Waiting for admission is the engine's (tail.queueing). Without the client's side it is not measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from playbooks.case import Case
from playbooks.check import Check, Need, Result, not_applicable, passed, skipped
from playbooks.document import Finding, Impact, Remedy
from playbooks.finding import finding, subject
from playbooks.measured import Floats, floats

ID = "tail.frontend-cpu"

# Reference section 2: client-engine gap > 20 %, or event-loop lag > 50 ms. Here both: with short answers on a small machine a fifth of the
# time is a millisecond. Long answers hide a front end that is slow for every first token: then half of the time to it counts (our choice).
SHARE = 0.20
FIRST_SHARE = 0.50
# ns, median delivery of a first token after it was sampled, or of a request to the engine after it was sent. On a contended host
# everybody's CPU time takes longer by the measured factor, and so may the front end's.
LAG = 50e6
LEAST_REQUESTS = 30

NEEDS = (
    Need(
        "requests seen by the client and by the server",
        "client_request",
        LEAST_REQUESTS,
        "send traffic that records the client's side: `workbench traffic {url}`",
        where="status = 'ok' AND trace_id IN (SELECT trace_id FROM request)",
    ),
)


@dataclass(frozen=True, slots=True)
class Outside:
    """[n] ns of each request: all of the client's time and that to its first token, before the engine had it, after the engine's last
    token, and the first token's way to the client. `parts`: mean ns of the stages of the API process.
    """

    total: Floats
    first: Floats
    before: Floats
    after: Floats
    delivery: Floats
    parts: dict[str, float]

    @property
    def share(self) -> float:
        return float((self.before + self.after).sum() / self.total.sum())

    @property
    def first_share(self) -> float:
        """Of the time to the first token."""
        return float((self.before + self.delivery).sum() / self.first.sum())

    @property
    def lag(self) -> float:
        """Median ns by which the front end is late, at its later end."""
        return float(max(np.median(self.before), np.median(self.delivery)))


def sql(case: Case) -> str:
    return (
        "SELECT c.dur, c.ttft AS ttft, q.ts - c.ts AS before, c.ts + c.dur - t.last AS after, c.ts + c.ttft - t.first AS delivery, "
        "r.tokenize, r.image, r.detokenize FROM client_request c JOIN request r USING (trace_id) "
        "JOIN (SELECT trace_id, min(ts) AS ts FROM span WHERE name = 'queue' GROUP BY trace_id) q USING (trace_id) "
        "JOIN (SELECT trace_id, min(ts) AS first, max(ts) AS last FROM token GROUP BY trace_id) t USING (trace_id) "
        f"WHERE c.status = 'ok' AND c.ts BETWEEN {case.period.t0} AND {case.period.t1} "
        "AND coalesce(TRY_CAST(c.attrs ->> '$.busy' AS INT), 0) = 0 ORDER BY c.ts"
    )


def read(case: Case) -> Outside:
    table = case.store.query(sql(case))
    parts = {name: float(np.nanmean(floats(table, name))) if table.num_rows else 0.0 for name in ("tokenize", "image", "detokenize")}
    columns = ("dur", "ttft", "before", "after", "delivery")
    total, first, before, after, delivery = (floats(table, name) for name in columns)
    return Outside(total, first, before, after, delivery, parts)


def test(case: Case) -> Result:
    found = read(case)
    if len(found.total) < LEAST_REQUESTS:
        return skipped(f"only {len(found.total)} requests were seen from both sides and not told to wait, {LEAST_REQUESTS} are needed")
    if min(np.median(found.before), np.median(found.delivery)) < 0:
        return not_applicable("the client's clock is not the server's: what is outside the engine cannot be told")
    said = (
        f"requests spend {found.share:.0%} of their time outside the engine, {found.first_share:.0%} of that to the first token: "
        f"{np.median(found.before) / 1e6:.1f} ms before it, {np.median(found.delivery) / 1e6:.1f} ms from a first token to the client"
    )
    much = found.share > SHARE or found.first_share > FIRST_SHARE
    lag = LAG * (case.inflation or 1.0) if case.contended else LAG
    if not much or found.lag <= lag:
        return passed(said, round(found.share, 4), SHARE, "share of the client's time")
    return Result("fail", said, round(found.share, 4), SHARE, "share of the client's time", (_finding(case, found, said),))


def _finding(case: Case, found: Outside, said: str) -> Finding:
    mean = float((found.before + found.after).mean())
    part, ns = max(found.parts.items(), key=lambda item: item[1])
    known = ns >= 0.5 * mean
    where = f" Most of it is the stage `{part}`." if known else " Its own stages are short: it waits for a core, or its loop is blocked."
    return finding(
        case,
        ID,
        "error",
        subject("group", "frontend", part=part if known else "loop"),
        f"The API process keeps requests waiting: {found.first_share:.0%} of the time to the first token is outside the engine",
        f"{said[0].upper()}{said[1:]}.{where}",
        0.9,
        "established",
        impact=Impact(
            metric="request time", value=round(mean / 1e6, 3), unit="ms", share=round(found.share, 4), alone=round(mean / 1e6, 3)
        ),
        evidence=(
            case.sql(f"SELECT sum(before + after) / sum(dur) AS share FROM ({sql(case)})", SHARE, "share of the client's time"),
            case.sql(f"SELECT sum(before + delivery) / sum(ttft) AS share FROM ({sql(case)})", FIRST_SHARE, "share of the client's TTFT"),
            case.sql(f"SELECT median(before) / 1e6 AS before FROM ({sql(case)})", LAG / 1e6, "ms", "from the client to the engine's queue"),
            case.sql(
                f"SELECT median(delivery) / 1e6 AS late FROM ({sql(case)})", LAG / 1e6, "ms", "from a first token's sampling to the client"
            ),
            *(
                case.sql(f"SELECT avg({name}) / 1e6 AS mean FROM ({sql(case)})", None, "ms", f"stage {name} of the API process")
                for name in found.parts
            ),
        ),
        remedy=(
            Remedy(
                text="Give the API process a core of its own; use a fast tokenizer; decode image files in threads; more API processes.",
                command="py-spy dump --pid PID_OF_THE_API_PROCESS",
                risk="low",
                verify="workbench diagnose tail-latency",
            ),
        ),
    )


CHECK = Check(ID, "The API process keeps requests waiting", mandatory=False, cost=35, test=test, needs=NEEDS, page=__doc__ or "")
