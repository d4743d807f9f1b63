"""An examination as a run: facts in, a closed run out, which the playbook judges like any other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playbooks.garbled_output.examine.endpoint import CHUNK, endpoint_facts
from playbooks.garbled_output.examine.files import file_facts
from playbooks.garbled_output.examine.live import live_facts
from playbooks.garbled_output.examine.sent import Fact, folder_facts
from playbooks.live_server import live_server
from probes.recorder import Recorder
from traces.errors import UsageError
from traces.run import Run, whole_run

EXAMINATION = "examination"  # engine of such a run
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Question:
    """`model`: the folder that is suspected. `reference`: a good folder, a file of taps, or `transformers`. `endpoint`: URL of a server
    that serves the folder; `run`: a run of ours that does, whose server is asked while it lives. `ranks`: lanes to compute on beside
    one. `deep`: read every value (None: where the files are small)."""

    model: Path
    reference: str | None = None
    endpoint: str | None = None
    run: Run | None = None
    dtype: str = "float32"
    ranks: int = 1
    deep: bool | None = None


def examine(question: Question, root: Path | None = None) -> Run:
    """UsageError for a folder or reference that cannot be used, Unreachable and BadAnswer for an endpoint; what is wrong with the folder
    becomes facts."""
    if not (question.model / "config.json").is_file():
        raise UsageError(f"no config.json in {question.model}", "give a checkpoint folder")
    with whole_run(engine=EXAMINATION, model=question.model.name, root=root, latest=False, world_size=1, layout={}) as run:
        recorder = Recorder.open(run, "examination", ship=False)
        try:
            for found in _facts(question):
                _write(recorder, found)
        finally:
            recorder.close()
    return run


def _facts(question: Question) -> Iterator[Iterable[Fact]]:
    """Cheapest first."""
    yield folder_facts(question.model)
    yield file_facts(question.model, question.deep)
    reference = Path(question.reference) if question.reference else None
    if reference is not None and reference.is_dir():
        yield ((f"{kind}_reference", values) for kind, values in folder_facts(reference))
    yield _computed(question)
    endpoint = question.endpoint
    if endpoint is None and question.run is not None:
        server = live_server(question.run)
        endpoint = server.url
        yield live_facts(question.run, server)
    if endpoint is not None:
        yield endpoint_facts(endpoint, question.model, _chunk(question.run))


def _chunk(run: Run | None) -> int:
    steps = None if run is None else run.info.config.get("max_tokens_per_step")
    return steps if isinstance(steps, int) else CHUNK


def _computed(question: Question) -> Iterable[Fact]:
    import torch

    from playbooks.garbled_output.examine.forward import Asked, forward_facts

    if question.dtype not in DTYPES:
        raise UsageError(f"no dtype {question.dtype!r}", f"choose one of {', '.join(DTYPES)}")
    return forward_facts(Asked(question.model, question.reference, getattr(torch, question.dtype), question.ranks))


def _write(recorder: Any, found: Iterable[Fact]) -> None:
    for kind, values in found:
        recorder.event(kind, **values)
