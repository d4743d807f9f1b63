"""Pages that are written from the code stay what the code says."""

from __future__ import annotations

from pathlib import Path

from traces import schema_docs

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_the_schema_page_is_the_schema() -> None:
    written = (DOCS / "schema.md").read_text()
    assert written == schema_docs.page(), "write docs/schema.md again with traces.schema_docs.page()"
