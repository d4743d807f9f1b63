"""workbench.plan.v1: the answer of `workbench plan`, in bytes and seconds."""

from __future__ import annotations

import msgspec

from runtime.budget.compared import Comparison

SCHEMA = "workbench.plan.v1"
BASIS = {
    "weights": "fact",
    "kv": "fact",
    "state": "fact",
    "activations": "estimate",
    "buffers": "estimate",
    "overhead": "estimate",
}
"""Facts follow from shapes, dtypes and the layout; estimates depend on the engine. Time floors are neither: nothing can be faster."""


class ModelPart(msgspec.Struct, frozen=True):
    """`active_parameters` None: top-k is not known. `kinds`: stored bytes by what tensors are for."""

    path: str
    architecture: str
    family: str
    source: str
    parameters: int
    active_parameters: int | None
    draft_parameters: int
    stored_bytes: int
    tensors: int
    layers: int
    max_positions: int | None
    kinds: dict[str, int]


class LayoutPart(msgspec.Struct, frozen=True):
    tp: int
    pp: int
    dp: int
    ep: int
    redundant_experts: int
    expert_slots: int | None  # a rank and layer
    stage_layers: list[int]


class RankPart(msgspec.Struct, frozen=True):
    """Bytes of one rank. `limit`, `fits` and `left` are None when no device memory was given."""

    rank: int
    stage: int
    weights: int
    kv: int
    state: int
    activations: int
    buffers: int
    overhead: int
    total: int
    limit: int | None
    fits: bool | None
    left: int | None
    kinds: dict[str, int]


class ContextPart(msgspec.Struct, frozen=True):
    """Tokens. `fits` is the longest context for the asked concurrency, `alone` for one sequence a rank, `model` the model's own limit."""

    asked: int
    fits: int | None
    alone: int | None
    model: int | None


class TrafficPart(msgspec.Struct, frozen=True):
    """Bytes a token and MoE layer, one direction; see runtime.budget.traffic."""

    dispatch: int
    remote: int
    inter_host: int
    inter_host_once: int
    inter_share: float
    hosts: int
    all_reduce: int
    boundary: int


class FloorsPart(msgspec.Struct, frozen=True):
    """Seconds nothing can be faster than; None: `missing` names the bandwidth that was not given."""

    memory: float | None
    compute: float | None
    communication: float | None
    decode_step: float | None
    load: float | None
    communication_exceeds_work_at: int | None
    missing: list[str]


class PrecisionPart(msgspec.Struct, frozen=True):
    """The fullest rank with the routed experts in another precision."""

    weights: str
    kv: str
    rank_weights: int
    rank_total: int
    fits: bool | None
    context: int | None
    source: str


class CandidatePart(msgspec.Struct, frozen=True):
    tp: int
    pp: int
    dp: int
    ep: int
    redundant_experts: int
    fits: bool
    total: int | None  # of the fullest rank
    decode_step: float | None
    inter_share: float | None
    bubble: float
    context: int | None
    reason: str  # why it lost; empty for the best


class PlanDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`fits` None: no device memory was given, nothing was judged."""

    schema: str = SCHEMA
    model: ModelPart
    assumptions: list[str]
    layout: LayoutPart
    workload: dict[str, int | str | None]
    cluster: dict[str, int | float | None]
    per_rank: list[RankPart]
    basis: dict[str, str]
    fits: bool | None
    kv_bytes_per_token: int
    state_bytes_per_sequence: int
    context: ContextPart
    traffic: TrafficPart | None
    pipeline_bubble: float
    floors: FloorsPart
    precision: list[PrecisionPart]
    candidates: list[CandidatePart]
    advice: list[str]
    verification: Comparison | None = None
