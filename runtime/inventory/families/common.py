"""What the readers share."""

from __future__ import annotations

from runtime.inventory.builder import Builder
from runtime.inventory.model import Inventory, LayerCache, MixtureFacts
from runtime.inventory.stated import Stated


def architecture(whole: Stated) -> str:
    named = whole.raw.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else str(whole.raw.get("model_type"))


def tied(whole: Stated, text: Stated) -> bool:
    """Whether the head is the embedding table. The outer config decides where both speak."""
    for section in (whole, text):
        if section.has("tie_word_embeddings"):
            return section.flag("tie_word_embeddings")
    return whole.flag("tie_word_embeddings", assume=False, why="the larger of the two")


def add_ends(builder: Builder, at: str, head: str, vocab: int, hidden: int, tied: bool) -> None:
    """Embedding table, last norm and head; `at` is the prefix of the text model."""
    builder.tensor(at + "embed_tokens.weight", (vocab, hidden), "embed", "tp")
    builder.norm(at + "norm", hidden)
    if not tied:
        builder.tensor(head, (vocab, hidden), "head", "tp")


def finish(
    builder: Builder,
    whole: Stated,
    text: Stated,
    family: str,
    heads: int,
    caches: list[LayerCache],
    mixture: MixtureFacts | None,
    residual_blocks: int = 0,
) -> Inventory:
    """Assembles what a reader has collected."""
    longest = None
    for key in ("max_position_embeddings", "model_max_length"):
        if text.has(key):
            longest = text.integer(key)
            break
    return Inventory(
        architecture=architecture(whole),
        family=family,
        hidden=text.integer("hidden_size"),
        vocab=text.integer("vocab_size"),
        layers=len(caches),
        heads=heads,
        max_positions=longest,
        groups=tuple(builder.groups),
        caches=tuple(caches),
        mixture=mixture,
        residual_blocks=residual_blocks,
        tied=tied(whole, text),
        assumptions=tuple(whole.assumptions),
    )
