"""Single checks over facts that were written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest

from playbooks.document import CheckRecord, Diagnosis
from playbooks.garbled_output.damage import CORRUPT, MISSING, UNLISTED, UNREAD
from playbooks.garbled_output.facts import CHUNKS, COMPARED, DAMAGE, FILES, FINITE, LOAD, NORMS, ROPE, SCALES, TEMPLATE, TRIAL, VOCABULARY
from runtime.verification.document import ProblemKind

Judged = Callable[[Any], tuple[Diagnosis, dict[str, CheckRecord]]]
WHOLE = {
    "with": "reference", "source": "taps", "lacks": [], "lacking": [], "kl": 1.0, "top1": 0.5, "visible": True, "limit": 1e-3, "hit": 1.0,
    "relative": 0.5, "gain": 1.0, "last_hit": 127,
}  # fmt: skip


def test_files_that_cannot_be_examined_clear_nothing(judged: Judged) -> None:
    _, checks = judged([(FILES, {"problem": "no config", "deep": False, "bytes": 1})])
    names = ("weight-missing", "weight-unread", "weight-corrupt", "quant-scale")
    assert {checks[name].outcome for name in names} == {"skipped"}
    _, checks = judged([(FILES, {"status": "ok", "deep": True, "counts": {}})])
    assert {checks[name].outcome for name in names[:3]} == {"pass"}


def test_scales_and_rows_that_are_not_known_clear_nothing(judged: Judged) -> None:
    scales = {"tensors": 4, "read": 0, "ones": 0, "names": [], "largest_spread": None}
    vocabulary = {"rows": None, "largest": 7, "outside_count": 0, "probe": {}}
    _, checks = judged([(FILES, {"status": "ok", "deep": True, "counts": {}}), (SCALES, scales), (VOCABULARY, vocabulary)])
    assert (checks["quant-scale"].outcome, checks["tokenizer-ids"].outcome) == ("skipped", "skipped")


def test_every_kind_of_damage_is_reported_by_a_check() -> None:
    assert {*MISSING, *CORRUPT, *UNREAD, *UNLISTED} == set(get_args(ProblemKind))


@pytest.mark.parametrize(
    ("kind", "check"),
    [("hash", "weight-corrupt"), ("misplaced", "weight-missing"), ("unlisted-file", "weight-unread"), ("extra", "weight-unread")],
)
def test_all_damages_are_counted(judged: Judged, kind: str, check: str) -> None:
    files = {"status": "damaged", "deep": True, "counts": {kind: 700}}
    found, checks = judged([(FILES, files), (DAMAGE, {"damage": kind, "file": "a", "tensor": "t", "detail": "other"})])
    assert checks[check].outcome == ("warn" if kind == "unlisted-file" else "fail")
    assert "700" in found.findings[0].summary


@pytest.mark.parametrize(("dtype", "score"), [("float16", 0.95), ("bfloat16", 0.5), ("float32", 0.5)])
def test_only_half_precision_overflows_so_early(judged: Judged, dtype: str, score: float) -> None:
    own = {"largest": 3.0, "where": "embed", "first": "layers.0.output", "positions": 1, "count": 4, "from": 0, "dtype": dtype}
    found, _ = judged([(FINITE, own)])
    assert (found.findings[0].id, found.findings[0].confidence.score) == ("garbled.numeric-overflow", score)
    assert ("overflow" in found.findings[0].title) == (dtype == "float16")


def test_a_model_that_cannot_be_loaded_is_said_to_be(judged: Judged) -> None:
    _, checks = judged([(LOAD, {"problem": "config.json has no heads", "hint": ""})])
    assert checks["diverging-tap"].outcome == "skipped"
    assert "has no heads" in checks["diverging-tap"].summary


def test_two_bases_are_a_warning(judged: Judged) -> None:
    found, checks = judged([(ROPE, {"bases": {"rope_theta": 1e4, "rope_parameters.rope_theta": 1e6}, "differ": True})])
    assert (checks["rope"].outcome, found.verdict) == ("warn", "warning")
    assert judged([(ROPE, {"bases": {"rope_theta": 1e4}, "differ": False})])[1]["rope"].outcome == "skipped"


@pytest.mark.parametrize(("error", "cause"), [(None, "garbled.router"), (0.5, "garbled.router"), (1e-6, "garbled.capacity-drop")])
def test_a_capacity_leaves_other_tokens_as_they_were(judged: Judged, error: float | None, cause: str) -> None:
    whole = {**WHOLE, "first": "layers.0.router.weights", "first_hit": 0}
    trial = {"with": "reference", "trial": "router", "dropped": 3, "kept_error": error, "sum_ratio": 0.7, "sum_spread": 0.5}
    assert judged([(COMPARED, whole), (TRIAL, trial)])[0].findings[0].id == cause


@pytest.mark.parametrize(("first", "cause"), [(1, "garbled.diverging-tap"), (2, "garbled.attention")])
def test_a_window_does_not_show_where_all_is_seen(judged: Judged, first: int, cause: str) -> None:
    found, _ = judged([(COMPARED, {**WHOLE, "first": "layers.0.attention", "first_hit": first})])
    assert [one.id for one in found.findings] == [cause]


@pytest.mark.parametrize(
    ("tokens", "visible", "outcome"), [(32, True, "skipped"), (4, False, "skipped"), (128, False, "pass"), (128, True, "fail")]
)
def test_chunks_are_judged_by_what_users_see(judged: Judged, tokens: int, visible: bool, outcome: str) -> None:
    own = {**WHOLE, "chunk": 32, "tokens": tokens, "visible": visible, "first": "layers.0.attention", "first_hit": 32}
    assert judged([(CHUNKS, own)])[1]["length-boundary"].outcome == outcome


@pytest.mark.parametrize(
    ("norms", "first", "outcome", "cause"),
    [
        ({"count": 0, "unlike": []}, None, "skipped", None),
        ({"count": 5, "unlike": []}, None, "pass", None),
        ({"count": 5, "unlike": ["norm"], "ours": 1e-5, "theirs": 1e-6}, None, "warn", "garbled.norm"),
        ({"count": 5, "unlike": ["norm"], "ours": 1e-5, "theirs": 1e-6}, "layers.0.key", "warn", "garbled.rope"),
        ({"count": 5, "unlike": ["norm"], "ours": 1e-5, "theirs": 1e-6}, "norm", "fail", "garbled.norm"),
        ({"count": 5, "unlike": ["norm"], "ours": None, "theirs": 1e-6}, "layers.0.attention_norm", "warn", "garbled.diverging-tap"),
    ],
)
def test_an_epsilon_explains_what_its_own_norm_shows(judged: Judged, norms: Any, first: str | None, outcome: str, cause: str) -> None:
    """Answers that change elsewhere first have another cause, whatever the epsilon is."""
    whole = {**WHOLE, "first": first, "first_hit": 1}
    found, checks = judged([(COMPARED, whole), (NORMS, {"with": "reference", "smallest": 0.5, **norms})])
    assert checks["norm"].outcome == outcome
    assert (found.findings[0].id if found.findings else None) == cause


def test_a_first_token_is_counted_as_often_as_it_stands(judged: Judged) -> None:
    own = {
        "repeated_first": True,
        "first": [5, 5, 5, 7],
        "unknown": [],
        "holds_message": True,
        "holds_talk": True,
        "header": 3,
        "headless": False,
    }
    _, checks = judged([(TEMPLATE, own)])
    assert (checks["double-bos"].outcome, checks["double-bos"].observed) == ("fail", 3)
