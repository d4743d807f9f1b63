"""The two tables a forward pass writes in a detailed step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from traces import schema
from traces.table import Table


class RowSink(Protocol):
    """What the model half needs of `probes.recorder.Recorder`."""

    def writer(self, table: Table) -> Callable[..., None]: ...

    def row(self, table: Table, **values: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class RowWriters:
    """Positional writers, in the column order of `traces.schema`."""

    layer: Callable[..., None]
    collective: Callable[..., None]

    @classmethod
    def of(cls, recorder: RowSink) -> RowWriters:
        return cls(recorder.writer(schema.LAYER), recorder.writer(schema.COLLECTIVE))
