"""tail.prefill-interference: answers stand still while somebody else's long prompt is computed.

What is seen: most tokens follow each other quickly, some only after several times as long; the time to the first token is fine. The
step of the late token also computed prompt tokens, many of them.

How it is told apart: the wall time of the steps is fitted by decoding sequences, prompt tokens and cached tokens. What the fit gives
to the prompt tokens is compared with what the latest gaps between tokens have over the typical gap. An encoded image is measured
apart (tail.encoder-block), a pause is not explained by tokens.
"""

from __future__ import annotations

import numpy as np

from playbooks.case import Case
from playbooks.check import Check, Need, Result, passed, skipped
from playbooks.document import Finding, Remedy
from playbooks.finding import finding, subject
from playbooks.tail_latency.token_gaps import EXPLAINED, LEAST_GAPS, QUANTILE, TAIL, evidence, gaps, impact, parts

ID = "tail.prefill-interference"

NEEDS = (
    Need("tokens", "token", LEAST_GAPS, "send traffic with answers of many tokens: `workbench traffic {url} --mix shapes`"),
    Need("steps with prompt tokens", "step", 10, "send traffic with `workbench traffic {url}`", where="prefill_tokens > 0"),
)


def test(case: Case) -> Result:
    found = gaps(case)
    if len(found.gap) < LEAST_GAPS:
        return skipped(f"only {len(found.gap)} gaps between tokens in the window, {LEAST_GAPS} are needed: send answers of many tokens")
    tail = found.tail
    share, times = tail.share("prefill"), found.late / found.typical
    said = (
        f"the latest {1 - QUANTILE:.0%} of tokens come {times:.1f} times the typical gap ({found.typical / 1e6:.1f} ms) after the one "
        f"before; prompts computed meanwhile are {share:.0%} of the excess"
    )
    if times < TAIL or share < EXPLAINED:
        return passed(said, round(min(times / TAIL, share / EXPLAINED), 4), 1.0, "x the lines for tail and share")
    sure = tail.parts["prefill"].low >= EXPLAINED / 2 * tail.excess
    found_one = (_finding(case, said, sure),)
    return Result("fail" if sure else "warn", said, round(share, 4), EXPLAINED, "share of the excess", found_one)


def _finding(case: Case, said: str, sure: bool) -> Finding:
    found = gaps(case)
    chunk = int(np.nanmax(case.steps["prefill_tokens"]))
    each = parts(case).per_token
    window = f"ts BETWEEN {case.period.t0} AND {case.period.t1}"
    walls = f"SELECT step, max(dur) AS dur, max(prefill_tokens) AS prefill FROM step WHERE {window} GROUP BY step"
    return finding(
        case,
        ID,
        "error" if sure else "warning",
        subject("setting", "max_tokens_per_step"),
        f"Prompts hold up answers: gaps of {found.late / 1e6:.0f} ms between tokens against {found.typical / 1e6:.0f} ms typically",
        f"{said[0].upper()}{said[1:]}. A prompt token adds {each / 1e3:.0f} us to a step, and steps take up to {chunk} of them.",
        0.9 if sure else 0.7,
        "established" if sure else "supported",
        impact=impact(case, "prefill"),
        evidence=(
            case.sql(
                f"SELECT median(dur) FILTER (prefill > 0) / nullif(median(dur) FILTER (prefill = 0), 0) AS times FROM ({walls})",
                1.0,
                "ratio",
                "steps with prompt tokens over steps without",
            ),
            *evidence(case, "prefill", "prompts"),
        ),
        remedy=(
            Remedy(
                text="Compute prompts in smaller chunks, so that no step takes more of them than answers can wait for; or serve "
                "prompts and answers on different ranks.",
                config={"max_tokens_per_step": max(64, chunk // 4)},
                risk="low: the time to the first token of long prompts grows",
                verify="workbench diagnose tail-latency",
            ),
        ),
    )


CHECK = Check(ID, "Long prompts hold up answers", mandatory=False, cost=32, test=test, needs=NEEDS, page=__doc__ or "")
