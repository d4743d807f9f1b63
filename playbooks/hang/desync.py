"""hang.desync: ranks call different things under the same number: another operation, another shape, another dtype.

What is seen: a hang, or an abort of innocent ranks that names sizes ("256 vs 64 bytes"); the rank that went another way often survives.
Usual reasons: a data-dependent branch, different shapes without padding, one rank with another configuration, a skipped collective.

How it is told apart: under one (group, sequence number) the operation, the dtypes, or (where all members must bring the same) the input
shapes differ. Sizes of an all-to-all may differ by design and are not compared. Whoever differs from the majority is named; without a
majority the group is, and no rank.
"""

from __future__ import annotations

from playbooks.attribution.wait_graph import minority
from playbooks.case import Case
from playbooks.check import Check, Result, passed
from playbooks.document import Remedy
from playbooks.finding import finding, listed, subject
from playbooks.hang.recorded import DUMPS, graph, named

ID = "hang.desync"


def test(case: Case) -> Result:
    found = graph(case)
    if not found.mismatches:
        return passed("under every number all ranks call the same operation, shapes and dtypes", 0, 0, "collectives")
    (group, seq), words = min(found.mismatches.items(), key=lambda item: item[0])
    odd = minority(words)
    said = "; ".join(f"{listed(ranks, 'rank')}: {what}" for what, ranks in sorted(words.items(), key=lambda item: -len(item[1])))
    about = subject("rank", ",".join(map(str, odd)), ranks=list(odd), group=group) if odd else subject("group", group, ranks=[])
    made = finding(
        case,
        ID,
        "critical",
        about,
        (f"{listed(odd, 'rank').capitalize()} " if odd else "Ranks ") + f"called something else as number {seq} of {named(found, group)}",
        f"Number {seq} of {named(found, group)} is not the same call everywhere: {said}. "
        + ("" if odd else "Neither is in the majority, so no rank is blamed."),
        0.95 if odd else 0.8,
        "established",
        evidence=(
            case.sql(
                f'SELECT count(DISTINCT op || \' \' || array_to_string(sizes, \' \') || array_to_string(dtypes, \' \')) AS n FROM flight '
                f"WHERE \"group\" = {case.literal(group)} AND seq = {seq} AND peer IS NULL",
                1, "different calls", said,
            ),
        ),
        remedy=(
            Remedy(
                text="Find the branch or the shape on which the ranks differ; compare their configurations.",
                risk="low: nothing is changed",
                command="TORCH_DISTRIBUTED_DEBUG=DETAIL; workbench fingerprint --diff A B",
                verify="workbench diagnose hang on the dumps of the next run",
            ),
        ),
    )  # fmt: skip
    return Result("fail", said, len(found.mismatches), 0, "collectives", (made,))


CHECK = Check(ID, "Ranks call different things", mandatory=True, cost=1, test=test, needs=(DUMPS,), page=__doc__ or "")
