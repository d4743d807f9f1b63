"""`workbench demo`: the whole workbench, once, on this machine."""

from __future__ import annotations

import signal

import click

from workbench.cli.context import Command, finish, json_option, session
from workbench.cli.output import answer, answer_json, note

NOT_SHOWN = 3


@click.command(cls=Command)
@click.option("--ranks", type=click.IntRange(2, 16), default=4, show_default=True, help="Ranks to serve on.")
@click.option("--seed", type=int, default=0, show_default=True, help="Chooses the prompts and the rank that is overloaded.")
@json_option()
def demo(ranks: int, seed: int, as_json: bool) -> None:
    """Serve the shipped model, break it, diagnose it, repair it live, and show before and after.

    Takes less than three minutes on two cores, and leaves a run, a report, and no process. Exit code 3 if something it set out
    to show did not hold.
    """
    from workbench.demo.narrator import Narrator
    from workbench.demo.scenario import Scenario
    from workbench.demo.stages import demonstrate
    from workbench.demo.words import as_text, next_commands

    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    done = demonstrate(Scenario(ranks=ranks, seed=seed), Narrator(quiet=session().quiet))
    if as_json:
        answer_json(done.to_dict())
    else:
        answer(as_text(done))
        note(next_commands(done))
    finish(0 if done.ok else NOT_SHOWN)
