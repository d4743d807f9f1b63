"""Arrow on the wire: rows in (one IPC stream per table, its name in the schema's metadata), answers out."""

from __future__ import annotations

import io

import pyarrow as pa

from traces.database import Entry
from traces.decode import conform


def arrow_entry(body: bytes, key: tuple[str, str, int]) -> Entry:
    """Concatenated IPC streams, each with schema metadata {"table": name}. Raises ValueError."""
    source = io.BytesIO(body)
    tables: dict[str, pa.Table] = {}
    while source.tell() < len(body):
        try:
            reader = pa.ipc.open_stream(source)
            rows = reader.read_all()
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(f"not an Arrow IPC stream: {error}") from error
        name = (rows.schema.metadata or {}).get(b"table", b"").decode("utf-8", "replace")
        rows = conform(rows.replace_schema_metadata(None), name)
        tables[name] = pa.concat_tables([tables[name], rows]) if name in tables else rows
    return Entry(key, tables)


def arrow_stream(table: pa.Table) -> bytes:
    """One IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(memoryview(sink.getvalue()))
