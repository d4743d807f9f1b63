"""The account of a step on a live server: a rank is really slowed, and what the steps take longer is attributed to it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from playbooks.case import Case
from playbooks.drills.drill import HEALTHY, Dose, Drill, Truth
from playbooks.drills.lab import WARM_UP, lab
from playbooks.drills.pressure import interrupted
from playbooks.tail_latency.account import account, in_words
from playbooks.tail_latency.drills import STEPS, prompts
from playbooks.window import choose
from traces.run import Run
from traces.store import open_run

RANK = 1


def measured(run: Run, since: int, until: int) -> tuple[float, Case]:
    """Mean ns of a step per prompt token, and the case of the window."""
    with open_run(run) as store:
        case = Case(run, store, choose(store, since, until))
        per_token = float(case.steps.wall.sum() / np.maximum(case.steps.tokens.sum(), 1))
        account(case)  # everything is read while the store is open
        case.contended  # noqa: B018
        return per_token, case


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_slowed_rank_costs_what_is_attributed_to_it(tmp_path: Path) -> None:
    dose = Dose(0, 0)
    drill = Drill("slowed", HEALTHY, "", lambda live, dose: Truth())
    with lab(drill, dose, 2, tmp_path, lambda words: None) as live:
        live.warm_up(prompts(dose, requests=WARM_UP))
        live.send_steps(prompts(dose, concurrency=4), STEPS)
        well = live.since
        with interrupted(live.pid(RANK), 20.0, 20.0):
            live.send_steps(prompts(dose, concurrency=4), STEPS)
        slowed, run = live.since, live.run
    before, quiet = measured(run, well, slowed)
    after, case = measured(run, slowed, 2**62)
    if quiet.contended:
        pytest.skip("other work on this host decides how long a step takes")
    found = account(case)
    longer = (after - before) * case.steps.tokens.mean()
    part = found.parts["speed"].mean
    close = abs(part.value - longer) <= 0.25 * longer
    assert close or part.low <= longer <= part.high, (longer / 1e6, in_words(found))
