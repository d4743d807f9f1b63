"""garbled.sampling-defaults: the checkpoint asks for sampling that makes nonsense likely, or other sampling than the reference.

Thresholds: temperature above 1.5 flattens every distribution, a repetition penalty above 1.5 punishes ordinary words (judged; no
published generation_config known to us exceeds 1.5 and 1.2). A difference from the reference is a warning: it may be wanted.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, passed
from playbooks.garbled_output.facts import SAMPLING, TEMPLATE, facts, need
from playbooks.garbled_output.verdict import verdict, where

ID = "garbled.sampling-defaults"
REMEDY = "Set it in generation_config.json as the model was published, or in the request."
MOST = {"temperature": 1.5, "repetition_penalty": 1.5}


def test(case: Case) -> Result:
    own = {one["name"]: one for one in facts(case, SAMPLING)}
    good = {one["name"]: one["value"] for one in facts(case, SAMPLING + "_reference")}
    title = "Sampling settings that make nonsense likely"
    for name, most in MOST.items():
        value = _number(own.get(name, {}).get("value"))
        if value is not None and value > most and own[name]["sampling"]:
            summary = f"generation_config.json asks for {name} {value:g}"
            return verdict(case, ID, title, summary, REMEDY, (SAMPLING, "value", where("name", name)), value, most, name)
    other = sorted(name for name in good if name in own and own[name]["value"] != good[name])
    if other:
        said = ", ".join(f"{name} {own[name]['value']}, not {good[name]}" for name in other)
        return verdict(
            case, ID, title, said, REMEDY, (SAMPLING, "value", where("name", other[0])), score=0.5, severity="warning", basis="supported"
        )
    return passed(f"{len(own)} settings, none out of the ordinary")


def _number(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None


CHECK = Check(ID, "Sampling settings", True, 14, test, (need(TEMPLATE, "a checkpoint folder", "--model FOLDER"),), __doc__ or "")
