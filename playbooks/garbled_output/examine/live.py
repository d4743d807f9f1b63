"""The run whose answers are garbled: whether its server could be asked, and what it was set to that computes otherwise than one rank.

Each such setting can be taken back alone, greedy and with the same prompt: the one that makes the answer right names the class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from playbooks.garbled_output.examine.sent import Fact
from playbooks.garbled_output.facts import LIVE, SETTING
from playbooks.live_server import LiveServer
from runtime.control_client import ControlClient
from traces.errors import WorkbenchError
from traces.run import Run

# Setting -> whether a value computes otherwise, how it is taken back, and what it would then have been.
_SETTINGS: dict[str, tuple[Callable[[Any], bool], str, str]] = {
    "tp": (lambda value: value > 1, "--tp 1", "a slice of a head or a matrix, or a sum over ranks"),
    "dtype": (lambda value: value not in ("auto", "float32"), "--dtype float32", "a value that leaves the range of the dtype"),
    "kv_dtype": (lambda value: value != "auto", "--kv-dtype auto", "the scales of the cache"),
    "prefix_cache": (bool, "--prefix-cache false", "blocks of another prompt"),
    "placement": (bool, "no --placement", "the map of experts"),
    "redundant_experts": (bool, "--redundant-experts 0", "the map of experts"),
    "expert_memory": (bool, "no --expert-memory", "the experts that are read in"),
}


def live_facts(run: Run, server: LiveServer) -> Iterator[Fact]:
    state, placement = _told(run) if server.url is not None else ({}, {})
    yield LIVE, {
        "run": run.id, "folder": run.info.model_path, "asked": server.url is not None, "why": server.why, "exact": _exact(run, state),
    }  # fmt: skip
    for name, (differs, back, means) in _SETTINGS.items():
        value = run.info.config.get(name)
        if value is not None and differs(value):
            yield SETTING, {"name": name, "value": str(value), "back": back, "means": means}
    if placement.get("source", "initial") != "initial":
        value = f"version {placement['version']}, by {placement['source']}"
        yield SETTING, {"name": "placement", "value": value, "back": "serve again", "means": "the map of experts"}


def _told(run: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state and the placement in force, as the server tells them; empty where it may not be asked."""
    try:
        with ControlClient.for_run(run) as control:
            return control.state(), control.placement()
    except WorkbenchError:
        return {}, {}  # another user's server


def _exact(run: Run, state: dict[str, Any]) -> bool:
    """Whether all ranks compute in float32 on CPUs, and cache what they compute: then answers differ by the order of sums alone."""
    devices = {str(load["device"]) for load in state.get("loads", ())}
    config = run.info.config
    return devices == {"cpu"} and config.get("dtype") in ("auto", "float32") and config.get("kv_dtype") == "auto"
