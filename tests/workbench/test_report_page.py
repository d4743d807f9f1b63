"""The report over a recorded run: everything is on the page, nothing leaves it, nothing in it is markup that came from the run."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from playbooks.document import (
    Applied,
    CheckRecord,
    Confidence,
    Diagnosis,
    Evidence,
    Finding,
    Invocation,
    Remedy,
    RunFacts,
    Subject,
    Tool,
    Window,
)  # fmt: skip
from traces import schema
from traces.producer import Recorder
from traces.run import Run, create_run
from traces.store import write_document
from workbench.report.page import Written, write_report

HOSTILE = '<img src=x onerror="document.title=1">'
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync --virtual-time-budget=5000 --window-size=1280,2000 --enable-logging=stderr --dump-dom"
)
BROWSERS_OWN = ("google.com", "googleapis.com", "gvt1.com")  # what Chromium asks for itself, whatever page it shows
FIGURES = {
    "throughput", "waterfall", "stages", "imbalance", "experts-heat", "ranks-heat", "wait-matrix", "frontier", "timeline", "memory",
}  # fmt: skip


def diagnosis(run: Run) -> Diagnosis:
    finding = Finding(
        id="tail.expert-imbalance", fingerprint="f", severity="error", confidence=Confidence(score=0.95, basis="established"),
        title=f"rank 2 is overloaded {HOSTILE}", summary="summary", window=Window(t0=0, t1=1),
        subject=Subject(kind="rank", id="2", labels={"ranks": [2], "note": HOSTILE}),
        evidence=(Evidence(kind="sql", source="s", query="SELECT 1 < 2", observed=1.93, expected=1.1, note=HOSTILE),),
        remedy=(Remedy(text="move experts", command="workbench diagnose tail-latency --apply"),),
    )  # fmt: skip
    applied = Applied(remedy="moved", finding=finding.id, before={"imbalance": 1.9}, after={"imbalance": 1.1}, verdict="improved")
    check = CheckRecord(id="tail.queueing", mandatory=True, outcome="skipped", missing=("requests",))
    return Diagnosis(
        tool=Tool(version="0"), invocation=Invocation(argv=(), started=0, ended=1, exit_code=3), symptom="tail-latency", verdict="problem",
        run=RunFacts(id=run.id, engine="workbench", model="m", world_size=4), checks=(check,), findings=(finding,), applied=(applied,),
    )  # fmt: skip


@pytest.fixture(scope="module")
def page(recorded: Run, tmp_path_factory: pytest.TempPathFactory) -> Written:
    found = diagnosis(recorded)
    first = msgspec.structs.replace(found, applied=())
    for document in (first, found):  # as the demonstration stores it: when it is found, and again when it is repaired
        write_document(recorded, document.schema, msgspec.to_builtins(document))
    return write_report(recorded, tmp_path_factory.mktemp("page") / "report.html")


class Reader(HTMLParser):
    """Collects what a browser would fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def without_library(text: str) -> str:
    """The page without plotly.js itself, which mentions many addresses that it never asks on its own."""
    return re.sub(r"<script>/\*\*\s*\* plotly\.js.*?</script>", "", text, flags=re.DOTALL)


def test_every_figure_is_there_and_is_valid_json(page: Written) -> None:
    assert set(page.figures) == FIGURES
    assert page.missing == ()
    text = page.path.read_text()
    for key in FIGURES:
        spec = re.search(rf'<script type="application/json" id="spec-{key}">(.*?)</script>', text, re.DOTALL)
        assert spec is not None
        assert json.loads(spec.group(1))["data"]


def test_size_is_bounded_and_the_library_is_embedded_once(page: Written) -> None:
    text = page.path.read_text()
    assert page.bytes == len(text.encode()) < 8_000_000
    assert text.count("plotly.js v") == 1


def test_nothing_is_fetched(page: Written) -> None:
    reader = Reader()
    reader.feed(without_library(page.path.read_text()))
    assert not [attrs for _, attrs in reader.tags if {"src", "srcset", "data", "action"} & attrs.keys()]
    assert all((attrs.get("href") or "#").startswith("#") for _, attrs in reader.tags)
    assert not {"link", "iframe", "object", "img"} & {tag for tag, _ in reader.tags}
    policy = next(attrs["content"] for tag, attrs in reader.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_names_of_the_run_are_text(page: Written) -> None:
    text = without_library(page.path.read_text())
    assert HOSTILE not in text
    assert html.escape(HOSTILE) in text.replace("&#34;", "&quot;")
    assert '<script>alert("x")</script>' not in text


def test_findings_evidence_remedy_and_gaps_are_readable(page: Written) -> None:
    text = html.unescape(without_library(page.path.read_text()))
    words = ("rank 2 is overloaded", "0.95, established", "1.93", "SELECT 1 < 2", "move experts", "not measured: requests", "improved")
    assert [word for word in words if word not in text] == []


def test_a_diagnosis_that_was_stored_again_with_its_remedy_is_shown_once(page: Written) -> None:
    text = without_library(page.path.read_text())
    assert text.count('<article class="finding') == 1
    assert text.count("Applied: moved") == 1


def test_an_empty_run_says_what_was_not_measured(tmp_path: Path) -> None:
    run = create_run(engine="workbench", model="m", root=tmp_path)
    written = write_report(run)
    assert written.path.parent == run.path / "reports"
    assert written.figures == ()
    assert len(written.missing) >= 6
    text = html.unescape(without_library(written.path.read_text()))
    assert "Not diagnosed." in text
    assert "--detail-every" in text


def test_a_long_run_is_reduced_and_says_so(tmp_path: Path) -> None:
    run = create_run(engine="workbench", model="m", root=tmp_path, world_size=1)
    recorder = Recorder.open(run, "rank0", ship=False)
    for number, hours in enumerate((0, 1, 3)):
        ts = 1_790_000_000 * 10**9 + hours * 3600 * 10**9
        recorder.row(
            schema.STEP, step=number, rank=0, stage=0, micro_batch=0, ts=ts, dur=10**7, sync=0, prefill_tokens=100, decode_tokens=1,
            context_tokens=1, running=1, waiting=0, kv_used=1, kv_total=9, preempted=0, placement=0, requests=[],
        )  # fmt: skip
        recorder.row(
            schema.EXPERT_LOAD, ts=ts, step_first=number, step_last=number, rank=0, layer=0, placement=0, steps=1, tokens_in=100,
            tokens=[50, 150], physical=[50, 150], dropped=0, padding=0,
        )  # fmt: skip
    recorder.close()
    written = write_report(run)
    assert {"throughput", "imbalance", "experts-heat"} <= set(written.figures)
    text = html.unescape(without_library(written.path.read_text()))
    assert "Buckets of 18 s." in text  # three hours in 600 points
    assert "Every position of the slider covers 451 s." in text  # three hours in 24 positions


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
@pytest.mark.parametrize("theme", ["", "#dark"])
def test_a_browser_draws_every_figure_without_an_error_or_a_request(page: Written, theme: str, tmp_path: Path) -> None:
    log = tmp_path / "net.json"
    done = subprocess.run(
        [str(CHROMIUM), *FLAGS.split(), "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path / 'profile'}",
         f"--log-net-log={log}", f"file://{page.path}{theme}"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert f'data-drawn="{len(FIGURES)}"' in done.stdout
    assert f'data-theme="{"dark" if theme else "light"}"' in done.stdout
    assert done.stdout.count('class="main-svg"') >= len(FIGURES)
    assert "CONSOLE" not in done.stderr, done.stderr
    hosts = {host for host in re.findall(r'"url":"(?:https?|wss?)://([^/"]*)', log.read_text()) if not host.endswith(BROWSERS_OWN)}
    assert hosts == set()
