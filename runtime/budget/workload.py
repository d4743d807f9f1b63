"""What is asked of a deployment, and what it runs on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Workload:
    """`concurrency` sequences of `context` tokens over the whole deployment; `batch_tokens` a rank computes in one step."""

    context: int = 8192
    concurrency: int = 1
    batch_tokens: int = 8192
    micro_batches: int | None = None  # in flight in the pipeline; None: as many as stages
    weights: str = "stored"
    kv: str = "bf16"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Bytes and bytes per second; None is not given, and what depends on it is not answered."""

    nodes: int = 1
    devices_per_node: int = 1
    device_memory: int | None = None
    overhead: int = 0  # of every device, for driver, runtime and graphs
    intra: float | None = None  # between devices of a node, one device's share, one direction
    inter: float | None = None  # out of a node, one device's share, one direction
    hbm: float | None = None  # of device memory
    flops: float | None = None  # of a device, in the precision of the matrices
    load_rate: float | None = None  # of a node's storage

    @property
    def devices(self) -> int:
        return self.nodes * self.devices_per_node
