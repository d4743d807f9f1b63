"""load.download: the weights are not on this machine, and are fetched first.

What is seen: nothing is read from the disk for minutes; the second start is fast.

How it is told apart: by the seconds the engine states for it.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, not_applicable, passed
from playbooks.document import Remedy
from playbooks.slow_load.account import NEED, slow, start

ID = "load.download"
SHARE = 0.3  # of the start (our choice)


def test(case: Case) -> Result:
    found = start(case)
    spent = float(found.facts.get("download_seconds") or 0)
    if not spent:
        return not_applicable("no download is stated")
    share = spent / max(found.seconds, 1e-9)
    said = f"downloading took {spent:.0f} s of {found.seconds:.0f} s"
    if share < SHARE:
        return passed(said, round(share, 3), SHARE, "of the start")
    return slow(
        case, ID, "The weights are downloaded first", [], spent, said[0].upper() + said[1:] + ".", share, SHARE, "of the start",
        Remedy(text="Fetch the checkpoint to a local disk before the start.", risk="low", verify="workbench diagnose slow-load --log FILE"),
        0.95,
    )  # fmt: skip


CHECK = Check(ID, "Downloading", mandatory=False, cost=8, test=test, needs=(NEED,), page=__doc__ or "")
