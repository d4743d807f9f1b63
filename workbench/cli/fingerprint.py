"""`workbench fingerprint`: this environment, or what differs between two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from traces.errors import UsageError
from workbench.cli.context import Command, json_option
from workbench.cli.output import answer, answer_json, note, table

DIFF_SCHEMA = "workbench.fingerprint-diff.v1"


@click.command(cls=Command)
@click.option("--diff", "pair", nargs=2, metavar="A B", help="What differs: runs, JSON files, or one producer of a run as RUN:rank0.")
@click.option("--volatile", is_flag=True, help="Compare also what differs between healthy runs (host names, pids, ports).")
@click.option("--torch", "torch_info", is_flag=True, help="Import torch and ask it, too (seconds).")
@click.option("--model", type=click.Path(exists=True, file_okay=False), help="Hash this model's configuration and headers, too.")
@json_option()
def fingerprint(pair: tuple[str, str] | None, volatile: bool, torch_info: bool, model: str | None, as_json: bool) -> None:
    """Show the environment of this machine, or what differs between two recorded ones."""
    from probes.fingerprint import diff, flat
    from probes.fingerprint import fingerprint as take

    if pair is None:
        found = take(torch_info=torch_info, model=model)
        if as_json:
            answer_json(found)
        else:
            answer(table(("fact", "value"), [(key, _text(value)) for key, value in flat(found)]))
        return
    left, right = load(pair[0]), load(pair[1])
    differences = diff(left, right, volatile=volatile)
    if as_json:
        changes = [{"key": d.key, "a": d.a, "b": d.b} for d in differences]
        answer_json({"schema": DIFF_SCHEMA, "a": pair[0], "b": pair[1], "differences": changes})
    elif differences:
        answer(table(("fact", pair[0], pair[1]), [(d.key, _text(d.a), _text(d.b)) for d in differences]))
    else:
        note("no difference")


def load(word: str) -> dict[str, Any]:
    """A fingerprint by name: a JSON file, a run (its first rank), or RUN:PRODUCER. Raises UsageError, UnknownRun."""
    if Path(word).is_file():
        try:
            document = json.loads(Path(word).read_text())
        except (OSError, ValueError) as error:
            raise UsageError(f"{word} is no fingerprint: {error}", "`workbench fingerprint --json > FILE` writes one") from error
        if not isinstance(document, dict):
            raise UsageError(f"{word} is no fingerprint: it holds no JSON object", "`workbench fingerprint --json > FILE` writes one")
        return document
    from traces.run import find_run

    name, _, producer = word.partition(":")
    run = find_run(name)
    known = run.info.fingerprints
    if not known:
        raise UsageError(f"run {run.id} holds no fingerprint", "its ranks had not started; compare another run")
    chosen = producer or sorted(known)[0]
    if producer.isdigit():
        chosen = f"rank{producer}"
    if chosen not in known:
        raise UsageError(f"run {run.id} holds no fingerprint of {producer}", f"it holds {', '.join(sorted(known))}")
    return dict(known[chosen])


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)
