"""The folder that remembers a bring-up: bringup.json, manual.md, and what rungs leave for those above them."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

import msgspec

from traces.errors import UsageError
from traces.folder import writable, write_atomic
from traces.run import runs_root
from workbench.bringup.document import SCHEMA, BringupDocument, Step
from workbench.bringup.manual import manual

DOCUMENT, MANUAL = "bringup.json", "manual.md"
SERIAL, SINGLE_DEVICE = "serial.json", "single_device.json"  # what rungs leave for those above them


class Record:
    """UsageError when the folder holds something else; NotWritable when it cannot be written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with writable(folder):
            folder.mkdir(parents=True, exist_ok=True)

    @classmethod
    def of(cls, model: Path, endpoint: str | None) -> Record:
        """The usual place: beside the runs, one folder for each model and endpoint."""
        word = re.sub(r"[^a-z0-9.]+", "-", model.name.lower()).strip("-.")[:40] or "model"
        digest = hashlib.sha256(f"{model.resolve()} {endpoint or ''}".encode()).hexdigest()[:8]
        return cls(runs_root() / "bringup" / f"{word}-{digest}")

    def read(self) -> list[Step]:
        """Steps of the last call; none when there was none."""
        path = self.folder / DOCUMENT
        if not path.is_file():
            return []
        try:
            document = msgspec.json.decode(path.read_bytes(), type=BringupDocument)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} is no record of a bring-up: {error}", "give another --record, or --again to start over") from error
        if document.schema != SCHEMA:
            raise UsageError(f"{path} is of another kind: {document.schema}", "give another --record, or --again to start over")
        return document.steps

    def write(self, document: BringupDocument) -> None:
        with writable(self.folder):
            write_atomic(self.folder / DOCUMENT, msgspec.json.format(msgspec.json.encode(document), indent=1))
            write_atomic(self.folder / MANUAL, manual(document).encode())

    def forget(self) -> None:
        """Starts over."""
        for name in (DOCUMENT, SERIAL, SINGLE_DEVICE):
            (self.folder / name).unlink(missing_ok=True)


def keep(folder: Path, name: str, value: Any) -> None:
    """Leaves a result for a rung above."""
    with writable(folder):
        write_atomic(folder / name, msgspec.json.encode(value))


def kept(folder: Path, name: str, kind: Any) -> Any:
    """What a rung below left, or None. UsageError when it is damaged."""
    path = folder / name
    if not os.path.isfile(path):
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is damaged: {error}", "--again starts over") from error
