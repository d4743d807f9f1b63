"""What a tensor is for, told from its name alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from runtime.inventory.tensors import Kind, Split

LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
EXPERT = re.compile(r"(\.experts\.)(\d+)(\.)")
_VISION = re.compile(r"(?:^|\.)(?:vision_tower|visual|vision_model|vision_encoder)\.")
_PROJECTOR = re.compile(r"(?:^|\.)(?:mm_projector|multi_modal_projector|merger|deepstack_merger_list)\.")
SCALES = re.compile(r"(?:weight_scale(?:_inv)?|weight_shape|weight_zero_point|_scales|\.scales|\.qzeros|\.g_idx|input_scale)$")

_BY_NAME: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"embed_tokens\.weight$|(?:^|\.)wte\.weight$"), "embed"),
    (re.compile(r"lm_head\."), "head"),
    (re.compile(r"_res_(?:norm|proj)\."), "residual"),
    (re.compile(r"\.routed_expert_"), "latent"),
    (re.compile(r"\.shared_experts?[._]"), "shared"),
    (re.compile(r"\.experts\."), "routed"),
    (re.compile(r"\.(?:gate|router)\.|e_score_correction_bias$"), "router"),
    (re.compile(r"\.(?:self_attn|attention|attn|linear_attn)\."), "attention"),
    (re.compile(r"norm"), "norm"),
    (re.compile(r"\.(?:mlp|feed_forward|block_sparse_moe|ffn)\."), "dense"),
)
_WHOLE = re.compile(r"(?:_a_proj|_with_mqa|norm|indexer)[._]|o_proj\.bias")
_KV = re.compile(r"\.(?:k_proj|v_proj)\.")


@dataclass(frozen=True, slots=True)
class Named:
    """A name taken apart: `template` has {expert} where an expert's number stood."""

    template: str
    kind: Kind
    layer: int | None
    expert: int | None


def take_apart(name: str) -> Named:
    """Kind, layer and expert of a tensor by its name; unknown names are of kind "other"."""
    expert = EXPERT.search(name)
    if expert is None:
        return _classified(name)
    like = _classified(name[: expert.start(2)] + "{expert}" + name[expert.end(2) :])
    return Named(like.template, like.kind, like.layer, int(expert.group(2)))


@lru_cache(maxsize=1 << 14)
def _classified(template: str) -> Named:
    """The experts of a layer share one answer."""
    if _PROJECTOR.search(template):
        return Named(template, "projector", None, None)
    if _VISION.search(template):
        return Named(template, "vision", None, None)
    found = LAYER.search(template)
    kind: Kind = next((kind for pattern, kind in _BY_NAME if pattern.search(template)), "other")
    return Named(template, kind, int(found.group(1)) if found else None, None)


def split_of(name: str, kind: Kind, recurrent: bool) -> Split:
    """How tensor parallelism shares a tensor of this name; `recurrent`: its layer has a delta attention, whose k and v split by head."""
    if kind in ("embed", "head"):
        return "tp"
    if kind == "routed":
        return "expert"
    if kind == "dense":
        return "tp"
    if kind == "shared":  # every lane routes tokens of its own, and computes their shared expert itself (runtime/plan_moe.py)
        return "whole"
    if kind != "attention" or _WHOLE.search(name):
        return "whole"
    return "kv" if _KV.search(name) and not recurrent else "tp"
