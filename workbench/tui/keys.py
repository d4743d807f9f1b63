"""Every key, once: the bindings of the application and the page of help are made from here."""

from __future__ import annotations

from textual.binding import Binding, BindingType

# digit, mode, name on the tab
PLACES = (
    ("1", "overview", "overview"),
    ("2", "experts", "experts"),
    ("3", "playbook", "playbook"),
    ("4", "ranks", "ranks"),
    ("5", "requests", "requests"),
    ("6", "log", "log"),
)

# key, action, word in the footer (empty: not shown there), what it does
EVERYWHERE = (
    ("d", "diagnose", "Diagnose", "run the playbook of the chosen symptom (screen 3)"),
    ("e", "export", "Export", "write the report of this run as a page"),
    ("space", "pause", "Pause", "stop reading; again to go on"),
    ("t", "theme", "", "next theme: dark, light, high contrast"),
    ("ctrl+p", "command_palette", "", "every command by name"),
    ("question_mark", "help", "Help", "this page; esc goes back"),
    ("q", "quit", "Quit", "leave; the run goes on"),
)
DISPLAY = {"space": "␣"}
WORDS = {"question_mark": "?"}

# What the keys of one screen do, for the page of help.
SCREENS = {
    "overview": (("w", "window: 60 s, 10 min, the whole run"),),
    "experts": (
        ("arrows", "move the cursor; a click does too"),
        ("[ ] < >", "next layer; busiest of the next rank"),
        ("m", "experts, or the slots of the ranks"),
        ("w", "window: the last 10 s, the whole run"),
        ("home", "to the hottest cell"),
    ),
    "playbook": (
        ("s", "next symptom"),
        ("up down", "evidence of another check"),
        ("a", "apply the remedy to the live run; asks first"),
        ("x", "stop after the check in progress"),
    ),
    "ranks": (("[ ]", "one layer, or all of them"), ("o", "next collective"), ("w", "window")),
    "requests, log": (("/", "filter: words, rank=2, ttft>200 (ms), !word; esc clears"), ("up down", "choose a request")),
}


def everywhere() -> list[BindingType]:
    """Bindings that hold on every screen."""
    digits: list[BindingType] = [Binding(digit, f"go('{mode}')", name, show=False) for digit, mode, name in PLACES]
    shared = (Binding(key, action, word or action, show=bool(word), key_display=DISPLAY.get(key)) for key, action, word, _ in EVERYWHERE)
    return [*digits, *shared]
