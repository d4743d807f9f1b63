"""The ranks of a fabric test as they are started and waited for: what goes wrong is said in one line."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import pytest

from probes.fabric.launch import FabricTest, rank_environment, run, run_across
from traces.errors import BadAnswer, UsageError


def test_ranks_that_all_die_at_once_are_told_from_ranks_that_end_well():
    def within(argv):
        return [sys.executable, "-c", "import sys; sys.exit('no such device')"]

    with pytest.raises(BadAnswer, match="rank 0 ended with code 1: no such device"):
        run_across(FabricTest(ranks=1, timeout=30), "127.0.0.1", [within, within], {}, tick=lambda: time.sleep(1))


def test_a_ranks_own_paths_come_after_the_programs_and_before_the_callers(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "callers")
    made = rank_environment(1, 2, "head", 5, {"PYTHONPATH": "own", "GLOO_SOCKET_IFNAME": "eth0"})
    assert made["PYTHONPATH"].split(":")[1:] == ["own", "callers"] and made["GLOO_SOCKET_IFNAME"] == "eth0"
    assert [made[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")] == ["1", "2", "head", "5"]


@pytest.mark.parametrize("wrong", [{"timeout": float("nan")}, {"soak": float("nan")}, {"soak": float("inf")}])
def test_times_that_are_no_numbers_are_refused(wrong):
    with pytest.raises(UsageError, match="numbers of seconds"):
        replace(FabricTest(), **wrong).checked()


@pytest.mark.parametrize("port", ["0", "65536", "99999999999"])
def test_ports_that_do_not_exist_are_refused(port):
    with pytest.raises(UsageError, match="HOST:PORT"):
        run(FabricTest(nodes=2, head=f"host:{port}"))
