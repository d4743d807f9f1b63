"""The parts of the demonstration that decide: the stale placement, the comparison, the judgement."""

from __future__ import annotations

from typing import Any

import pytest

from playbooks.attribution.bootstrap import Interval
from playbooks.document import Applied, Confidence, Diagnosis, Finding, Invocation, RunFacts, Subject, Tool, Window
from playbooks.tail_latency.stale_placement import most_popular, stale
from runtime.placement import Placement
from workbench.demo.document import Fault
from workbench.demo.judge import problems
from workbench.demo.measure import Phase
from workbench.demo.table import compare, verdict

COUNTS = {0: [5.0, 1.0, 9.0, 1.0, 7.0, 1.0, 8.0, 1.0], 3: [1.0] * 8}


def test_most_popular_keeps_the_lower_number_of_ties() -> None:
    assert most_popular(COUNTS[0], 2) == (2, 6)
    assert most_popular(COUNTS[3], 3) == (0, 1, 2)


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_stale_placement_packs_one_rank_and_loses_no_expert(rank: int) -> None:
    packed = stale(COUNTS, 4, rank)
    placement = Placement(1, packed.layers, 4).checked(8)
    assert placement.local(0, rank) == (2, 6)
    assert packed.experts == {0: (2, 6), 3: (0, 1)}
    load = [sum(COUNTS[0][e] for e in placement.local(0, r)) for r in range(4)]
    assert max(load) == load[rank] == 17.0


def _phase(imbalance: float, expert_ms: float, p99: Interval | None = None, p50: float = 100.0) -> Phase:
    def about(value: float) -> Interval:
        return Interval(value, value * 0.98, value * 1.02)

    return Phase(60, 0, 1.0, about(p50), p99, about(imbalance), about(expert_ms))


def test_no_claim_where_intervals_overlap() -> None:
    assert verdict(Interval(10, 9, 11), Interval(8, 7, 8.9)) == "lower"
    assert verdict(Interval(10, 9, 11), Interval(8, 7, 9.1)) == "undetermined"
    assert verdict(Interval(10, 9, 11), Interval(13, 12, 14)) == "higher"
    assert verdict(None, Interval(8, 7, 9)) == "undetermined"


def test_the_table_claims_only_what_is_decided() -> None:
    lines = {one.metric: one for one in compare(_phase(1.1, 2.0), _phase(1.9, 3.0), _phase(1.1, 2.0))}
    assert lines["imbalance"].verdict == lines["expert_ms"].verdict == "lower"
    assert lines["imbalance"].during == "1.90 [1.86, 1.94]"
    assert lines["p50"].verdict == "undetermined"
    assert lines["p99"].after == "too few requests"
    assert lines["exact"].before == "100%"
    assert lines["exact"].verdict == "equal"


def _diagnosis(verdict: str, *findings: Finding, applied: tuple[Applied, ...] = ()) -> Diagnosis:
    facts = RunFacts(id="r", engine="workbench", model="m", world_size=4)
    invocation = Invocation(argv=(), started=0, ended=1, exit_code=0)
    whole: Any = verdict
    return Diagnosis(
        tool=Tool(version="0"), invocation=invocation, run=facts, symptom="tail-latency", verdict=whole, findings=findings, applied=applied
    )  # fmt: skip


def _finding(id: str, **labels: list[int]) -> Finding:
    return Finding(
        id=id, fingerprint="f", severity="error", confidence=Confidence(score=0.9, basis="established"), title="t", summary="s",
        subject=Subject(kind="rank", id="2", labels=dict(labels)), window=Window(t0=0, t1=1),
    )  # fmt: skip


def _blamed(rank: int, layer: int) -> Finding:
    return _finding("tail.expert-imbalance", ranks=[rank], layers=[layer], experts=[1])


FAULT = Fault(rank=2, layers=(0, 1, 2, 3), experts={0: (1, 2), 1: (3,), 2: (4,), 3: (5,)}, placement=2)
IMPROVED = (Applied(remedy="move", finding="tail.expert-imbalance", before={}, after={}, verdict="improved", answers_equal=True),)
PHASES = (_phase(1.1, 2.0), _phase(1.9, 3.0), _phase(1.1, 2.0))
RIGHT = _finding("tail.expert-imbalance", ranks=[2], layers=[0, 1], experts=[1, 3])


def test_nothing_to_say_when_all_held() -> None:
    assert problems(_diagnosis("healthy"), _diagnosis("problem", RIGHT, applied=IMPROVED), FAULT, PHASES) == ()


@pytest.mark.parametrize(
    ("during", "words"),
    [
        (_diagnosis("healthy", applied=IMPROVED), "nothing was found"),
        (_diagnosis("problem", _finding("tail.queueing"), RIGHT, applied=IMPROVED), "the first finding was tail.queueing"),
        (_diagnosis("problem", _blamed(1, 0), applied=IMPROVED), "names rank 1"),
        (_diagnosis("problem", _blamed(2, 7), applied=IMPROVED), "names layer 7"),
        (_diagnosis("problem", _blamed(2, 1), applied=IMPROVED), "None of the experts"),
        (_diagnosis("problem", RIGHT), "no remedy"),
    ],
)
def test_every_way_to_be_wrong_has_its_sentence(during: Diagnosis, words: str) -> None:
    (said,) = problems(_diagnosis("healthy"), during, FAULT, PHASES)
    assert words in said


def test_a_remedy_that_was_taken_back_or_changed_answers_is_said() -> None:
    def after(**how: Any) -> tuple[str, ...]:
        done = Applied(remedy="move", finding="tail.expert-imbalance", before={}, after={}, **how)
        return problems(_diagnosis("healthy"), _diagnosis("problem", RIGHT, applied=(done,)), FAULT, PHASES)

    assert "answers changed" in after(verdict="worse", answers_equal=False, rolled_back=True)[0]
    assert "says worse" in after(verdict="worse", answers_equal=True, rolled_back=True)[0]
    assert after(verdict="undetermined", answers_equal=True) == ()


def test_a_sick_start_and_a_remedy_without_effect_are_said() -> None:
    during = _diagnosis("problem", RIGHT, applied=IMPROVED)
    said = problems(_diagnosis("warning", _finding("tail.queueing")), during, FAULT, (PHASES[0], PHASES[1], PHASES[1]))
    assert [word in " ".join(said) for word in ("was warning, first tail.queueing", "more even", "time of the experts")] == [True] * 3
    assert len(said) == 3
