"""From the options of `workbench bringup` to what a ladder is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.budget.units import parse_count, parse_size
from runtime.serve_config import ServeConfig, read_config
from workbench.bringup.site import Options

RANKS = 2  # of one host when nothing else was said: the fewest that have to talk to one another
SIZES = ("tp", "pp", "dp", "ep")
SETTINGS = (*SIZES, "nodes", "head", "device", "dtype")


def options_of(model: str, options: Mapping[str, Any]) -> Options:
    """UsageError for settings that contradict one another, or a baseline that cannot be read."""
    given = {name: options[name] for name in SETTINGS if options[name] is not None}
    sized = bool(given.keys() & SIZES)
    if options["config_file"] is not None:
        config = read_config(options["config_file"], model=model, **given)
        sized = sized or any(getattr(config, name) not in (1, None) for name in SIZES)
    else:
        if not sized:
            given["ep"] = RANKS
        config = ServeConfig(model=model, **given).checked()
    return Options(
        config=config,
        layout_given=sized,
        endpoint=options["endpoint"],
        served_name=options["served_name"],
        baseline=_baseline(options["baseline"]),
        accepted=tuple(options["accepted"]),
        device_memory=parse_size(options["device_memory"]) if options["device_memory"] is not None else None,
        context=parse_count(options["context"]) if options["context"] is not None else None,
        concurrency=options["concurrency"],
        every_value=not options["headers_only"],
        start_seconds=options["start_seconds"],
    )


def _baseline(word: str | None) -> dict[str, Any] | None:
    if word is None:
        return None
    from workbench.cli.fingerprint import load

    return load(word)
