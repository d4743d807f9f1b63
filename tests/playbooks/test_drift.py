"""Environment drift between ranks and against a baseline."""

from __future__ import annotations

import copy
from typing import Any

from playbooks.environment.drift import drift_against, drift_among
from playbooks.runner import diagnose
from probes.fingerprint import fingerprint

FACTS: dict[str, Any] = fingerprint()


def ranks(**changed: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Four ranks on this machine; `rank2={"packages.torch": "1.0"}` changes facts of one."""
    made = {f"rank{rank}": copy.deepcopy(FACTS) for rank in range(4)}
    for name, facts in changed.items():
        for key, value in facts.items():
            *path, leaf = key.split(".")
            place = made[name]
            for part in path:
                place = place[part]
            place[leaf] = value
    return made


def test_what_differs_between_healthy_ranks_is_no_drift() -> None:
    per_rank = {f"rank{r}": {"taken": r, "host.pid": r, "env.RANK": str(r), "env.LOCAL_RANK": str(r), "cpu.usable": r} for r in range(4)}
    assert drift_among(ranks(**per_rank)) == {}


def test_the_odd_rank_is_named_with_both_values() -> None:
    drift = drift_among(ranks(rank2={"packages.numpy": "0.1", "env.NCCL_SOCKET_IFNAME": "mgmt0"}))
    assert set(drift) == {"packages.numpy", "env.NCCL_SOCKET_IFNAME"}
    assert drift["packages.numpy"] == {"most ranks": FACTS["packages"]["numpy"], "rank2": "0.1"}
    assert drift["env.NCCL_SOCKET_IFNAME"]["rank2"] == "mgmt0"


def test_against_a_baseline() -> None:
    assert drift_against(ranks(), ranks()) == {}
    drift = drift_against(ranks(rank0={"os.kernel": "9.9"}), ranks())
    assert drift == {"os.kernel": {"baseline": FACTS["os"]["kernel"], "now": "9.9"}}


def test_the_check_warns_and_never_hides_another_cause(lab: Any) -> None:
    run = lab.run(lab.Fault(drift=True), traffic=lab.Traffic(requests=60, rate=10))
    found = diagnose(run, "tail-latency", argv=())
    first = found.findings[0]
    assert found.checks[0].id == "env.drift" and found.checks[0].outcome == "warn"
    assert (first.id, first.severity, first.confidence.basis) == ("env.drift", "warning", "hypothesis")
    assert first.subject.labels["ranks"] == [2]
    assert first.subject.labels["keys"] == ["packages.nvidia-nccl-cu13"]
    assert found.verdict == "warning" and found.invocation.exit_code == 4


def test_a_baseline_run_is_compared(lab: Any) -> None:
    traffic = lab.Traffic(requests=40, rate=10)
    yesterday = lab.run(traffic=traffic)
    today = lab.run(traffic=traffic)
    today.update(fingerprints={name: {**facts, "python": {"version": "3.13.0"}} for name, facts in today.info.fingerprints.items()})
    found = diagnose(today, "tail-latency", baseline=yesterday, argv=())
    drift = next(one for one in found.findings if one.id == "env.drift")
    assert drift.subject.labels["keys"] == ["python.version"]
    assert drift.subject.labels["compared"] == "against the baseline"
    assert any(source.kind == "baseline" and yesterday.id in source.uri for source in found.sources)


def test_without_fingerprints_it_is_skipped_with_the_command(lab: Any) -> None:
    found = diagnose(lab.with_rows({}), "tail-latency", argv=())
    drift = found.checks[0]
    assert drift.outcome == "skipped"
    assert "workbench fingerprint" in drift.missing[0]
