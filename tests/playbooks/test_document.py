"""workbench.diagnosis.v1: verdicts, exit codes, fingerprints, round trip, schema, Markdown."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from playbooks.document import (
    Applied,
    CheckRecord,
    Confidence,
    Diagnosis,
    Finding,
    Impact,
    Invocation,
    Remedy,
    RunFacts,
    Subject,
    Tool,
    Window,
    fingerprint,
    from_json,
    json_schema,
    ordered,
    verdict_of,
)
from playbooks.exit_codes import Exit, exit_code
from playbooks.markdown import markdown


def check(outcome: str, mandatory: bool = True) -> CheckRecord:
    return CheckRecord(id=f"tail.{outcome}", mandatory=mandatory, outcome=outcome)  # type: ignore[arg-type]


def finding(name: str = "tail.x", severity: str = "error", **rest: Any) -> Finding:
    about = rest.pop("about", Subject(kind="rank", id="2", labels={"ranks": [2]}))
    return Finding(
        id=name,
        fingerprint=fingerprint(name, about),
        severity=severity,  # type: ignore[arg-type]
        confidence=Confidence(score=rest.pop("score", 0.9), basis="established"),
        title="t",
        summary="s | s",
        subject=about,
        window=Window(t0=1, t1=2),
        **rest,
    )


@pytest.mark.parametrize(
    ("outcomes", "severities", "verdict"),
    [
        (["pass", "pass"], [], "healthy"),
        (["pass", "not_applicable"], [], "healthy"),
        (["pass", "skipped"], [], "inconclusive"),
        (["pass", "error"], [], "error"),
        ([], [], "inconclusive"),
        (["pass", "skipped"], ["warning"], "warning"),
        (["pass", "skipped"], ["error"], "problem"),
        (["pass", "pass"], ["info"], "healthy"),
        (["skipped"], ["info"], "inconclusive"),
        (["pass", "fail"], ["info"], "problem"),
        (["pass"], ["critical", "warning"], "problem"),
    ],
)
def test_verdict(outcomes: list[str], severities: list[str], verdict: str) -> None:
    assert verdict_of([check(one) for one in outcomes], [finding(severity=one) for one in severities]) == verdict


def test_an_optional_check_that_was_skipped_does_not_spoil_health() -> None:
    assert verdict_of([check("pass"), check("skipped", mandatory=False)], []) == "healthy"


@pytest.mark.parametrize(("verdict", "code"), [("healthy", 0), ("error", 1), ("problem", 3), ("warning", 4), ("inconclusive", 5)])
def test_exit_code_of_a_verdict(verdict: Any, code: int) -> None:
    assert exit_code(verdict) == code


def applied(verdict: Any = "improved", **rest: Any) -> Applied:
    return Applied(remedy="move", finding=rest.pop("cures", "tail.x"), before={}, after={}, verdict=verdict, **rest)


def test_exit_code_after_a_remedy() -> None:
    found = (finding(),)
    assert exit_code("problem", found, (applied(),)) is Exit.HEALTHY
    assert exit_code("problem", found, (applied("unchanged"),)) is Exit.PROBLEM
    assert exit_code("problem", found, (applied(remaining=("tail.y",)),)) is Exit.PROBLEM
    assert exit_code("problem", (*found, finding("tail.y")), (applied(),)) is Exit.PROBLEM
    assert exit_code("warning", (finding(severity="warning"),), (applied(),)) is Exit.HEALTHY
    assert exit_code("warning", (finding(severity="warning"), finding("tail.z", "warning")), (applied(),)) is Exit.WARNINGS
    cascade = finding("tail.queueing", role="cascade", caused_by=("tail.x",))
    assert exit_code("problem", (*found, cascade), (applied(),)) is Exit.HEALTHY


def test_fingerprint_names_the_same_problem_again_in_other_layers() -> None:
    one = Subject(kind="rank", id="2", labels={"ranks": [2], "layers": [0, 3], "experts": [5]})
    two = Subject(kind="rank", id="2", labels={"ranks": [2], "layers": [1], "experts": [7, 9], "placement": 4})
    other = Subject(kind="rank", id="3", labels={"ranks": [3]})
    assert fingerprint("tail.x", one) == fingerprint("tail.x", two)
    assert fingerprint("tail.x", one) != fingerprint("tail.x", other)
    assert fingerprint("tail.x", one) != fingerprint("tail.y", one)


def test_the_best_explanation_is_first() -> None:
    cascade = finding("a", role="cascade", caused_by=("c",))
    weak = finding("b", impact=Impact(metric="m", value=1.0, unit="ms", share=0.1))
    strong = finding("c", impact=Impact(metric="m", value=1.0, unit="ms", share=0.4))
    warning = finding("d", severity="warning", impact=Impact(metric="m", value=1.0, unit="ms", share=0.9))
    assert [one.id for one in ordered([warning, cascade, weak, strong])] == ["c", "b", "d", "a"]


def document(**rest: Any) -> Diagnosis:
    return Diagnosis(
        tool=Tool(version="1"),
        invocation=Invocation(argv=("workbench",), started=1, ended=2, exit_code=3),
        run=RunFacts(id="r", engine="workbench", model="m", world_size=4),
        symptom="tail-latency",
        verdict="problem",
        **rest,
    )


def test_round_trip_keeps_everything() -> None:
    made = document(findings=(finding(remedy=(Remedy(text="do", automatic=True),)),), checks=(check("fail"),), applied=(applied(),))
    assert from_json(made.to_json()) == made
    assert json.loads(made.to_json())["schema"] == "workbench.diagnosis.v1"


def test_a_document_of_another_schema_is_refused() -> None:
    body = document().to_dict() | {"schema": "workbench.diagnosis.v9"}
    with pytest.raises(msgspec.ValidationError, match="schema"):
        from_json(json.dumps(body))


def test_json_schema_has_the_contract() -> None:
    schema = json_schema()
    top = schema["$defs"]["Diagnosis"]["properties"]
    assert {"schema", "tool", "invocation", "run", "sources", "symptom", "verdict", "checks", "findings", "applied"} == set(top)
    assert set(schema["$defs"]["CheckRecord"]["properties"]["outcome"]["enum"]) == {
        "pass", "fail", "warn", "not_applicable", "skipped", "error",
    }  # fmt: skip
    wanted = {"id", "fingerprint", "severity", "confidence", "title", "summary", "role", "caused_by", "subject", "window", "impact",
              "evidence", "alternatives", "remedy"}  # fmt: skip
    assert wanted == set(schema["$defs"]["Finding"]["properties"])


def test_markdown_survives_a_bar_in_the_text() -> None:
    text = markdown(
        document(findings=(finding(),), checks=(msgspec.structs.replace(check("fail"), summary="a | b"),), applied=(applied(),))
    )
    assert "# tail-latency: problem" in text
    assert "a \\| b" in text
    assert "Remedy: improved" in text
