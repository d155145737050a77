"""The page's colours, by what they are for: one table for light and one for dark.

A picture does not know which of the two it is seen in. It is drawn in stand-ins, colours that
nothing else has, and these become ``var(--name)`` in the page, which the style sheet sets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

__all__ = ["COLOURS", "custom_properties", "stand_in", "with_variables"]

COLOURS: Final[Mapping[str, Mapping[str, str]]] = {
    "light": {
        "page": "#f6f7f9", "card": "#ffffff", "ink": "#1b1f27", "muted": "#565f6e",
        "line": "#d8dce3", "accent": "#0b5cad", "notice": "#8a4b00",
    },
    "dark": {
        "page": "#12151a", "card": "#1b1f26", "ink": "#e7eaef", "muted": "#a3acba",
        "line": "#363d48", "accent": "#7fbaff", "notice": "#f0b45c",
    },
}  # fmt: skip
"""By theme and name. Text is in ink, muted, accent or notice, on page or on card; WCAG AA asks for
a contrast of 4.5 to 1. Marks of pictures have their own (`seqgc.plot.COLORS`), which suit both."""

_NAMES: Final = tuple(COLOURS["light"])
_STAND_IN: Final = re.compile(r"#fe01([0-9a-f]{2})", re.IGNORECASE)


def stand_in(name: str) -> str:
    """Return the colour that a picture is drawn in where the page has its own of this name."""
    return f"#fe01{_NAMES.index(name):02x}"


def with_variables(style: str) -> str:
    """Return a style with the page's own colours in the places of stand-ins.

    Examples
    --------
    >>> with_variables(f"fill: {stand_in('ink')}; stroke: #123456")
    'fill: var(--ink); stroke: #123456'
    """
    return _STAND_IN.sub(lambda found: f"var(--{_NAMES[int(found[1], 16)]})", style)


def custom_properties(theme: str) -> str:
    """Return the declarations of a theme's colours, for a style sheet."""
    return "".join(f"--{name}:{colour};" for name, colour in COLOURS[theme].items())
