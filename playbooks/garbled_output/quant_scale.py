"""garbled.quant-scale: the scales of quantised weights were never written, or are not applied.

How it is told apart: scales that are all exactly one, or weights whose spread after scaling is far from what trained weights have:
standard deviations of 0.005 to 0.1 (S2.3, garbled.quant-scale); a factor of 100 outside is allowed for.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, not_applicable, passed, skipped
from playbooks.garbled_output.damage import NEED
from playbooks.garbled_output.facts import SCALES, fact
from playbooks.garbled_output.verdict import verdict

ID = "garbled.quant-scale"
LARGEST = 10.0  # standard deviation of a weight after its scale


def test(case: Case) -> Result:
    own = fact(case, SCALES)
    if own is None:
        return not_applicable("no weight of the checkpoint has a scale of its own")
    spread = own.get("largest_spread")
    ones, wide = own["ones"], spread is not None and spread > LARGEST
    if spread is None:
        return skipped(f"scales that can be judged: of {own['tensors']} none belongs to a weight of eight bits that can be read")
    if not wide:
        return passed(f"{ones} of {own['read']} scales are all ones, weights spread over at most {spread}", spread, LARGEST, "std")
    summary = f"{ones} of {own['read']} scale tensors are all ones, as {own['names'][:1]}; weights are spread over {spread:.3g}"
    remedy = "Convert the checkpoint again: the scales were not written, or were applied and left in the file."
    return verdict(
        case, ID, "Scales of quantised weights are not applied", summary, remedy, (SCALES, "largest_spread", ""), spread, LARGEST, "std"
    )


CHECK = Check(ID, "Scales of quantised weights", True, 23, test, (NEED,), __doc__ or "")
