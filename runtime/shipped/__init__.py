"""The checkpoint that comes with the Workbench: a very small multimodal Mixture-of-Experts model trained on pictures of shapes."""

from pathlib import Path


def shapes_moe() -> Path:
    """The folder of the shipped checkpoint, in Hugging Face layout."""
    return Path(__file__).parent / "shapes-moe"
