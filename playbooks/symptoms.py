"""Symptoms and the causes each must tell apart. A site adds its own causes through the entry-point group `workbench.playbooks`.

An entry point is named after a symptom or after one cause, and loads a Check or a list of Checks. A cause belongs to the symptom of
its prefix; causes `env.` belong to every symptom:

    [project.entry-points."workbench.playbooks"]
    tail-latency = "our_site.playbooks:CHECKS"
    "tail.shared-storage" = "our_site.storage:CHECK"
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from playbooks.check import Check
from playbooks.cross_node import mtu_black_hole
from playbooks.cross_node.causes import CHECKS as NETWORK_CAUSES
from playbooks.environment import drift, host_contention, library_drift
from playbooks.garbled_output.causes import CHECKS as GARBLED_CAUSES
from playbooks.hang import desync, host_code, in_flight, missing_rank, order, silent_rank, stopped_rank, stuck_rank, unanswering_rank
from playbooks.image_drift.causes import CHECKS as IMAGE_CAUSES
from playbooks.oom_on_load.causes import CHECKS as MEMORY_CAUSES
from playbooks.preflight.causes import CHECKS as PREFLIGHT_CAUSES
from playbooks.slow_load.causes import CHECKS as SLOW_LOAD_CAUSES
from playbooks.tail_latency import (
    account,
    capacity_drop,
    dp_imbalance,
    encoder_block,
    expert_imbalance,
    expert_swap,
    first_shape,
    frontend_cpu,
    gc_pause,
    kv_preempt,
    long_context,
    operator_slower,
    pipeline_bubble,
    prefill_interference,
    prefix_miss,
    queueing,
    rebalance_stall,
    spec_reject,
    straggler_rank,
)
from traces.errors import UsageError

GROUP = "workbench.playbooks"
PREFIXES = {
    "oom": "oom-on-load",
    "garbled": "garbled-output",
    "image": "image-drift",
    "tail": "tail-latency",
    "net": "cross-node-throughput",
    "hang": "hang",
    "start": "hang",
    "load": "slow-load",
}


@dataclass(frozen=True, slots=True)
class Symptom:
    """What a person sees, and the checks that tell its causes apart."""

    name: str
    title: str
    checks: tuple[Check, ...]


_BUILT_IN = {
    symptom.name: symptom
    for symptom in (
        Symptom(
            "tail-latency",
            "Some requests take much longer than most",
            (
                drift.CHECK,
                host_contention.CHECK,
                rebalance_stall.CHECK,
                straggler_rank.CHECK,
                gc_pause.CHECK,
                expert_imbalance.CHECK,
                capacity_drop.CHECK,
                operator_slower.CHECK,
                spec_reject.CHECK,
                pipeline_bubble.CHECK,
                first_shape.CHECK,
                kv_preempt.CHECK,
                expert_swap.CHECK,
                prefill_interference.CHECK,
                encoder_block.CHECK,
                long_context.CHECK,
                frontend_cpu.CHECK,
                prefix_miss.CHECK,
                dp_imbalance.CHECK,
                queueing.CHECK,
                account.CHECK,
            ),
        ),
        Symptom(
            "cross-node-throughput",
            "Throughput collapses across hosts",
            (drift.CHECK, library_drift.CHECK, *PREFLIGHT_CAUSES, *NETWORK_CAUSES),
        ),
        Symptom(
            "hang",
            "Processes wait for one another and nothing moves",
            (
                drift.CHECK,
                library_drift.CHECK,
                *PREFLIGHT_CAUSES,
                mtu_black_hole.CHECK,
                stopped_rank.CHECK,
                host_code.CHECK,
                unanswering_rank.CHECK,
                silent_rank.CHECK,
                stuck_rank.CHECK,
                missing_rank.CHECK,
                order.CHECK,
                desync.CHECK,
                in_flight.CHECK,
            ),
        ),
        Symptom("garbled-output", "Answers are garbled, repeated, in another language or endless", GARBLED_CAUSES),
        Symptom("slow-load", "A cold start takes long", SLOW_LOAD_CAUSES),
        Symptom("image-drift", "Pictures are understood badly", IMAGE_CAUSES),
        Symptom("oom-on-load", "Memory runs out while a model is loaded, or nothing is left to serve with", MEMORY_CAUSES),
    )
}


class UnknownSymptom(UsageError):
    """A symptom for which there is no playbook."""


class BadPlaybook(UsageError):
    """An entry point that does not load as checks. Reported in the diagnosis; the other checks run."""


def names() -> tuple[str, ...]:
    """All symptoms, those a site has added too."""
    added = {point.name for point in entry_points(group=GROUP) if "." not in point.name}
    return tuple(sorted(_BUILT_IN.keys() | added))


def symptom(name: str) -> tuple[Symptom, tuple[BadPlaybook, ...]]:
    """A symptom with a site's checks, cheapest first, and what failed to load. Raises UnknownSymptom."""
    if name not in names():
        raise UnknownSymptom(f"there is no playbook for {name!r}", f"known symptoms: {', '.join(names())}")
    known = _BUILT_IN.get(name, Symptom(name, name, (drift.CHECK,)))
    checks, failures = list(known.checks), []
    for point in entry_points(group=GROUP):
        if _serves(point.name, name):
            loaded, failure = _load(point)
            checks += loaded
            failures += [failure] if failure else []
    ordered = sorted({check.id: check for check in checks}.values(), key=lambda check: check.cost)
    return Symptom(known.name, known.title, tuple(ordered)), tuple(failures)


def _serves(point: str, name: str) -> bool:
    prefix, dot, _ = point.partition(".")
    return point == name if not dot else prefix == "env" or PREFIXES.get(prefix) == name


def _load(point: EntryPoint) -> tuple[list[Check], BadPlaybook | None]:
    try:
        found = point.load()
    except (ImportError, AttributeError, SyntaxError, NameError, TypeError, ValueError) as error:
        return [], BadPlaybook(f"the playbook {point.name} = {point.value} does not load: {error}", "upgrade or uninstall its package")
    checks = [found] if isinstance(found, Check) else list(found) if isinstance(found, Iterable) else []
    if not checks or not all(isinstance(check, Check) for check in checks):
        return [], BadPlaybook(f"the playbook {point.name} = {point.value} is no Check and no list of Checks", "see playbooks/check.py")
    return checks, None
