"""Real faults of a checkpoint and of a forward pass: named first, in the right place, with numbers that were set by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from playbooks.document import Diagnosis
from playbooks.drills.drill import HEALTHY, Dose
from playbooks.drills.score import serious
from playbooks.drills.session import doses, drills_of, run_drill
from playbooks.garbled_output.drills import _ALL, GarbledDrill
from playbooks.runner import diagnose

Diagnosed = Callable[[str, int, int], Diagnosis]


@pytest.fixture
def diagnosed(tmp_path: Path) -> Diagnosed:
    by_name = {one.id: one for one in _ALL}

    def run(name: str, strength: int, seed: int) -> Diagnosis:
        made = by_name[name].start(Dose(strength, seed), tmp_path / "runs", lambda said: None)
        return diagnose(made, "garbled-output", argv=())

    return run


def test_a_scaled_expert_is_named_with_its_factor(diagnosed: Diagnosed) -> None:
    """Too little for statistics over 64 experts in fused tensors: its tokens and its answer give it away. Seed 1: layer 1, expert 6."""
    found = serious(diagnosed("garbled.loud-expert", 0, 1))[0]
    assert found.id == "garbled.weight-corrupt"
    assert found.subject.labels == {"layers": [1], "experts": [6]}
    assert "gain" in found.evidence[0].query
    assert float(str(found.evidence[0].observed)) == pytest.approx(3, rel=0.01)


def test_exchanged_experts_are_no_scaled_ones(diagnosed: Diagnosed) -> None:
    """Seed 0 exchanges experts 0 and 7 of layer 0."""
    found = serious(diagnosed("garbled.exchanged", 0, 0))[0]
    assert found.id == "garbled.expert-map"
    assert "7 answers for 0" in found.summary


def test_a_prompt_in_chunks_loses_its_past_at_the_second_chunk(diagnosed: Diagnosed) -> None:
    found = serious(diagnosed("garbled.forgotten", 0, 0))[0]
    assert (found.id, found.evidence[0].observed) == ("garbled.length-boundary", "32")


def test_a_squared_factor_is_the_ratio_of_the_sums(diagnosed: Diagnosed) -> None:
    """The config's 2.5 becomes 6.25."""
    found = serious(diagnosed("garbled.factor", 1, 0))[0]
    assert found.id == "garbled.router"
    assert "2.5 times" in found.summary


def test_a_window_by_mistake_shows_at_its_width(diagnosed: Diagnosed) -> None:
    """Mixtral as transformers saves it; the config says 24 where there was none."""
    found = serious(diagnosed("garbled.window", 1, 0))[0]
    assert (found.id, found.evidence[0].observed) == ("garbled.attention", "layers.0.attention")
    assert "positions from 24 to" in found.summary


def test_gates_before_ups_are_taken_for_turns(diagnosed: Diagnosed) -> None:
    found = serious(diagnosed("garbled.halves-gpt-oss", 0, 1))[0]
    assert (found.id, found.subject.labels) == ("garbled.expert-layout", {"layers": [1]})
    assert "halves taken apart" in found.summary


def test_an_epsilon_that_this_prompt_hides_is_a_warning(diagnosed: Diagnosed) -> None:
    """1e-5 for 1e-6: no answer changes, and the next prompt may be of smaller rows."""
    told = diagnosed("garbled.epsilon-unseen", 0, 0)
    assert (told.verdict, serious(told)[0].id) == ("warning", "garbled.norm")
    assert "the epsilon is 1e-05, the reference's 1e-06" in told.findings[0].summary


def test_small_rows_show_the_epsilon(diagnosed: Diagnosed) -> None:
    told = diagnosed("garbled.epsilon", 0, 0)
    assert (told.verdict, serious(told)[0].id) == ("problem", "garbled.norm")
    assert "layers.0.attention_norm is the first of the taps" in told.findings[0].summary
    assert "root mean square of 0.00" in told.findings[0].summary


def test_renumbered_experts_are_seen_and_harmless(diagnosed: Diagnosed) -> None:
    told = diagnosed("garbled.well-mixtral", 0, 0)
    assert told.verdict == "healthy"
    router = next(check for check in told.checks if check.id == "garbled.router")
    assert "layers.0.router.logits diverges and the answers do not change" in router.summary


def test_a_shifted_position_is_seen_and_harmless(diagnosed: Diagnosed) -> None:
    told = diagnosed("garbled.well-shifted", 0, 0)
    assert told.verdict == "healthy"
    rope = next(check for check in told.checks if check.id == "garbled.rope")
    assert "answers do not change" in rope.summary


def test_every_drill_expects_a_cause_that_exists() -> None:
    from playbooks.symptoms import symptom

    known = {check.id for check in symptom("garbled-output")[0].checks}
    expected = {one.expected for one in _ALL} - {HEALTHY}
    assert expected <= known
    assert len(expected) >= 14


@pytest.mark.slow
@pytest.mark.parametrize("one", _ALL, ids=lambda one: str(one.id))
def test_all_drills(one: GarbledDrill) -> None:
    """Every drill at every strength, three seeds, judged on a copy without labels."""
    drill = next(known for known in drills_of("garbled-output") if known.id == one.id)
    if why := drill.unavailable():
        pytest.skip(why)
    for dose in doses(drill, 3, 2):
        result = run_drill("garbled-output", drill, dose, 1, False, lambda said: None)
        assert result.correct, (dose, result.findings, result.detail)
        assert result.unlabelled
