"""What a probe needs of a recorder: the cold-path half of `traces.producer.Recorder`, which `NullRecorder` shares."""

from __future__ import annotations

from typing import Any, Protocol

from traces.table import Table


class Sink(Protocol):
    """Takes rows; fills in `ts`, `resource_id` and nulls for what is not given."""

    resource_id: str

    def row(self, table: Table, **values: Any) -> None: ...

    def register(self, role: str, **attrs: Any) -> None: ...
