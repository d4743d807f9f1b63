"""The checks of cross-node-throughput that belong to no other symptom."""

from __future__ import annotations

from playbooks.cross_node import (
    congestion,
    degraded_link,
    gdr_off,
    gid,
    moved_bytes,
    mtu_black_hole,
    nic_affinity,
    no_overlap,
    not_the_bottleneck,
    packet_loss,
    placement,
    small_frames,
    small_messages,
    socket_fallback,
    wrong_interface,
)

CHECKS = (
    socket_fallback.CHECK,
    gdr_off.CHECK,
    gid.CHECK,
    nic_affinity.CHECK,
    wrong_interface.CHECK,
    mtu_black_hole.CHECK,
    packet_loss.CHECK,
    small_frames.CHECK,
    degraded_link.CHECK,
    congestion.CHECK,
    placement.CHECK,
    moved_bytes.CHECK,
    not_the_bottleneck.CHECK,
    small_messages.CHECK,
    no_overlap.CHECK,
)
