"""What `diagnose` judges: a run, or a run made of what was given instead of one. Each symptom takes its own options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from traces.errors import BadAnswer, UsageError
from traces.run import Run, find_run

# Symptom -> the options by which something else than a run is judged. All but those below take --log.
TAKES = {
    "oom-on-load": ("model", "limit", "ranks"),
    "garbled-output": ("model", "reference", "endpoint", "dtype", "ranks"),
    "image-drift": ("model", "images", "observed", "grid", "endpoint"),
}
WITHOUT_LOGS = ("tail-latency", "garbled-output", "image-drift")  # no line that is read there speaks of these
BESIDE_A_RUN = ("model", "reference", "dtype", "ranks")  # what a run is held against; whatever else is judged is judged instead of it
FLAGS = {"logs": "--log", "images": "--image"}
PICTURES = "`workbench diagnose image-drift --image a.jpg --model FOLDER --observed pixels.npy`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options as given; None or empty where they were not. `run_given`: `run` is no default."""

    run: str
    run_given: bool = False
    logs: tuple[Path, ...] = ()
    model: str | None = None
    limit: str | None = None
    ranks: int | None = None
    reference: str | None = None
    endpoint: str | None = None
    dtype: str | None = None
    images: tuple[Path, ...] = ()
    observed: tuple[Path, ...] = ()
    grid: str | None = None

    @property
    def given(self) -> list[str]:
        """Names of the options that are there, but for the run's."""
        names = ("logs", "model", "limit", "ranks", "reference", "endpoint", "dtype", "images", "observed", "grid")
        return [name for name in names if getattr(self, name)]


def judged_run(symptom: str, asked: Asked) -> str:
    """Name or path of the run to diagnose. UsageError for options that do not go together and for a server that does not answer as one of
    OpenAI's kind, CheckpointError, Unreachable."""
    check(symptom, asked)
    try:
        return _judged(symptom, asked)
    except BadAnswer as error:  # no answer about the symptom, and so no exit code 3
        raise UsageError(error.message, error.hint) from error


def _judged(symptom: str, asked: Asked) -> str:
    if asked.logs:
        from probes.foreign.log_rows import run_of_logs

        return str(run_of_logs(asked.logs).path)
    if symptom == "garbled-output":
        return _examined(asked)
    if symptom == "image-drift":
        return _of_pictures(asked)
    return _on_paper(asked) if asked.given else asked.run


def check(symptom: str, asked: Asked) -> None:
    """UsageError for an option that the symptom does not take, or two things to judge: nothing is silently left out. For an
    address that is none, too."""
    takes = TAKES.get(symptom, ())
    for name in asked.given:
        if asked.run_given and (name not in BESIDE_A_RUN or symptom == "oom-on-load"):
            raise UsageError(f"--run and {_flag(name)} are two things to judge", "give one of them")
        if name == "logs":
            if symptom in WITHOUT_LOGS:
                raise UsageError(f"--log is not for {symptom}", "it is for loading, hangs and traffic between hosts")
            continue
        if name not in takes:
            known = [one for one, options in TAKES.items() if name in options]
            raise UsageError(f"{_flag(name)} is not for {symptom}", f"it is for {' and '.join(known)}")
        if asked.logs:
            raise UsageError(f"--log and {_flag(name)} are two things to judge", "give one of them")
    if asked.endpoint is not None:
        import httpx

        try:
            address = httpx.URL(asked.endpoint)
        except httpx.InvalidURL as error:
            raise UsageError(f"--endpoint {asked.endpoint[:80]} is no address: {error}", "as in http://localhost:8000") from error
        if address.scheme not in ("http", "https"):
            raise UsageError(f"--endpoint {asked.endpoint[:80]} is no address", "as in http://localhost:8000")


def _flag(name: str) -> str:
    return FLAGS.get(name, f"--{name}")


def _on_paper(asked: Asked) -> str:
    from playbooks.oom_on_load.on_paper import run_on_paper
    from runtime.budget.units import parse_size
    from workbench.cli.model import planned_model

    if asked.model is None or asked.limit is None:
        raise UsageError("--model is judged against a limit", "`workbench diagnose oom-on-load --model MODEL --limit SIZE`")
    return str(run_on_paper(planned_model(asked.model), parse_size(asked.limit), asked.ranks or 1).path)


def _examined(asked: Asked) -> str:
    """An examination of a folder; or of the folder that a run of ours serves, and of its server while it lives. One that was made
    before is judged as it stands."""
    from playbooks.garbled_output.examine.run import EXAMINATION, Question, examine
    from workbench.cli.model import SHIPPED, resolve_model

    if not asked.given and find_run(asked.run).info.engine == EXAMINATION:
        return asked.run
    run = find_run(asked.run) if asked.model is None or asked.run_given else None
    model = asked.model or served_folder(find_run(asked.run))
    good = resolve_model(asked.reference) if asked.reference == SHIPPED else asked.reference
    question = Question(Path(resolve_model(model)), good, asked.endpoint, run, asked.dtype or "float32", asked.ranks or 1)
    return str(examine(question).path)


def served_folder(run: Run) -> str:
    """The checkpoint folder of a run of ours. UsageError where it names none that is on this host."""
    path = run.info.model_path
    if path and Path(path).is_dir():
        return path
    raise UsageError(f"run {run.id} names no checkpoint folder that is on this host", "give it with --model FOLDER")


def _of_pictures(asked: Asked) -> str:
    """Pictures and dumps, the answers of a server, or a run of ours."""
    from workbench.cli.model import planned_model

    if not asked.given or (asked.given == ["model"] and asked.run_given):
        return _seen_by_a_run(asked)
    if asked.model is None:
        raise UsageError("--model is missing: the folder with preprocessor_config.json", PICTURES)
    folder = Path(planned_model(asked.model))
    if asked.endpoint is not None:
        if asked.images or asked.observed or asked.grid:
            raise UsageError("--endpoint sends pictures of its own", "leave out --image, --observed and --grid")
        from playbooks.image_drift.asked import run_of_endpoint

        return str(run_of_endpoint(asked.endpoint, folder).path)
    if not asked.images or len(asked.images) != len(asked.observed):
        counted = f"{len(asked.images)} pictures and {len(asked.observed)} tensors"
        raise UsageError(counted, f"give --observed once for every --image: {PICTURES}")
    from playbooks.image_drift.probe import run_of_probes

    return str(run_of_probes(folder, list(zip(asked.images, asked.observed, strict=True)), grid_of(asked.grid)).path)


def _seen_by_a_run(asked: Asked) -> str:
    """What a run of ours recorded of pictures and, while it lives, what its server makes of them; the run itself where it names no
    checkpoint to hold that against, and where it holds pictures already."""
    from playbooks.image_drift.asked import run_of_run
    from playbooks.image_drift.probe import FOLDER
    from workbench.cli.model import planned_model

    run = find_run(asked.run)
    served = Path(run.info.model_path or "-").is_dir()
    if (asked.model is None and not served) or (run.path / FOLDER).exists():
        return asked.run
    return str(run_of_run(run, Path(planned_model(asked.model)) if asked.model else None).path)


def grid_of(text: str | None) -> tuple[int, int, int] | None:
    """ "1,38,56" -> (1, 38, 56): temporal, height and width in patches. UsageError."""
    if text is None:
        return None
    parts = text.split(",")
    if len(parts) != 3 or not all(part.strip().isdecimal() and len(part) < 12 and 0 < int(part) < 1 << 20 for part in parts):
        raise UsageError(f"--grid {text[:40]} is no grid", "give temporal, height and width in patches, as 1,38,56")
    t, h, w = (int(part) for part in parts)
    return t, h, w
