"""Whether this machine and this installation can do what the workbench needs: a list of checks, each with what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

Status = Literal["ok", "warn", "fail", "unknown"]


@dataclass(frozen=True, slots=True)
class Check:
    """One answer. `unknown`: it could not be found out, which is not the same as ok. `remedy` is empty where nothing is to be done."""

    name: str
    status: Status
    observed: str
    remedy: str = ""


def examine(runs: Path, model: Path | None = None, deep: bool = False) -> Iterator[Check]:
    """All checks, each as it finishes. `runs` is the runs folder, `model` the shipped checkpoint, `deep` imports torch in a child."""
    for check in _checks(runs, model, deep):
        yield check()


def _checks(runs: Path, model: Path | None, deep: bool) -> Iterator[Callable[[], Check]]:
    from probes import installation, surroundings

    yield installation.python
    yield installation.packages
    yield installation.engine if deep else installation.torch
    yield surroundings.devices
    yield installation.store
    yield partial(surroundings.runs_folder, runs)
    yield surroundings.memory
    yield surroundings.cpus
    yield surroundings.shared_memory
    yield surroundings.open_files
    yield surroundings.loopback
    yield surroundings.otlp_ports
    yield surroundings.stacks
    yield surroundings.terminal
    if model is not None:
        yield partial(installation.model, model)
