"""garbled.numeric-overflow: values leave what the compute dtype can hold.

What is seen: one symbol repeated for ever. The largest of a row of NaN is id 0 (S2.2).

How it is told apart: the first tap that is not finite, in float16, while the stored weights are finite.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, passed
from playbooks.garbled_output.damage import of_kinds
from playbooks.garbled_output.facts import FINITE, fact, need
from playbooks.garbled_output.verdict import verdict

ID = "garbled.numeric-overflow"
HALF = 65504.0  # largest float16


def test(case: Case) -> Result:
    own = fact(case, FINITE) or {}
    if own.get("first") is None or of_kinds(case, ("non-finite",)):
        told = f"the largest value is {own.get('largest'):.4g}, in {own.get('where')}"
        return passed(f"{told}{'; float16 could not hold it' if own['largest'] > HALF else ''}", own.get("largest"), HALF)
    summary = f"{own['first']} is not finite at {own['positions']} of {own['count']} positions in {own['dtype']}, from {own['from']} on"
    if own["dtype"] != "float16":
        remedy = f"Look at the weights and settings of {own['first']}: {own['dtype']} holds values far above any activation."
        evidence = FINITE, "first", ""
        return verdict(case, ID, "Values are not finite", summary, remedy, evidence, own["first"], score=0.5, basis="supported")
    remedy = "Compute in bfloat16 or float32: --dtype bfloat16."
    return verdict(case, ID, "Values overflow the compute dtype", summary, remedy, (FINITE, "first", ""), own["first"], HALF, score=0.95)


CHECK = Check(ID, "Overflow", True, 40, test, (need(FINITE, "a forward pass", "a model that can be loaded"),), __doc__ or "")
