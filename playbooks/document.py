"""workbench.diagnosis.v1: the one document a diagnosis writes. SARIF, JUnit and Markdown are exports of it.

Times are int64 ns since the epoch. `severity` is impact, `confidence` is belief: they are never mixed. A number in an evidence item is
the first cell of the answer to its `query`, so that anybody can derive it again with `workbench query`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from importlib import metadata
from typing import Any, Final, Literal

import msgspec

SCHEMA: Final = "workbench.diagnosis.v1"

Verdict = Literal["problem", "warning", "healthy", "inconclusive", "error"]
Outcome = Literal["pass", "fail", "warn", "not_applicable", "skipped", "error"]
Severity = Literal["critical", "error", "warning", "info"]
Basis = Literal["established", "supported", "hypothesis"]
Role = Literal["root", "cascade", "confirmation"]
SubjectKind = Literal["rank", "host", "link", "group", "expert", "layer", "request", "image", "file", "setting"]
EvidenceKind = Literal["sql", "metric", "span", "log", "stack", "tensor", "command"]
Improvement = Literal["improved", "unchanged", "worse", "undetermined"]
Observed = float | int | str | bool | None

SEVERITIES: tuple[Severity, ...] = ("critical", "error", "warning", "info")


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the document's parts: immutable, by keyword only."""


class Tool(Part, frozen=True, kw_only=True):
    version: str

    @classmethod
    def here(cls) -> Tool:
        """The installed distribution, or "source" when run from a checkout."""
        try:
            return cls(version=metadata.version("workbench-moe"))
        except metadata.PackageNotFoundError:
            return cls(version="source")


class Invocation(Part, frozen=True, kw_only=True):
    argv: tuple[str, ...]
    started: int
    ended: int
    exit_code: int


class RunFacts(Part, frozen=True, kw_only=True):
    id: str
    engine: str
    model: str
    world_size: int


class Window(Part, frozen=True, kw_only=True):
    """t0 and t1 in ns since the epoch; steps = (first, last) or empty where there are none."""

    t0: int
    t1: int
    steps: tuple[int, ...] = ()


class Source(Part, frozen=True, kw_only=True):
    """What was read. `steps` counts the steps, `detailed` those with per-layer rows; `note` says why this window."""

    kind: str
    uri: str
    ranks: tuple[int, ...] = ()
    steps: int = 0
    detailed: int = 0
    requests: int = 0
    window: Window | None = None
    clock_error_us: float | None = None
    dropped: int = 0
    note: str = ""


class CheckRecord(Part, frozen=True, kw_only=True):
    """One check that was considered. `summary` is one sentence with the numbers: why it failed, or what rules the cause out."""

    id: str
    mandatory: bool
    outcome: Outcome
    missing: tuple[str, ...] = ()
    observed: Observed = None
    threshold: Observed = None
    unit: str = ""
    seconds: float = 0.0
    summary: str = ""


class Confidence(Part, frozen=True, kw_only=True):
    """`score` is 0..1. established: shown by this run's data; supported: fits it; hypothesis: worth testing."""

    score: float
    basis: Basis


class Subject(Part, frozen=True, kw_only=True):
    """Who is meant. A finding about several ranks, experts, hosts or layers lists them in labels under those names."""

    kind: SubjectKind
    id: str
    labels: dict[str, Any] = msgspec.field(default_factory=dict)


class Impact(Part, frozen=True, kw_only=True):
    """`share` of the metric 0..1; `alone` is gained if only this is fixed, `last` if it is fixed after everything else (same unit)."""

    metric: str
    value: float
    unit: str
    share: float
    alone: float | None = None
    last: float | None = None


class Evidence(Part, frozen=True, kw_only=True):
    """One number and where it comes from. `rows_sha256` hashes the whole answer of the query as it was read."""

    kind: EvidenceKind
    source: str
    query: str
    observed: Observed
    expected: Observed = None
    unit: str = ""
    note: str = ""
    rows_sha256: str | None = None


class Alternative(Part, frozen=True, kw_only=True):
    """Another cause of the same symptom. `score` 0..1 is what is left of it; an empty `ruled_out_by` means it was not tested."""

    id: str
    score: float
    ruled_out_by: tuple[str, ...] = ()


class Remedy(Part, frozen=True, kw_only=True):
    """`risk` is low | medium | high with a reason. Only a remedy with `automatic` true is carried out by --apply."""

    text: str
    command: str | None = None
    config: dict[str, Any] | None = None
    risk: str = ""
    verify: str = ""
    automatic: bool = False


class Finding(Part, frozen=True, kw_only=True):
    id: str
    fingerprint: str
    severity: Severity
    confidence: Confidence
    title: str
    summary: str
    subject: Subject
    window: Window
    role: Role = "root"
    caused_by: tuple[str, ...] = ()
    impact: Impact | None = None
    evidence: tuple[Evidence, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    remedy: tuple[Remedy, ...] = ()


class Applied(Part, frozen=True, kw_only=True):
    """A remedy that was carried out: what was measured before and after, and whether it was taken back."""

    remedy: str
    finding: str
    before: dict[str, Any]
    after: dict[str, Any]
    verdict: Improvement
    rolled_back: bool = False
    answers_equal: bool | None = None
    remaining: tuple[str, ...] = ()
    note: str = ""


class Diagnosis(Part, frozen=True, kw_only=True):
    tool: Tool
    invocation: Invocation
    run: RunFacts
    symptom: str
    verdict: Verdict
    schema: Literal["workbench.diagnosis.v1"] = SCHEMA
    sources: tuple[Source, ...] = ()
    checks: tuple[CheckRecord, ...] = ()
    findings: tuple[Finding, ...] = ()
    applied: tuple[Applied, ...] = ()

    def to_json(self) -> bytes:
        return _ENCODER.encode(self)

    def to_dict(self) -> dict[str, Any]:
        built: dict[str, Any] = msgspec.to_builtins(self)
        return built


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Diagnosis)
# What names the same problem again in another run of the same system: layers and experts drift with the traffic, ranks and hosts do not.
_STABLE_LABELS = ("ranks", "hosts", "group", "key")


def from_json(body: bytes | str) -> Diagnosis:
    """Raises msgspec.ValidationError, which names the path of the offending value."""
    return _DECODER.decode(body)


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the document."""
    schema: dict[str, Any] = msgspec.json.schema(Diagnosis)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA, **schema}


def fingerprint(finding_id: str, subject: Subject) -> str:
    """16 hex digits that are equal for the same problem of the same subject, in whatever run, window and strength it is seen."""
    labels = {name: subject.labels[name] for name in _STABLE_LABELS if name in subject.labels}
    named = msgspec.json.encode([finding_id, subject.kind, subject.id, labels], order="sorted")
    return hashlib.sha256(named).hexdigest()[:16]


def verdict_of(checks: Iterable[CheckRecord], findings: Iterable[Finding]) -> Verdict:
    """What was found decides first; healthy needs every mandatory check to have run. Findings of severity info decide nothing."""
    severities = {finding.severity for finding in findings}
    if severities & {"critical", "error"}:
        return "problem"
    if "warning" in severities:
        return "warning"
    mandatory = [check.outcome for check in checks if check.mandatory]
    if "fail" in mandatory:
        return "problem"
    if "error" in mandatory:
        return "error"
    if "skipped" in mandatory or not mandatory:
        return "inconclusive"
    return "healthy"


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The best explanation first: roots before cascades, then by severity, then by the share of the symptom explained times belief."""

    def rank(finding: Finding) -> tuple[int, int, float]:
        share = finding.impact.share if finding.impact else 0.0
        return (finding.role != "root", SEVERITIES.index(finding.severity), -share * finding.confidence.score)

    return tuple(sorted(findings, key=rank))
