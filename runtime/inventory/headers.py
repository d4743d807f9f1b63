"""An inventory from headers alone: what the names, shapes and dtypes of a checkpoint say about the model."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from probes.checkpoint import TensorEntry
from runtime.inventory.model import Inventory, LayerCache, MixtureFacts
from runtime.inventory.names import SCALES, Named, split_of, take_apart
from runtime.inventory.tensors import Role, TensorGroup
from traces.errors import CheckpointError

PACKED_PER_ITEM = {"U8": 2, "I8": 2, "I32": 8}  # 4-bit values in one item of a packed tensor


def groups_of(tensors: Mapping[str, TensorEntry]) -> tuple[TensorGroup, ...]:
    """The tensors of all headers, those of a layer's experts as one group where shape and dtype agree."""
    gathered: dict[tuple[str, str, tuple[int, ...]], list[Named]] = defaultdict(list)
    for name, entry in tensors.items():
        named = take_apart(name)
        gathered[(named.template, entry.dtype, entry.shape)].append(named)
    recurrent = {named[0].layer for (template, _, _), named in gathered.items() if "conv1d" in template}
    drafts = {named[0].layer for (template, _, _), named in gathered.items() if template.endswith("eh_proj.weight")}
    return tuple(_group(key, named, named[0].layer in recurrent, named[0].layer in drafts) for key, named in gathered.items())


def _group(key: tuple[str, str, tuple[int, ...]], named: list[Named], recurrent: bool, draft: bool) -> TensorGroup:
    template, dtype, shape = key
    kind = named[0].kind
    copies = len(named)
    experts = 0
    if kind == "routed":
        experts = copies if named[0].expert is not None else (shape[0] if shape else 0)
    values = _values(template, dtype, shape)
    role: Role = "scale" if SCALES.search(template) else "vector" if _is_vector(template, shape, kind == "routed") else "matrix"
    split = split_of(template, kind, recurrent)
    if draft and kind != "routed":
        kind = "mtp"
    return TensorGroup(template, shape, dtype, "mtp" if draft else kind, split, role, named[0].layer, values, copies, experts)


def _values(name: str, dtype: str, shape: tuple[int, ...]) -> int:
    if SCALES.search(name):
        return 0
    packed = name.endswith(("weight_packed", "_blocks", ".qweight")) and dtype in PACKED_PER_ITEM
    return math.prod(shape) * (PACKED_PER_ITEM[dtype] if packed else 1)


def _is_vector(name: str, shape: tuple[int, ...], fused: bool) -> bool:
    return len(shape) < 2 or "conv1d" in name or name.endswith("A_log") or (fused and name.endswith("_bias"))


@dataclass(slots=True)
class _Seen:
    """Shapes of the attention tensors of one layer, by what follows the last prefix."""

    shapes: dict[str, tuple[int, ...]]

    def rows(self, *names: str) -> int | None:
        for name in names:
            if name in self.shapes:
                return self.shapes[name][0]
        return None


def inventory_of_headers(tensors: Mapping[str, TensorEntry]) -> Inventory:
    """What can be told without a config: tensors, bytes, the cache of each layer, the experts. Unknown is top-k and the longest context.

    CheckpointError when nothing looks like a decoder.
    """
    groups = groups_of(tensors)
    embed = next((g for g in groups if g.kind == "embed"), None)
    if embed is None:
        raise CheckpointError("no tensor is called embed_tokens.weight", "give a folder with a config.json of a known model type")
    notes: list[str] = ["without a config.json: the number of experts a token takes and the longest context are unknown"]
    layers = _layers(groups)
    caches = tuple(_cache(seen, notes) for seen in layers.values())
    vocab, hidden = embed.shape
    head = any(g.kind == "head" for g in groups)
    heads = max((cache.heads for cache in caches), default=1)
    return Inventory(
        "unknown", "unknown", hidden, vocab, len(layers), heads, None, groups, caches, _mixture(groups, hidden), tied=not head,
        source="headers", assumptions=tuple(dict.fromkeys(notes)),
    )  # fmt: skip


def with_headers(inventory: Inventory, tensors: Mapping[str, TensorEntry]) -> Inventory:
    """The config's facts with the tensors as they are really stored; layers beyond the config's are draft layers."""
    groups = tuple(replace(g, kind="mtp") if g.layer is not None and g.layer >= inventory.layers else g for g in groups_of(tensors))
    return replace(inventory, groups=groups, source="config and headers")


def _layers(groups: tuple[TensorGroup, ...]) -> dict[int, _Seen]:
    layers: dict[int, _Seen] = {}
    for group in groups:
        if group.layer is not None and group.kind == "attention":
            module = group.name.split("attn.")[-1].split("attention.")[-1]
            layers.setdefault(group.layer, _Seen({})).shapes[module.removesuffix(".weight")] = group.shape
    return dict(sorted(layers.items()))


def _cache(seen: _Seen, notes: list[str]) -> LayerCache:
    latent = seen.rows("kv_a_proj_with_mqa")
    if latent is not None:
        return LayerCache("mla", values=latent)
    conv = seen.shapes.get("k_conv1d")
    if conv is not None:
        wide, kernel = conv[0], conv[-1]
        head = seen.rows("o_norm") or wide
        return LayerCache("recurrent", heads=wide // head, state=wide * head, conv=3 * wide * (kernel - 1))
    keys, values = seen.rows("k_proj"), seen.rows("v_proj")
    if keys is None or values is None:
        raise CheckpointError(f"the attention of a layer is unknown: {sorted(seen.shapes)}", "give a folder with a config.json")
    per_head = seen.rows("k_norm")
    if per_head is None:
        notes.append("the width of a head cannot be told from the headers: keys and values are taken as not divisible over ranks")
    return LayerCache("gqa", values=keys + values, heads=keys // per_head if per_head else 1)


def _mixture(groups: tuple[TensorGroup, ...], hidden: int) -> MixtureFacts | None:
    routed = [g for g in groups if g.kind == "routed" and g.role == "matrix"]
    if not routed:
        return None
    experts = max(g.experts for g in routed)
    latent = next((g.shape[0] for g in groups if g.kind == "latent" and "down_proj" in g.name), hidden)
    per_expert = sum(g.parameters for g in routed if g.layer == routed[0].layer) // experts
    return MixtureFacts(experts, None, latent, per_expert // (3 * latent))
