"""A question before something changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from workbench.tui.paragraph import paragraph


class Confirm(ModalScreen[bool]):
    """Yes or no, with what will happen and its risk."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n", "answer(False)", "No"),
        Binding("escape", "answer(False)", show=False),
    ]
    DEFAULT_CSS = """
    Confirm { align: center middle; }
    Confirm #question { width: 76; max-width: 95%; height: auto; border: round $warning; background: $surface; padding: 1 2; }
    Confirm #question > Static { margin-bottom: 1; }
    Confirm Horizontal { height: auto; align-horizontal: right; }
    Confirm Button { margin-left: 2; }
    """

    def __init__(self, title: str, text: str, details: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__()
        self._title, self._text, self._details = title, text, details

    def compose(self) -> ComposeResult:
        with Vertical(id="question"):
            yield Static(Content.styled(self._title, "bold $warning"))
            yield Static(Content(self._text))
            lines = [paragraph(name, words, min(self.app.size.width - 8, 70), label=12) for name, words in self._details if words]
            if lines:
                yield Static(Content("\n").join(lines))
            with Horizontal():
                yield Button("No (n)", id="no", compact=True)
                yield Button("Yes, apply (y)", id="yes", variant="warning", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_answer(self, agreed: bool) -> None:
        self.dismiss(agreed)
