"""`workbench validate`: does this runtime compute the model that was published?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from workbench.cli.context import Command, finish, json_option
from workbench.cli.output import answer, answer_json, note

if TYPE_CHECKING:
    from runtime.validation.document import Tier, ValidateDocument

BAD_ANSWER = 3
TIERS = ("weights", "single-step", "short", "long", "multimodal")
DTYPES = ("float32", "bfloat16", "float16")


@click.command(cls=Command)
@click.argument("model", required=False)
@click.option("--tier", type=click.Choice(TIERS), default=TIERS[-1], show_default=True, help="The last tier to run.")
@click.option("--reference", metavar="WHAT", help="Hold it to `transformers`, or to another checkpoint folder.")
@click.option("--against", metavar="FILE", type=click.Path(path_type=Path), help="Hold it to taps that were recorded elsewhere.")
@click.option(
    "--record", metavar="FILE", type=click.Path(path_type=Path), help="Write taps of tokens that reach every expert, for elsewhere."
)
@click.option("--compare", "sides", nargs=2, metavar="A B", help="Two folders, dtypes or `kv-fp8` (several with commas): what changes.")
@click.option("--ids", metavar="N,N,...", help="Token ids of the probe, instead of random ones.")
@click.option("--prompt", "prompts", metavar="TEXT", multiple=True, help="With --compare: a prompt of yours; may be given several times.")
@click.option("--dtype", type=click.Choice(DTYPES), default="float32", show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--kv-dtype", type=click.Choice(["auto", "fp8"]), default="auto", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random token ids.")
@click.option(
    "--most-tokens", type=click.IntRange(1), default=4096, show_default=True, help="Longest sequence; longer boundaries are skipped."
)
@json_option()
def validate(
    model: str | None, tier: str, reference: str | None, against: Path | None, record: Path | None, sides: tuple[str, str] | None,
    ids: str | None, prompts: tuple[str, ...], dtype: str, device: str, kv_dtype: str, seed: int, most_tokens: int, as_json: bool,
) -> None:  # fmt: skip
    """Validate MODEL in tiers: weights, a single step, short answers, long ones, pictures. A failed tier stops those behind it.

    Exit code 3: a tier failed, or the two sides of --compare answer differently; 2: this cannot be examined.
    """
    from runtime.validation.validate import Wanted
    from runtime.validation.validate import validate as examine
    from traces.errors import UsageError
    from workbench.cli.model import resolve_model

    _refuse_what_does_not_apply(sides is not None, tier)
    numbers = _numbers(ids) if ids else None
    if sides is not None:
        document = _compared(model, sides, dtype, device, prompts, numbers, seed)
    else:
        if model is None:
            raise UsageError("no MODEL was given", "give a checkpoint folder, or `shapes`")
        if reference is not None and reference != "transformers":
            reference = resolve_model(reference)
        told = None if as_json else _say_tier
        wanted = Wanted(dtype, device, kv_dtype == "fp8", reference, against, record, numbers, seed, most_tokens, tier, told)
        document = examine(resolve_model(model), wanted)
    if as_json:
        answer_json(document)
    else:
        answer(_text(document))
    finish(BAD_ANSWER if document.status == "fail" else 0)


def _refuse_what_does_not_apply(compares: bool, tier: str) -> None:
    """UsageError for an option that was given and would change nothing."""
    from traces.errors import UsageError

    context = click.get_current_context()

    def refuse(names: tuple[str, ...], why: str, hint: str) -> None:
        for name in names:
            if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
                option = next(param.opts[0] for param in context.command.params if param.name == name)
                raise UsageError(f"{option} {why}", hint)

    if compares:
        refuse(("reference", "against", "record"), "does not go with --compare", "A is the reference of B")
        refuse(("tier", "most_tokens"), "does not go with --compare", "it runs no tiers")
        refuse(("kv_dtype",), "does not go with --compare", "name the cache in a side: A,kv-fp8")
        return
    refuse(("prompts",), "needs --compare", "name two sides, or leave it out")
    if tier == TIERS[0]:
        refuse(("reference", "against"), f"does not go with --tier {tier}", "the weights are held to no reference")


def _compared(
    model: str | None, words: tuple[str, str], dtype: str, device: str, prompts: tuple[str, ...], ids: list[int] | None, seed: int
) -> ValidateDocument:
    from runtime.validation.document import ValidateDocument
    from runtime.validation.sides import Side, compare_sides
    from workbench.cli.model import resolve_model

    path = resolve_model(model) if model is not None else None
    a, b = (Side.of(word, path, dtype) for word in words)
    found = compare_sides(a, b, device, prompts, ids, seed)
    settings = {"device": device, "seed": str(seed)}
    return ValidateDocument(path=b.path, status="fail" if found.visible else "pass", settings=settings, tiers=[], compared=found)


def _numbers(text: str) -> list[int]:
    from traces.errors import UsageError

    try:
        return [int(word) for word in text.replace(",", " ").split()]
    except ValueError as error:
        raise UsageError(f"--ids: {error}", "give whole numbers with commas between them") from None


def _say_tier(tier: Tier) -> None:
    note(f"{tier.name}: {tier.status} ({tier.seconds:.1f} s)")


def _text(document: ValidateDocument) -> str:
    lines = []
    for tier in document.tiers:
        lines.append(f"{tier.name}: {tier.status}" + (f": {tier.detail}" if not tier.checks else ""))
        lines += [f"  {check.outcome:7} {check.name}: {check.detail}" for check in tier.checks]
    if document.compared is not None:
        found = document.compared
        lines.append(f"{'different' if found.visible else 'alike'}: {found.b} against {found.a}")
        kl = "unknown" if found.kl is None else f"{found.kl:.3g} nats a token (worst prompt {found.kl_worst:.3g})"
        lines.append(
            f"KL {kl}, top-1 agreement {found.top1:.3g} over {found.tokens} tokens; {len(found.changed)} of {found.answers} answers changed"
        )
        if found.first_tap is not None:
            lines.append(f"first diverging tap: {found.first_tap}, relative {found.first_relative:.3g}, gain {found.first_gain:.3g}")
        lines += [f"- {one.prompt!r}, after {one.at} tokens: {one.before!r} -> {one.after!r}" for one in found.changed]
    return "\n".join([f"{document.status}: {document.path}", *lines, *(f"note: {said}" for said in document.notes)])
