"""What a person watching the demonstration sees on stderr: one line per stage, and a bar while traffic runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from workbench.cli.progress import Bar
from workbench.cli.style import paint
from workbench.demo.document import Stage


class Narrator:
    """Times the stages and tells them. `quiet` tells nothing and still times."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.stages: list[Stage] = []
        self.quiet = quiet
        self._said = ""

    @contextmanager
    def stage(self, name: str, words: str) -> Iterator[None]:
        """Runs one stage; what `say` was told inside it stands on its line when it is over."""
        started = time.monotonic()
        self._said = ""
        if not self.quiet:
            click.echo(f"{paint('▸', 'dim', err=True)} {words}", err=True)
        yield
        seconds = time.monotonic() - started
        self.stages.append(Stage(name, round(seconds, 2)))
        if not self.quiet:
            click.echo(f"  {paint('✓', 'good', err=True)} {self._said or 'done'} {paint(f'({seconds:.1f} s)', 'dim', err=True)}", err=True)

    def aside(self, text: str) -> None:
        """A line in the middle of a stage."""
        if not self.quiet:
            click.echo(f"  {paint('·', 'dim', err=True)} {text}", err=True)

    def say(self, text: str) -> None:
        self._said = text

    def bar(self, label: str, total: int) -> Bar:
        return Bar(f"  {label}", total, quiet=self.quiet)
