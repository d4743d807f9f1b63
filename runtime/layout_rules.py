"""What tensor-parallel lanes can split: one rule for `serve`, which refuses, and for `plan`, which must not recommend what is refused.
Torch-free."""

from __future__ import annotations


def unsplittable(lanes: int, heads: int, kv_heads: int | None = None, dense_width: int | None = None) -> tuple[str, str] | None:
    """Why a layer cannot be split over `lanes`, and what to do instead; None: it can be. `kv_heads` None: keys and values are not by
    head; `dense_width` None: there is no dense feed-forward."""
    if lanes == 1:
        return None
    if heads % lanes:
        return f"{heads} attention heads cannot be split over {lanes} ranks", f"choose --tp from {divisors(heads)}"
    if kv_heads is not None and kv_heads % lanes and lanes % kv_heads:
        said = f"{kv_heads} key-value heads can be neither split nor copied evenly over {lanes} ranks"
        return said, f"choose --tp from {divisors(kv_heads)} or a multiple of {kv_heads}"
    if dense_width is not None and dense_width % lanes:
        return f"a dense feed-forward of width {dense_width} cannot be split over {lanes} ranks", "choose a --tp that divides it"
    return None


def even_stages(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage, as even as can be; the first ones one more where they do not divide."""
    return tuple(layers // stages + (stage < layers % stages) for stage in range(stages))


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
