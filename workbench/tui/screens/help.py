"""What every key does, made from the bindings."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from workbench.tui import keys


class Help(ModalScreen[None]):
    """The page of `?`."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q", "dismiss", "Back")]
    DEFAULT_CSS = """
    Help { align: center middle; }
    Help #help { width: 78; max-width: 95%; height: auto; max-height: 90%; border: round $primary; background: $surface; padding: 0 2; }
    """

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help") as page:
            page.border_title = "keys"
            page.border_subtitle = "esc back"
            yield Static(Content("\n").join(_lines()), markup=False)


def _lines() -> list[Content]:
    lines = [Content.styled("everywhere", "bold $primary")]
    lines.append(_pair("1-6", "screens: " + ", ".join(name for _, _, name in keys.PLACES)))
    lines += [_pair(keys.WORDS.get(key, key), words) for key, _, _, words in keys.EVERYWHERE]
    for place, pairs in keys.SCREENS.items():
        lines += [Content(""), Content.styled(place, "bold $primary"), *(_pair(key, words) for key, words in pairs)]
    return lines


def _pair(key: str, words: str) -> Content:
    return Content.assemble((f"{key:<10}", "bold $accent"), words)
