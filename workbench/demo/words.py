"""The end of the demonstration in words: the table, what held, and what to try next."""

from __future__ import annotations

from workbench.cli.output import table
from workbench.cli.style import Role, paint
from workbench.demo.document import Comparison, Demo

TONES: dict[str, Role] = {"lower": "good", "equal": "good", "higher": "bad"}


def as_text(demo: Demo) -> str:
    first = (demo.during.get("findings") or [{}])[0]
    lines = ["", table(("", "before", "during", "after", "during → after"), [_row(one) for one in demo.comparison]), ""]
    lines.append(f"What was set:    {_set(demo)}")
    lines.append(f"What was found:  {first.get('id', 'nothing')}: {first.get('title', '')}")
    if demo.ok:
        lines.append(paint("The fault was found where it was, repaired while serving, and the repair measured.", "good"))
    lines += [paint(problem, "bad") for problem in demo.problems]
    return "\n".join(lines)


def _row(one: Comparison) -> tuple[str, str, str, str, str]:
    return (one.text, one.before, one.during, one.after, one.verdict)


def _set(demo: Demo) -> str:
    layers = ", ".join(map(str, demo.fault.layers))
    return f"placement {demo.fault.placement} packs the most popular experts of layers {layers} on rank {demo.fault.rank}"


def next_commands(demo: Demo) -> str:
    tries = (
        ("the report", demo.report),
        ("the screen", f"workbench tui --run {demo.run}"),
        ("the diagnosis", f"workbench diagnose tail-latency --run {demo.run}"),
        ("any question", f"workbench query --run {demo.run} 'SELECT layer, rank, sum(rows) FROM slot_heat GROUP BY ALL ORDER BY ALL'"),
        ("your model", "workbench serve FOLDER --ep 4"),
    )
    return "\n".join(["", "Next:", *(f"  {name:<14} {command}" for name, command in tries)])
