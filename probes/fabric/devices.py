"""The accelerators that torch sees on this host, and which of them reach one another's memory. Imports torch; untried on a device."""

from __future__ import annotations

import torch

from probes.fabric.answer import Device


def devices() -> list[Device]:
    """Empty where torch has none."""
    if not torch.cuda.is_available():
        return []
    count = torch.cuda.device_count()
    return [
        Device(one, torch.cuda.get_device_name(one), [other for other in range(count) if other != one and _reaches(one, other)])
        for one in range(count)
    ]


def _reaches(one: int, other: int) -> bool:
    return bool(torch.cuda.can_device_access_peer(one, other))
