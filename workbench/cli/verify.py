"""`workbench verify`: is this checkpoint whole, undamaged, and what its config describes?"""

from __future__ import annotations

from pathlib import Path

import click

from workbench.cli.context import Command, complete_run, finish, json_option
from workbench.cli.output import answer, answer_json

BAD_ANSWER = 3
SHOWN = 20  # problems; --json has more


@click.command(cls=Command)
@click.argument("model")
@click.option("--deep", is_flag=True, help="Read every value: finite, rows of zeros, spread against sibling layers and experts.")
@click.option("--hash", "hash_file", metavar="FILE", type=click.Path(path_type=Path), help="Compare with a manifest or sha256sum's output.")
@click.option("--write-hash", metavar="FILE", type=click.Path(path_type=Path), help="Write a manifest of checksums.")
@click.option("--run", "run_name", metavar="RUN", shell_complete=complete_run, help="Compare the weights that this run's ranks hold.")
@json_option()
def verify(model: str, deep: bool, hash_file: Path | None, write_hash: Path | None, run_name: str | None, as_json: bool) -> None:
    """Verify the weights of MODEL: every header against the index and the config; with options also every byte.

    Needs torch only for --run. Exit code 3: damaged; 2: this is no checkpoint that can be served.
    """
    from runtime.verification.verify import Wanted
    from runtime.verification.verify import verify as examine
    from traces.run import find_run
    from workbench.cli.model import planned_model

    run = find_run(run_name) if run_name is not None else None
    document = examine(planned_model(model), Wanted(deep, hash_file, write_hash, run))
    if as_json:
        answer_json(document)
    else:
        lines = [f"{document.status}: {document.tensors:,} tensors, {document.bytes:,} bytes ({', '.join(document.checked)})"]
        lines += [f"- {p.kind}: {' '.join(word for word in (p.file, p.tensor) if word)}: {p.detail}" for p in document.problems[:SHOWN]]
        if sum(document.counts.values()) > SHOWN:
            lines.append("in all: " + ", ".join(f"{count} {kind}" for kind, count in document.counts.items()))
        lines += [f"note: {note}" for note in document.notes]
        for said, names in (("proven", document.proven), ("not proven", document.unproven)):
            if names:
                lines.append(f"{said}: {sum(names.values())} stored tensors")
                lines += [f"  {name}{f' x {count}' if count > 1 else ''}" for name, count in names.items()]
        answer("\n".join(lines + ([f"hint: {document.hint}"] if document.hint else [])))
    finish(BAD_ANSWER if document.status == "damaged" else 0)
