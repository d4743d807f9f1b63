"""workbench.verify.v1: the answer of `workbench verify`."""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA = "workbench.verify.v1"
ProblemKind = Literal[
    "missing-index",  # several shards, and nothing that lists them
    "missing-file",  # listed in the index, not in the folder
    "unlisted-file",  # in the folder, not in the index
    "unreadable",  # cannot be opened or read
    "bad-header",  # its length, JSON or an entry cannot be
    "truncated",  # the file ends before its tensors do
    "overlap",  # two tensors share bytes
    "hole",  # bytes that belong to no tensor
    "duplicate",  # one name in two files, or twice in one header
    "misplaced",  # in another file than the index says
    "missing",  # expected by index or config, in no header
    "extra",  # in a header, unknown to index or config
    "wrong-dtype",
    "wrong-shape",
    "wrong-size",  # the index states another total
    "non-finite",  # NaN or infinity
    "zeros",  # rows, or the end of a tensor, hold nothing but zeros
    "outlier",  # its values are spread unlike those of its siblings
    "hash",  # differs from the manifest, or from what a live rank holds
]


class Problem(msgspec.Struct, frozen=True):
    """`file` and `tensor` are "" where a problem has none."""

    file: str
    tensor: str
    kind: ProblemKind
    detail: str


class VerifyDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`checked` says which examinations ran, `notes` what was left out on purpose. Problems beyond the shown are counted by kind.

    With a run: `proven` are stored tensors that lie right on every rank that holds a part of them, by name with * for numbers; `unproven`
    all others: left out, packed in a way that is not unpacked here, or found wrong.
    """

    schema: str = SCHEMA
    path: str
    status: Literal["ok", "damaged"]
    tensors: int
    bytes: int
    problems: list[Problem]
    counts: dict[str, int] = {}
    checked: list[str] = []
    notes: list[str] = []
    proven: dict[str, int] = {}
    unproven: dict[str, int] = {}
    hint: str = ""
