"""`workbench operators`: which operators does a model dispatch, and has the device a kernel for each?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from workbench.cli.context import Command, finish, json_option
from workbench.cli.output import answer, answer_json, table

if TYPE_CHECKING:
    from runtime.operators.document import Measured, OperatorsDocument

BAD_ANSWER, INCONCLUSIVE = 3, 5


@click.command(cls=Command)
@click.argument("model")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda, a vendor's name, or PrivateUse1.")
@click.option("--run", is_flag=True, help="Execute each operator at the model's shapes: error against float64 on the CPU, time, fall-back.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="Default: float32 on the CPU, else bfloat16.")
@click.option(
    "--tokens", type=click.IntRange(2, 1 << 14), default=64, show_default=True, help="Of the prompt whose second half is a prefill step."
)
@click.option("--sequences", type=click.IntRange(1, 4096), default=4, show_default=True, help="Of a decode step.")
@json_option()
def operators(model: str, device: str, run: bool, dtype: str | None, tokens: int, sequences: int, as_json: bool) -> None:
    """List the operators of MODEL, counted for each kind of layer; config.json is enough.

    Exit code 3: the device has nothing for an operator, or computes one wrongly; 5: this torch does not have the device,
    or --run could execute nothing on it.
    """
    from runtime.operators.inventory import Asked
    from runtime.operators.inventory import operators as examine
    from workbench.cli.model import planned_model

    document = examine(planned_model(model), Asked(device, dtype, tokens, sequences, run))
    if as_json:
        answer_json(document)
    else:
        answer(_text(document))
    if document.gaps or any(one.outcome == "fail" for op in document.operators for one in op.measured):
        finish(BAD_ANSWER)
    measured = any(one.outcome != "skipped" for op in document.operators for one in op.measured)
    if any(op.status == "unknown" for op in document.operators) or (run and not measured):
        finish(INCONCLUSIVE)


def _text(document: OperatorsDocument) -> str:
    lines = [f"{document.architecture} on {document.device} ({document.dispatch_key}), {document.dtype}, torch {document.torch}"]
    lines += [f"{len(kind.layers)} x {kind.kind}" for kind in document.kinds]
    rows = []
    for op in document.operators:
        counts = [sum(op.calls.get(phase, {}).values()) for phase in ("prefill", "decode")]
        rows.append(
            [op.name, op.status, *counts, op.how, *([_measured(op.measured)] if any(o.measured for o in document.operators) else [])]
        )
    columns = ["operator", "status", "prefill", "decode", "by", "measured"]
    lines.append(table(columns[: len(rows[0])], sorted(rows, key=lambda row: (-row[3], row[0]))))
    told = dict.fromkeys((op.status, op.advice) for op in document.operators if op.advice)
    for status, advice in told:
        names = [op.name for op in document.operators if (op.status, op.advice) == (status, advice)]
        lines.append(f"{status}: {', '.join(names)}: {advice}")
    return "\n".join([*lines, *(f"note: {note}" for note in document.notes)])


def _measured(found: list[Measured]) -> str:
    """The worst of an operator's executions."""
    failed = [one for one in found if one.outcome == "fail"]
    if failed:
        return failed[0].detail or f"error {failed[0].error:.1e} above {failed[0].limit:.1e}"
    ran = [one for one in found if one.outcome == "pass" and one.error is not None and one.seconds is not None]
    if not ran:
        return found[0].detail if found else ""
    worst = max(ran, key=lambda one: one.error or 0.0)
    fell = ", fell back to the CPU" if any(one.fell_back for one in ran) else ""
    return f"error {worst.error:.1e}, {1e6 * (worst.seconds or 0.0):.0f} us{fell}"
