"""`workbench doctor`: does this installation work?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from workbench.cli.context import Command, finish, json_option
from workbench.cli.output import answer, answer_json
from workbench.cli.style import Role, paint

if TYPE_CHECKING:
    from probes.doctor import Check

SCHEMA = "workbench.doctor.v1"
FAILED = 3
MARKS: dict[str, tuple[str, Role]] = {"ok": ("✓", "good"), "warn": ("!", "warn"), "fail": ("✗", "bad"), "unknown": ("?", "dim")}


@click.command(cls=Command)
@json_option()
def doctor(as_json: bool) -> None:
    """Check this installation. Exit code 3 if something needed is missing."""
    from probes.doctor import examine
    from runtime.shipped import shapes_moe
    from traces.run import runs_root

    found = []
    for check in examine(runs_root(), shapes_moe(), deep=True):
        found.append(check)
        if not as_json:
            answer(line(check))
    failed = [check.name for check in found if check.status == "fail"]
    if as_json:
        answer_json({"schema": SCHEMA, "ok": not failed, "checks": found})
    finish(FAILED if failed else 0)


def line(check: Check) -> str:
    """`✓ torch       2.13.0, back ends: gloo`, and what to do about it when it is not well."""
    mark, role = MARKS[check.status]
    text = f"{paint(mark, role)} {check.name:<11} {check.observed}"
    return f"{text}\n              {paint(check.remedy, 'dim')}" if check.remedy else text
