"""What a table of the schema is: columns with a kind and a meaning; DDL and Arrow schema derive from it."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

_ARROW: dict[str, pa.DataType] = {
    "i64": pa.int64(),
    "i32": pa.int32(),
    "f64": pa.float64(),
    "bool": pa.bool_(),
    "str": pa.string(),
    "json": pa.string(),
    "u32[]": pa.list_(pa.uint32()),
    "i64[]": pa.list_(pa.int64()),
    "f64[]": pa.list_(pa.float64()),
    "str[]": pa.list_(pa.string()),
}
_DUCKDB = {
    "i64": "BIGINT",
    "i32": "INTEGER",
    "f64": "DOUBLE",
    "bool": "BOOLEAN",
    "str": "VARCHAR",
    "json": "JSON",
    "u32[]": "UINTEGER[]",
    "i64[]": "BIGINT[]",
    "f64[]": "DOUBLE[]",
    "str[]": "VARCHAR[]",
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its kind ("i64", "str?", "u32[]" ...) and what it means, with its unit."""

    name: str
    kind: str
    doc: str

    @property
    def base(self) -> str:
        return self.kind.removesuffix("?")

    @property
    def nullable(self) -> bool:
        return self.kind.endswith("?")

    @property
    def arrow(self) -> pa.DataType:
        return _ARROW[self.base]

    @property
    def duckdb(self) -> str:
        return _DUCKDB[self.base]


@dataclass(frozen=True, slots=True)
class Table:
    """One table. `number` is its stable code in the ring; `detail` marks what is dropped first under pressure."""

    name: str
    number: int
    doc: str
    columns: tuple[Column, ...]
    detail: bool = False

    @property
    def arrow(self) -> pa.Schema:
        return pa.schema([pa.field(c.name, c.arrow, nullable=c.nullable) for c in self.columns])

    @property
    def ddl(self) -> str:
        body = ", ".join(f'"{c.name}" {c.duckdb}{"" if c.nullable else " NOT NULL"}' for c in self.columns)
        return f'CREATE TABLE IF NOT EXISTS "{self.name}" ({body})'
