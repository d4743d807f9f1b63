"""`workbench drill`: produces labelled faults, and measures how often the playbook names them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from workbench.cli.context import Command, finish, json_option
from workbench.cli.output import answer, answer_json, table

if TYPE_CHECKING:
    from playbooks.drills.document import DrillReport

# DESIGN section 9: first finding right.
ACCURATE = 0.90
NOT_ACCURATE = 3


@click.group()
def drill() -> None:
    """Produce labelled faults on a live server, and measure how often the playbook names them."""


@drill.command(name="list", cls=Command)
@click.argument("symptom", required=False)
@json_option()
def list_drills(symptom: str | None, as_json: bool) -> None:
    """List the drills of SYMPTOM, or all."""
    from playbooks.drills.document import DrillList, DrillListed
    from playbooks.drills.session import BOOKS, drills_of

    listed = tuple(
        DrillListed(id=one.id, symptom=name, expected=one.expected, title=one.title, strengths=one.doses)
        for name in ([symptom] if symptom else BOOKS)
        for one in drills_of(name)
    )
    if as_json:
        answer_json(DrillList(drills=listed))
    else:
        rows = [(one.symptom, one.id, one.expected, one.title, ", ".join(one.strengths)) for one in listed]
        answer(table(("symptom", "drill", "first finding", "what is done", "strengths, weakest first"), rows))


@drill.command(name="run", cls=Command)
@click.argument("symptom")
@click.option("--id", "ids", multiple=True, metavar="DRILL", help="Only this drill; may be given more than once.")
@click.option(
    "--seeds", type=click.IntRange(1), default=1, show_default=True, help="Runs of each strength; a seed chooses place and traffic."
)
@click.option("--strengths", type=click.IntRange(1), default=2, show_default=True, help="Strengths of each fault, the strongest ones.")
@click.option("--ranks", type=click.IntRange(2, 16), default=4, show_default=True, help="Ranks to serve on.")
@click.option("--keep", is_flag=True, help="Keep the runs, with their labels.")
@json_option()
def run_drills(symptom: str, ids: tuple[str, ...], seeds: int, strengths: int, ranks: int, keep: bool, as_json: bool) -> None:
    """Run drills of SYMPTOM, one server after another (half a minute each), and say how often the first finding was right.

    Every run is diagnosed on a copy without command lines, settings, plans and labels. Exit code 3 if fewer than 90 % of the faults
    were named first, a control was not found healthy, or the copy was judged otherwise than the run itself. Ctrl-C stops the server
    and keeps nothing.
    """
    from playbooks.drills.drill import HEALTHY
    from playbooks.drills.score import report
    from workbench.cli.drilling import run_all

    made = report(symptom, run_all(symptom, ids, seeds, strengths, ranks, keep))
    if as_json:
        answer_json(made)
    else:
        answer(as_text(made))
    accurate = made.accuracy_at_1 is None or made.accuracy_at_1 >= ACCURATE
    honest = all(one.unlabelled and (one.correct or one.expected != HEALTHY) for one in made.drills)
    finish(0 if accurate and honest else NOT_ACCURATE)


def as_text(made: DrillReport) -> str:
    rows = [(one.id, one.strength, one.seed, one.expected, one.first or "nothing", _word(one), one.seconds) for one in made.drills]
    lines = [table(("drill", "strength", "seed", "expected first", "found first", "", "seconds"), rows), ""]
    if made.accuracy_at_1 is not None and made.interval is not None:
        low, high = made.interval
        lines.append(
            f"first finding right: {made.accuracy_at_1:.0%} of {made.faults} faults [{low:.0%}, {high:.0%}], macro F1 {made.macro_f1:.2f}"
        )
        lines.append(f"place right: {_share(made.located_share)}; abstentions: {made.abstentions}")
    if made.controls:
        lines.append(f"false alarms: {made.false_alarms} of {made.controls} healthy runs")
    if labelled := sum(not one.unlabelled for one in made.drills):
        lines.append(f"judged otherwise without their labels: {labelled}")
    return "\n".join(lines)


def _share(value: Any) -> str:
    return "nothing to place" if value is None else f"{value:.0%}"


def _word(one: Any) -> str:
    if not one.correct:
        return "wrong"
    return "right, place wrong" if one.located is False else "right"
