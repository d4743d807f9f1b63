"""From what a person names - a folder, or a config.json - to an inventory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from probes.checkpoint import INDEX, SINGLE, read_config, read_tensors
from runtime.inventory.families import FAMILIES, inventory_of
from runtime.inventory.headers import inventory_of_headers, with_headers
from runtime.inventory.model import Inventory
from traces.errors import CheckpointError

LARGEST = 1 << 24  # bytes of a config.json


def open_inventory(path: str | Path) -> Inventory:
    """A folder with headers (and a config.json if there is one), a folder with a config.json only, or a JSON file that is a config.

    Nothing but headers is read. CheckpointError names what is missing, damaged or unknown.
    """
    place = Path(path)
    if place.is_file():
        return inventory_of(read_config_file(place))
    if not place.is_dir():
        raise CheckpointError(f"{place} is neither a folder nor a config.json", "give a checkpoint folder or a config.json")
    has_config = (place / "config.json").exists()
    if not (place / INDEX).exists() and not (place / SINGLE).exists():
        return inventory_of(read_config(place))
    tensors = read_tensors(place)
    if not has_config:
        return inventory_of_headers(tensors)
    config = read_config(place)
    if config.get("model_type") not in FAMILIES:
        return inventory_of_headers(tensors)
    return with_headers(inventory_of(config), tensors)


def read_config_file(path: Path) -> dict[str, Any]:
    """A config.json under whatever name. CheckpointError where it is none."""
    try:
        if path.stat().st_size > LARGEST:
            raise CheckpointError(f"{path} is too large for a config.json", "give the config.json of a model")
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}", "give a config.json") from error
    if not isinstance(document, dict) or "model_type" not in document:
        raise CheckpointError(f"{path} is no config.json: it names no model_type", "give the config.json of a model")
    return document
