"""What MODEL may be on the command line."""

from __future__ import annotations

from pathlib import Path

from traces.errors import UsageError

SHIPPED = "shapes"


def resolve_model(word: str) -> str:
    """A checkpoint folder as it is, or the folder of the shipped model for the word `shapes`. Raises UsageError."""
    if word == SHIPPED and not Path(word).exists():
        from runtime.shipped import shapes_moe

        return str(shapes_moe())
    if not Path(word).is_dir():
        near = f', or "{SHIPPED}" for the model that is shipped'
        raise UsageError(f"no model folder at {word}", f"give a folder that holds config.json and *.safetensors{near}")
    return word


def planned_model(word: str) -> str:
    """The shipped model's folder for the word `shapes`; any other path as it is, also that of a config.json."""
    return resolve_model(word) if word == SHIPPED else word
