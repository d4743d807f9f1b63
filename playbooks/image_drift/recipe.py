"""image.recipe: whether the recipe that a run is held against is more than the served folder's own.

A server that prepares pictures as its folder says proves nothing about what the folder says: constants of another model pass every
comparison with themselves, and simple pictures are still named. So a run is healthy only against a folder that was given, or the model
that is shipped, whose recipe is part of this package. Mandatory where a run is judged.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, not_applicable, passed, skipped
from playbooks.image_drift.probe import probes
from playbooks.image_drift.sight import answers


def test(case: Case) -> Result:
    asked = answers(case)
    if asked is None and not probes(case):
        return skipped("a run of ours that names its checkpoint folder: --run")
    if asked is None or "of" not in asked:
        return not_applicable("the folder was given")
    if asked["known"]:
        return passed(f"the recipe is that of {asked['folder']}")
    return skipped(
        "a folder whose preprocessor_config.json is known to be right, to hold the served one's against: `workbench diagnose image-drift "
        f"--run {asked['of']} --model FOLDER`, as the model was published"
    )


CHECK = Check("image.recipe", "The recipe itself", mandatory=True, cost=2, test=test, page=__doc__ or "")
