"""Builds the page: asks every section for its figures, fills the template, writes one file that needs nothing else.

Everything that came from a run (names, messages, file paths, evidence) passes through the template's escaping; figures travel as
JSON that cannot end its own script element. The page makes no request: plotly.js is embedded once, and fonts are the reader's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path

from jinja2 import DictLoader, Environment, StrictUndefined
from plotly.offline import get_plotlyjs

from traces.errors import NotWritable
from traces.run import Run
from traces.store import Store, open_run
from workbench.report import collectives, experts, findings, links, memory, provenance, requests, stacks, summary, throughput, timeline
from workbench.report.scope import Scope, scope_of
from workbench.report.section import Figure, Missing, Section
from workbench.report.units import number
from workbench.version import version

SECTIONS: tuple[Callable[[Store, Scope], Section | None], ...] = (
    links.section,
    throughput.section,
    requests.section,
    experts.section,
    collectives.section,
    timeline.section,
    memory.section,
    stacks.section,
    provenance.section,
)


@dataclass(frozen=True, slots=True)
class Written:
    """A page on disk: how large it is, what it shows, and what was not measured."""

    path: Path
    bytes: int
    figures: tuple[str, ...]
    missing: tuple[str, ...]


def write_report(run: Run, output: Path | None = None) -> Written:
    """Writes the report of a run, by default into its own reports folder. Raises NotWritable."""
    with open_run(run) as store:
        sections, html = render(store)
    path = output or run.path / "reports" / f"report-{datetime.now(UTC):%Y%m%d-%H%M%S}.html"
    if path.is_dir():
        path = path / f"{run.id}.html"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}")
        part.write_text(html, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise NotWritable(
            f"the report cannot be written to {path}: {error.strerror}", "give a file that can be written with --output FILE"
        ) from error
    figures = tuple(item.key for section in sections for item in section.items if isinstance(item, Figure))
    missing = tuple(item.what for section in sections for item in section.items if isinstance(item, Missing))
    return Written(path, len(html.encode()), figures, missing)


def render(store: Store) -> tuple[list[Section], str]:
    """The sections of a run, and the page as HTML."""
    scope = scope_of(store)
    sections = [section for build in SECTIONS if (section := build(store, scope)) is not None]
    html = (
        _environment()
        .get_template("page.html")
        .render(
            title=f"{store.info.model} · {store.info.id}",
            facts=summary.facts(store, scope, version()),
            tiles=summary.tiles(store),
            diagnoses=findings.diagnoses(store, scope),
            comparisons=findings.demo_tables(store),
            sections=sections,
            written=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            live=store.live,
            css=_asset("page.css"),
            js=_asset("page.js"),
            plotly=get_plotlyjs(),
        )
    )
    return sections, html


def _asset(name: str) -> str:
    return files("workbench.report").joinpath(name).read_text(encoding="utf-8")


def _environment() -> Environment:
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=DictLoader({"page.html": _asset("page.html")}),
    )
    environment.filters["number"] = number
    environment.filters["labels"] = findings.labels
    environment.filters["applied_rows"] = findings.applied_rows
    environment.globals["tones"] = {**findings.SEVERITY, **findings.OUTCOMES}
    return environment
