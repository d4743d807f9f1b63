"""tail.encoder-block: the vision encoder runs inside the step loop, and text answers stand still while it does.

What is seen: gaps between the tokens of text answers that coincide with somebody else's `image.encode` stage, on whatever rank.

How it is told apart: the stage is measured. Its overlap with the latest gaps is compared with what they have over the typical gap;
the prompt tokens that an image brings along count to the prompt (tail.prefill-interference), decoding and resizing the file to the
API process (tail.frontend-cpu).
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Need, Result, passed, skipped
from playbooks.document import Finding, Remedy
from playbooks.finding import finding, subject
from playbooks.tail_latency.token_gaps import EXPLAINED, LEAST_GAPS, QUANTILE, evidence, gaps, impact

ID = "tail.encoder-block"

# Gaps of the tail over the typical one from which on an answer visibly stands still; lower than for prompts, because an encoder can be
# moved out of the step and prompts cannot. Our choice.
TAIL = 2.0

NEEDS = (
    Need("tokens", "token", LEAST_GAPS, "send traffic with answers of many tokens: `workbench traffic {url} --mix shapes`"),
    Need("encoded images", "span", 5, "send pictures: `workbench traffic {url} --image-share 0.5`", where="name = 'image.encode'"),
)


def test(case: Case) -> Result:
    found = gaps(case)
    if len(found.gap) < LEAST_GAPS:
        return skipped(f"only {len(found.gap)} gaps between tokens in the window, {LEAST_GAPS} are needed: send answers of many tokens")
    tail = found.tail
    share, times = tail.share("encode"), found.late / found.typical
    said = (
        f"the latest {1 - QUANTILE:.0%} of tokens come {times:.1f} times the typical gap after the one before; images encoded meanwhile "
        f"are {share:.0%} of the excess"
    )
    if times < TAIL or share < EXPLAINED:
        return passed(said, round(share, 4), EXPLAINED, "share of the excess")
    return Result("fail", said, round(share, 4), EXPLAINED, "share of the excess", (_finding(case, said),))


def _finding(case: Case, said: str) -> Finding:
    found = gaps(case)
    spans = f"FROM span WHERE name = 'image.encode' AND ts BETWEEN {case.period.t0} AND {case.period.t1}"
    return finding(
        case,
        ID,
        "error",
        subject("setting", "image.encode"),
        f"Encoding images stops text answers for up to {found.late / 1e6:.0f} ms",
        f"{said[0].upper()}{said[1:]}.",
        0.9,
        "established",
        impact=impact(case, "encode"),
        evidence=(
            case.sql(
                f"SELECT median(dur) / 1e6 AS encode {spans}", round(found.typical / 1e6, 3), "ms", "one encoding; expected: a typical gap"
            ),
            *evidence(case, "encode", "images"),
        ),
        remedy=(
            Remedy(
                text="Encode images outside the step loop (a rank or a stream of its own), or admit fewer image patches in a step.",
                risk="low: image requests wait longer for their first token",
                verify="workbench diagnose tail-latency",
            ),
        ),
    )


CHECK = Check(ID, "Encoding images stops answers", mandatory=False, cost=33, test=test, needs=NEEDS, page=__doc__ or "")
