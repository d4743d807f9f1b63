"""What live ranks hold beside their experts, against the files: attention, dense layers, routers, norms, vocabulary, vision.

A rank says the hash of every such tensor once, when it has loaded (event `weights`). Here each is put together again from the files
(`recipe.py`), for the lane that the rank is, and hashed. One that is another lane's or another tensor's is named as that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from runtime.verification.document import Problem
from runtime.verification.recipe import Heads, cut_for, decoder_of, sources
from runtime.verification.stored_values import StoredValues


@dataclass(frozen=True, slots=True)
class Told:
    """What a rank says that it holds. `targets`: our name -> hash and dtype."""

    rank: int
    lane: int
    lanes: int
    targets: dict[str, dict[str, str]]


@dataclass(slots=True)
class Compared:
    """`proven`: stored tensors that lie right on every rank that has them, with all their parts."""

    problems: list[Problem] = field(default_factory=list)
    proven: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)  # targets of ours for which there is no recipe, or no readable tensor


def compare_weights(values: StoredValues, told: Sequence[Told]) -> Compared:
    """Every target that any rank speaks of."""
    out = Compared()
    stored, config = values.entries, values.found.config
    decoder = decoder_of(stored)
    heads, tied = _heads(config), _tied(config)
    holders: dict[str, list[Told]] = {}
    for one in told:
        for target in one.targets:
            holders.setdefault(target, []).append(one)
    parts: dict[str, dict[str, set[int]]] = {}  # stored tensor -> target -> lanes that hold it right
    spoilt: set[str] = set()
    owners: dict[str, str] = {}  # hash -> whose it is
    wrong: list[tuple[Told, str, str]] = []
    for target, ranks in holders.items():
        found = sources(target, stored, decoder, tied) if decoder is not None else ()
        if not found or heads is None or not all(values.readable(name) for name, _ in found):
            out.unknown.add(target)
            continue
        wide = [(values.read(name), cut) for name, cut in found]
        for lane, dtype in sorted({(lane, one.targets[target]["dtype"]) for one in ranks for lane in range(one.lanes)}):
            mine = dict.fromkeys(_hashes(wide, lane, ranks[0].lanes, dtype, heads), f"lane {lane}'s part of {target}")
            owners |= {digest: owner for digest, owner in mine.items() if digest not in owners}
            for one in ranks:
                if one.lane != lane or one.targets[target]["dtype"] != dtype:
                    continue
                if one.targets[target]["hash"] not in mine:
                    wrong.append((one, target, ", ".join(name for name, _ in found)))
                    spoilt |= {name for name, _ in found}
                for name, _ in found:
                    parts.setdefault(name, {}).setdefault(target, set()).add(lane)
    for one, target, names in wrong:
        holds = owners.get(one.targets[target]["hash"], "what is in none of these files")
        detail = f"rank {one.rank} is to hold lane {one.lane}'s part of {target} and holds {holds}"
        out.problems.append(Problem("", names, "hash", detail))
    out.proven = {used for name, lanes in parts.items() if name not in spoilt and _whole(name, lanes, told) for used in values.used(name)}
    return out


def _whole(name: str, held: dict[str, set[int]], told: Sequence[Told]) -> bool:
    """Whether every lane has its part; the vision tower is on the first lane alone."""
    return any(target.startswith("vision.") or len(lanes) == told[0].lanes for target, lanes in held.items())


def _hashes(wide: list[tuple[Any, Any]], lane: int, lanes: int, dtype: str, heads: Heads) -> Iterator[str]:
    """Of a lane's part as it may lie in memory: by rows, and a matrix (on a CPU) by columns."""
    import torch

    from runtime.weight_hash import expert_hash, hex_hash

    cut = torch.cat([cut_for(tensor, how, lane, lanes, heads) for tensor, how in wide]).to(getattr(torch, dtype)).contiguous()
    yield hex_hash(expert_hash([cut]))
    if cut.dim() == 2:
        yield hex_hash(expert_hash([cut.t().contiguous().t()]))


def _heads(config: dict[str, Any]) -> Heads | None:
    text = config.get("text_config") or config
    heads, hidden = text.get("num_attention_heads"), text.get("hidden_size")
    if not isinstance(heads, int) or not isinstance(hidden, int) or heads < 1:
        return None
    linear = (text.get("linear_attn_config") or {}).get("num_heads") or text.get("linear_num_heads") or 0
    return Heads(int(text.get("num_key_value_heads") or heads), int(text.get("head_dim") or hidden // heads), int(linear))


def _tied(config: dict[str, Any]) -> bool:
    inner = (config.get("text_config") or {}).get("tie_word_embeddings")
    return bool(inner if inner is not None else config.get("tie_word_embeddings"))
