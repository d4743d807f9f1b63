"""`workbench diagnose`: runs a playbook over a run, and on request its remedy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from traces.errors import UsageError
from workbench.cli.context import Command, finish, json_option, run_option, session
from workbench.cli.output import answer, answer_json, note

if TYPE_CHECKING:
    from playbooks.document import Diagnosis


@click.command(
    cls=Command,
    epilog="""\b
Exit codes: 0 healthy, or a remedy was applied and verified; 3 problem; 4 warnings only; 5 inconclusive.
""",
)
@click.argument("symptom")
@run_option()
@click.option("--log", "logs", multiple=True, type=click.Path(path_type=Path, dir_okay=False), help="An engine's log instead of a run.")
@click.option("--model", metavar="MODEL", help="oom-on-load: on paper; garbled-output: its files; image-drift: its recipe, also for --run.")
@click.option("--limit", metavar="SIZE", help="oom-on-load: the limit of a rank.")
@click.option("--ranks", type=click.IntRange(1), help="oom-on-load, garbled-output: so many ranks share the model; else 1.")
@click.option("--reference", metavar="GOOD", help="garbled-output: a good folder, a file of taps, or transformers.")
@click.option("--dtype", help="garbled-output: compute MODEL in this dtype; else float32.")
@click.option("--endpoint", metavar="URL", help="garbled-output, image-drift: ask a server of any engine that serves MODEL.")
@click.option("--image", "images", multiple=True, type=click.Path(path_type=Path), help="image-drift: a picture ...")
@click.option(
    "--observed", multiple=True, type=click.Path(path_type=Path), help="... the tensor an engine made of it: npy, npz, safetensors, pt ..."
)
@click.option("--grid", metavar="T,H,W", help="... and its grid in patches, where the file does not name it.")
@click.option("--baseline", metavar="RUN", help="A run from when all was well, to compare with.")
@click.option("--last", metavar="SECONDS", type=click.FloatRange(min=0, min_open=True), help="Judge only the last so many seconds.")
@click.option("--apply", "carry_out", is_flag=True, help="Carry out a safe remedy on the live run, and verify it.")
@click.option("--markdown", type=click.Path(path_type=Path, dir_okay=False), help="Also write the answer as Markdown; - for stdout.")
@json_option()
def diagnose(
    symptom: str,
    run_name: str,
    baseline: str | None,
    last: float | None,
    carry_out: bool,
    markdown: Path | None,
    as_json: bool,
    **instead: Any,
) -> None:
    """Say what is wrong with a run: what, where, how sure, how it is known, what to do.

    SYMPTOM is what was noticed, for example tail-latency.
    """
    from playbooks.exit_codes import exit_code
    from workbench.cli.diagnosing import diagnose_run
    from workbench.cli.judged import Asked, judged_run

    given = click.get_current_context().get_parameter_source("run_name") is not ParameterSource.DEFAULT
    run_name = judged_run(symptom, Asked(run=run_name, run_given=given, **instead))
    watched = not as_json and not session().quiet and sys.stderr.isatty()
    found = diagnose_run(symptom, run_name, baseline, last, carry_out, watched)
    if as_json:
        answer_json(found)
    elif str(markdown) != "-":
        from workbench.cli.diagnosis_text import as_text

        answer(as_text(found))
    if markdown is not None:
        write_markdown(found, markdown)
    finish(int(exit_code(found.verdict, found.findings, found.applied)))


def write_markdown(found: Diagnosis, path: Path) -> None:
    from playbooks.markdown import markdown

    text = markdown(found)
    if str(path) == "-":
        answer(text)
        return
    try:
        path.write_text(text)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "give another file to --markdown") from error
    note(f"written to {path}")
