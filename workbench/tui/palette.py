"""Colours: sixteen levels for heat, and the themes of the application.

Luminance is monotone in both ramps, so that they survive a grey screen. Where colours cannot carry sixteen ordered levels
(NO_COLOR, a terminal of sixteen colours: measured as non-monotone) heat is drawn as bars, `GLYPHS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from rich.color import Color
from rich.style import Style
from textual.theme import Theme

LEVELS = 16
# Inferno and YlOrRd, sixteen stops each; the darkest two of Inferno are lifted off the background so that cold is not absent.
DARK = (
    "#17112f", "#20103f", "#2e0f52", "#430f64", "#5c126c", "#781c6d", "#932665", "#ad315b",
    "#c73f4b", "#db5339", "#ed6925", "#f58712", "#faa611", "#f8c632", "#f9e366", "#fcffa4",
)  # fmt: skip
LIGHT = (
    "#f6f2dc", "#fff0b0", "#ffec9d", "#fee187", "#fed470", "#febf5a", "#feab49", "#fd9740",
    "#fd7c37", "#fc5b2e", "#f43d25", "#e6211e", "#d41020", "#c00225", "#a10026", "#800026",
)  # fmt: skip
GLYPHS = " ▁▂▃▄▅▆▇█"

PREFILL, DECODE, WAITING = "#e6a23c", "#4cc9b0", "#e5707a"
# Okabe-Ito, in an order in which neighbours differ in lightness too.
CATEGORY = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#0072b2", "#d55e00", "#999999")


def level(value: float, top: float) -> int:
    """The level 0..15 of a value between 0 and `top`; more than the top is the top."""
    if top <= 0:
        return 0
    return max(0, min(LEVELS - 1, int(value / top * LEVELS)))


def glyph(value: float, top: float) -> str:
    """The bar glyph of a value between 0 and `top`; a value above nothing is never blank."""
    if top <= 0 or value <= 0:
        return GLYPHS[0]
    return GLYPHS[max(1, min(len(GLYPHS) - 1, round(value / top * (len(GLYPHS) - 1))))]


@cache
def pair_styles(ramp: tuple[str, ...]) -> Sequence[Sequence[Style]]:
    """Table [upper][lower] of styles for a half block: foreground is the upper half, background the lower."""
    colors = [Color.parse(stop) for stop in ramp]
    return [[Style(color=upper, bgcolor=lower) for lower in colors] for upper in colors]


@cache
def fill_styles(ramp: tuple[str, ...]) -> Sequence[Style]:
    """Styles for text on a filled cell, one a level: the text contrasts with the fill."""
    return [Style(color=_contrast(stop), bgcolor=stop) for stop in ramp]


def _contrast(stop: str) -> str:
    red, green, blue = (int(stop[i : i + 2], 16) for i in (1, 3, 5))
    return "#101010" if 0.299 * red + 0.587 * green + 0.114 * blue > 120 else "#e8e6e3"


def _theme(name: str, dark: bool, colors: str, variables: str) -> Theme:
    """`colors`: background, surface, panel, foreground, primary, secondary, accent, success, warning, error.

    `variables`: border, muted, faint, key, cursor background, cursor text, cursor without focus.
    """
    background, surface, panel, foreground, primary, secondary, accent, success, warning, error = colors.split()
    border, muted, faint, key, cursor, text, blurred = variables.split()
    return Theme(
        name=f"workbench-{name}", dark=dark, background=background, surface=surface, panel=panel, foreground=foreground, primary=primary,
        secondary=secondary, accent=accent, success=success, warning=warning, error=error,
        variables={
            "border": border, "muted": muted, "faint": faint, "footer-key-foreground": key, "block-cursor-background": cursor,
            "block-cursor-foreground": text, "block-cursor-blurred-background": blurred,
        },
    )  # fmt: skip


THEMES = (
    _theme("dark", True, "#0f141a #141b23 #1b2530 #d8dee6 #5fb3d9 #4cc9b0 #e6a23c #7bc86c #e6b450 #ef6f6c",
           "#2b3948 #8795a3 #55626f #e6a23c #2c4a5e #ffffff #22303c"),
    _theme("light", False, "#f7f6f2 #ffffff #ebe9e2 #1d2630 #1c6e96 #0b7f6b #a85d00 #2e7d32 #9a6700 #b3261e",
           "#c9c5b8 #646b70 #9aa0a3 #a85d00 #cfe3ee #10202b #e0e6e8"),
    _theme("contrast", True, "#000000 #000000 #1a1a1a #ffffff #56b4e9 #f0e442 #e69f00 #56b4e9 #f0e442 #ff8c4a",
           "#8a8a8a #c8c8c8 #9a9a9a #f0e442 #005f8a #ffffff #303030"),
)  # fmt: skip
