"""image.recorded-grids: the pictures that a run's requests brought were cut into other grids than the folder's recipe says.

A server of ours records sizes, grids and tokens of every picture. They are exact, so that one that differs is enough; the pixels
themselves are not recorded, and a grid that is right says nothing about them.
"""

from __future__ import annotations

from typing import Any

from playbooks.case import Case
from playbooks.check import Check, Result, passed, skipped
from playbooks.document import Remedy
from playbooks.finding import finding, subject
from playbooks.image_drift.sight import answers


def test(case: Case) -> Result:
    asked = answers(case)
    if asked is None or "recorded" not in asked:
        return skipped("a run of ours: --run")
    if not asked["recorded"]:
        return skipped(f"sizes and grids of pictures: no request of run {asked['of']} recorded any")
    every = (one for kind in asked["recorded"] for one in zip(kind["sizes"], kind["grids"], kind["wanted"], strict=True))
    wrong = [one for one in every if one[1] != one[2]]
    if wrong:
        (height, width), grid, wanted = wrong[0]
        said = f"A picture of {width} x {height} pixels was cut into {_words(grid)} patches; the recipe says {_words(wanted)}."
        smaller = {_area(seen) < _area(right) for _, seen, right in wrong}
        cause = "image.pixel-budget" if len(smaller) == 1 else "image.resize-geometry"  # all smaller, or all larger: another budget
        return _failed(case, cause, "Requests brought pictures into other grids", said, _words(grid), _words(wanted))
    for kind in asked["recorded"]:
        if kind["tokens"] != kind["features"]:
            said = f"Pictures of {kind['requests']} requests took {kind['tokens']} tokens for {kind['features']} features."
            return _failed(
                case, "image.placeholder-mismatch", "The number of placeholders is wrong", said, kind["tokens"], kind["features"]
            )
    counted = sum(kind["requests"] for kind in asked["recorded"])
    return passed(f"the pictures of {counted} requests have the grids that the recipe says", 0, 0, "wrong grids")


def _area(grid: list[int] | None) -> int:
    return 0 if grid is None else grid[1] * grid[2]


def _words(grid: list[int] | None) -> str:
    return "none" if grid is None else f"{grid[1]} x {grid[2]}"


def _failed(case: Case, cause: str, title: str, said: str, seen: Any, wanted: Any) -> Result:
    made = finding(
        case, cause, "error", subject("image", "requests"), title, said, 0.9, "supported",
        evidence=(case.derived("grids in the spans image.preprocess of the run, against the folder's recipe", seen, wanted, kind="span"),),
        remedy=(Remedy(text="Serve with the preprocessor_config.json that the model was trained with.", risk="low"),),
    )  # fmt: skip
    return Result("fail", said, seen, wanted, "", (made,))


CHECK = Check("image.recorded-grids", "Grids of the pictures that came", mandatory=False, cost=3, test=test, page=__doc__ or "")
