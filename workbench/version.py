"""The version of this installation."""

from __future__ import annotations

DISTRIBUTION = "workbench-moe"
SOURCE_VERSION = "0.1.0"


def version() -> str:
    """The installed distribution's version; SOURCE_VERSION when run from a checkout that is not installed."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return distribution(DISTRIBUTION).version
    except PackageNotFoundError:
        return SOURCE_VERSION
