"""Drills of networks and hangs: what is really done to hosts and ranks is named first, with its place, and a control raises nothing."""

from __future__ import annotations

import subprocess

import pytest

from playbooks.drills import hosts
from playbooks.drills.drill import Dose
from playbooks.drills.hosts import Hosts
from playbooks.drills.session import chosen, drills_of, run_drill

SYMPTOMS = ("cross-node-throughput", "hang")


def drilled(symptom, name, dose):
    (drill,) = chosen(symptom, [name])
    if reason := drill.unavailable():
        pytest.skip(f"no fault lab here: {reason}")
    found = run_drill(symptom, drill, dose, 3, False, lambda said: None)
    assert found.correct and found.unlabelled and found.located in (None, True), found.detail
    return found


@pytest.mark.timeout(300)
def test_a_stopped_rank_is_named_by_the_state_of_its_process():
    assert drilled("hang", "stopped-rank", Dose(0, 1)).first == "hang.stopped-rank"


@pytest.mark.skipif(bool(hosts.unavailable()), reason=f"no fault lab here: {hosts.unavailable()}")
def test_a_lab_with_every_part_leaves_nothing_behind():
    with Hosts(4, second=True, halves=True) as lab:
        lab.shape_second(100)
        lab.shape_between_halves(100)
        lab.drop_between(1, 2)
        lab.lose_large_frames(3)
        lab.small_frames(0, 1280)
        lab.police_sending(1, 50)
        lab.cut(2)
        told = subprocess.run(lab.command(0, ["ip", "-o", "-4", "address"]), capture_output=True, text=True, check=True).stdout
        assert lab.address(0) in told and lab.second_address(0) in told
        names = [lab.name(host) for host in range(4)]
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    assert not any(name in listed for name in names)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("symptom", "name", "strength"),
    [(symptom, drill.id, strength) for symptom in SYMPTOMS for drill in drills_of(symptom) for strength in range(len(drill.doses))],
)
def test_every_drill(symptom, name, strength):
    drilled(symptom, name, Dose(strength, 1))
