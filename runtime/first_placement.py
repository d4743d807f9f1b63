"""The expert placement a server starts with. Torch-free: the API process checks it before any rank starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from runtime.arch import ArchSpec
from runtime.expert_balance import balanced
from runtime.placement import Placement
from runtime.serve_config import ServeConfig
from traces.errors import UsageError


def first_placement(config: ServeConfig, arch: ArchSpec) -> Placement:
    """From the file in the config, else contiguous, or even with redundant experts. UsageError when the slots do not fit the ranks."""
    layers, experts, ranks = len(arch.moe_layers), arch.moe.experts, config.layout.ep
    hosts = config.layout.hosts_of_a_stage(config.nodes)
    if config.placement is not None:
        return _from_file(config, config.placement, layers, experts, hosts)
    slots = experts + config.redundant_experts
    if slots % ranks:
        raise _uneven(experts, ranks, config.redundant_experts)
    if config.redundant_experts:
        reason = f"{config.redundant_experts} redundant experts, nothing measured yet"
        return balanced([[1.0] * experts] * layers, ranks, slots, hosts, arch.moe.router.groups, source="initial", reason=reason)
    return replace(Placement.contiguous(layers, experts, ranks), hosts=hosts).checked(experts)


def _from_file(config: ServeConfig, path: str, layers: int, experts: int, hosts: int) -> Placement:
    try:
        document = msgspec.json.decode(Path(path).read_bytes(), type=dict)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"cannot read the placement {path}: {error}") from error
    placement = Placement.from_json(document, experts, config.layout.ep, hosts)
    if placement.layers != layers:
        raise UsageError(f"the placement {path} has {placement.layers} layers, the model has {layers} MoE layers")
    spare = placement.slots - experts
    if config.redundant_experts not in (0, spare):
        raise UsageError(
            f"the placement {path} has {spare} slots more than there are experts, --redundant-experts says {config.redundant_experts}",
            "leave the option out: the file decides",
        )
    return placement


def _uneven(experts: int, ranks: int, extra: int) -> UsageError:
    up = -(experts + extra) % ranks + extra
    if extra:
        message = f"{experts} experts and {extra} redundant ones cannot be split over {ranks} ranks"
        return UsageError(message, f"choose --redundant-experts {up}")
    divisors = [n for n in range(1, experts + 1) if experts % n == 0]
    hint = f"choose --ep from {divisors}, or fill the slots up with --redundant-experts {up}"
    return UsageError(f"{experts} experts cannot be split over {ranks} ranks", hint)
