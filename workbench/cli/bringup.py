"""`workbench bringup`: a model's first day, one new variable at a time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workbench.cli.context import Command, finish, json_option
from workbench.cli.output import answer, answer_json, note

if TYPE_CHECKING:
    from workbench.bringup.document import BringupDocument, Step

BAD_ANSWER = 3
MARKS = {"pass": "✓", "fail": "✗", "skipped": "-", "not reached": " "}


@click.command(cls=Command)
@click.argument("model")
@click.option("--tp", type=click.IntRange(1), help="Tensor-parallel ranks of one host.")
@click.option("--pp", type=click.IntRange(1), help="Pipeline stages.")
@click.option("--dp", type=click.IntRange(1), help="Replicas.")
@click.option("--ep", type=click.IntRange(1), help="Ranks that share the experts: dp x tp; 2 when no size is given.")
@click.option("--nodes", type=click.IntRange(1), help="Hosts for the steps over two and over all hosts.")
@click.option("--head", metavar="HOST", help="This host's address for the others.")
@click.option("--device", help="auto, cpu, cuda or cuda:N.")
@click.option("--dtype", help="auto, float32, bfloat16 or float16.")
@click.option("--config", "config_file", type=click.Path(dir_okay=False, exists=True), help="TOML file with settings of `workbench serve`.")
@click.option("--endpoint", metavar="URL", help="An engine that was started elsewhere: only what can be seen from outside is looked at.")
@click.option("--served-name", help="The model's name in that engine's API; its first one otherwise.")
@click.option("--baseline", metavar="FILE|RUN", help="Fingerprint of an environment in which all was well.")
@click.option("--accept", "accepted", multiple=True, metavar="KEY", help="A fact that may differ from it, or a pattern such as packages.*")
@click.option("--device-memory", metavar="SIZE", help="Of one device: 141GiB. A CPU rank gets its part of the host's otherwise.")
@click.option("--context", metavar="TOKENS", help="Tokens a sequence must be able to have; what the server takes otherwise.")
@click.option("--concurrency", type=click.IntRange(2, 256), default=8, show_default=True, help="Requests at once in the batch step.")
@click.option("--headers-only", is_flag=True, help="Do not read every value of the weights.")
@click.option("--start-seconds", type=click.FloatRange(min=1), default=600, show_default=True, help="Patience with a start.")
@click.option("--record", "folder", type=click.Path(path_type=Path, file_okay=False), help="Folder of the record.")
@click.option("--again", is_flag=True, help="Start over, whatever has passed before.")
@json_option()
def bringup(model: str, folder: Path | None, again: bool, as_json: bool, **options: Any) -> None:
    """Bring MODEL up in twelve steps, each with one new variable; stop at the first that fails, and resume there.

    environment, operators, weights, plan, one device, one host, two hosts, all hosts, serial request, batch, long, image. What has
    passed is kept as long as nothing that it depends on changes. The record folder holds bringup.json and manual.md, the skeleton of
    an adaptation manual. Exit code 3: a step failed.
    """
    from workbench.bringup.ladder import climb
    from workbench.bringup.record import Record
    from workbench.bringup.site import Site
    from workbench.cli.bringup_options import options_of
    from workbench.cli.model import resolve_model

    path = Path(resolve_model(model))
    asked = options_of(str(path), options)
    record = Record(folder) if folder is not None else Record.of(path, asked.endpoint)
    if again:
        record.forget()
    site = Site(path, asked, record.folder)
    try:
        document = climb(site, record, told=None if as_json else _say)
    finally:
        site.close()
    if as_json:
        answer_json(document)
    else:
        answer(_text(document))
    finish(BAD_ANSWER if document.status == "fail" else 0)


def _say(step: Step) -> None:
    seconds = "kept" if step.kept else f"{step.seconds or 0:.1f} s"
    note(f"{MARKS[step.status]} {step.name} ({seconds}): {step.summary}")


def _text(document: BringupDocument) -> str:
    if document.stopped_at is None:
        skipped = [step.name for step in document.steps if step.status == "skipped"]
        tail = f"; skipped: {', '.join(skipped)}" if skipped else ""
        number = sum(step.status == "pass" for step in document.steps)
        return f"{document.model} is up: {number} steps passed{tail}\nrecord: {document.record}"
    step = next(step for step in document.steps if step.name == document.stopped_at)
    lines = [f"stopped at {step.name}: {step.summary}", f"the variable just added: {step.adds}"]
    lines += [f"  {one.name}: {one.observed}" + (f" (expected {one.expected})" if one.expected else "") for one in step.evidence[:8]]
    lines += [f"next: {one}" for one in step.next]
    return "\n".join([*lines, f"then the same command again: it resumes at {step.name}", f"record: {document.record}"])
