"""A copy of a run without anything that could tell what was drilled: command lines, settings, variables, plans, reasons, labels.

What is measured stays as it is. The verdict on the copy must be the one on the original: a playbook that reads a label is found out.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from playbooks.drills.leak import LEAK
from playbooks.image_drift.probe import FOLDER as PICTURES
from runtime.forward_variable import FORWARD_STYLE
from runtime.load_variable import LOAD_STYLE
from traces.database import connect
from traces.run import Run, create_run
from traces.store import open_run

# Facts of the environment that a drill sets, by the last part of their name.
INJECTED = ("PYTHONPATH", LEAK, LOAD_STYLE, FORWARD_STYLE)

# Labels in the store. Numbers and times stay; so does placement.source, which an engine knows of itself.
_CLEAN = (
    "UPDATE event SET attrs = '{}' WHERE kind IN ('traffic', 'config', 'window', 'rebalance')",
    "UPDATE placement SET reason = ''",
    """UPDATE span SET attrs = json_merge_patch(attrs, '{"workbench.phase": null, "question": null}') WHERE name = 'client.request'""",
    "UPDATE resource SET attrs = '{}'",
    "DELETE FROM document",
    "DELETE FROM log",
)


def stripped(run: Run, root: Path) -> Run:
    """The copy, a closed run under `root`. Raises what opening the run raises."""
    with open_run(run):
        pass  # brings in what producers left behind
    info = run.info
    copy = create_run(
        engine=info.engine,
        model=info.model,
        root=root,
        world_size=info.world_size,
        layout=info.layout,
        fingerprints={name: _facts(facts) for name, facts in info.fingerprints.items()},
    )
    shutil.copyfile(run.database, copy.database)
    if (run.path / PICTURES).is_dir():
        shutil.copytree(run.path / PICTURES, copy.path / PICTURES)
    with connect(copy.database) as connection:
        for statement in _CLEAN:
            connection.execute(statement)
    copy.update(state="closed")
    return copy


def _facts(facts: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in facts.items():
        if name.split(".")[-1] in INJECTED or name == "argv":
            continue
        kept[name] = _facts(value) if isinstance(value, dict) else value
    return kept
