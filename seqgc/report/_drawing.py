"""Pictures as SVG images inside a page, in the colours of the page."""

from __future__ import annotations

import base64
import io
import re
import warnings
from collections.abc import Mapping
from typing import Any, Final

from seqgc.errors import ParameterError
from seqgc.plot import COLORS, Picture

__all__ = ["COLOURS", "FONTS", "drawing", "without_controls"]

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
"""The page's colours by theme and purpose. Text is ink, muted, accent or notice on page or card;
WCAG AA asks for a contrast of 4.5 to 1. The marks of pictures have the colours of
`seqgc.plot.COLORS`, which suit both themes."""

FONTS: Final = 'system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","Liberation Sans",sans-serif'
_FORBIDDEN: Final = re.compile(r"[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_COORDINATES: Final = re.compile(r' (?:d|x|y|transform|points)="[^"]*"')
_LONG: Final = re.compile(r"(\d+\.\d{2})\d+")  # more than two decimals are finer than a pixel
_HIGHER: Final = 1.5
_MOST_TICKS: Final = 6  # for an x axis, so that their numbers do not overlap
_WIDE, _HALF = (10.6, 3.8), (5.0, 3.2)  # inches; the page scales them


def drawing(picture: Picture, data: object) -> str:
    """Draw a picture, and return it as the ``data:`` URI of an SVG image.

    An image can neither run a script nor load anything. It has a style sheet of its own, which
    follows the reader's light or dark theme. The same data always give the same image.

    Raises
    ------
    ParameterError
        If matplotlib is not installed.
    """
    svg = without_controls(_svg(picture, data))
    svg = _COORDINATES.sub(lambda attribute: _LONG.sub(r"\1", attribute[0]), svg)
    for name, colour in COLOURS["light"].items():
        svg = svg.replace(f": {colour}", f": var(--{name})")
    light, dark = (
        "".join(f"--{name}:{colour};" for name, colour in COLOURS[theme].items())
        for theme in ("light", "dark")
    )
    style = (
        f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"
        f"text{{font-family:{FONTS}!important}}image{{image-rendering:pixelated}}"
    )
    svg = re.sub(r"<svg\b[^>]*>", lambda tag: f"{tag[0]}<style>{style}</style>", svg, count=1)
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def without_controls(text: str) -> str:
    """Replace the characters that neither HTML nor XML may contain."""
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)


def _svg(picture: Picture, data: object) -> str:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
        from matplotlib.ticker import AutoLocator
    except ImportError as error:
        rule, remedy = "needs the package matplotlib", "pip install 'seqgc[plot]'"
        raise ParameterError("report", rule, str(error), remedy) from None

    width, height = _WIDE if picture.wide else _HALF
    size = width, height * (_HIGHER if picture.high else 1.0)
    with mpl.rc_context(_settings()), warnings.catch_warnings():
        # The reader's fonts are used, so it does not matter which glyphs matplotlib's font lacks.
        warnings.filterwarnings("ignore", message="Glyph|.*constrained_layout not applied")
        figure = Figure(figsize=size, layout="constrained")
        picture.draw(data, ax=figure.subplots())
        for axes in figure.axes:
            if isinstance(axes.xaxis.get_major_locator(), AutoLocator):
                axes.locator_params(axis="x", nbins=_MOST_TICKS)
        file = io.StringIO()
        none = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, dpi=144, metadata=none)
    return file.getvalue()


def _settings() -> Any:  # a type checker does not know matplotlib's keys
    from cycler import cycler

    ink, muted, line = (COLOURS["light"][name] for name in ("ink", "muted", "line"))
    return {
        "axes.edgecolor": line, "axes.facecolor": "none", "axes.grid": False,
        "axes.labelcolor": muted, "axes.labelsize": 10, "axes.linewidth": 0.8,
        "axes.prop_cycle": cycler(color=COLORS),
        "axes.spines.right": False, "axes.spines.top": False, "axes.titlecolor": ink,
        "figure.facecolor": "none", "font.family": "DejaVu Sans", "font.size": 10,
        "grid.color": line, "grid.linewidth": 0.6, "image.cmap": "viridis",
        "image.interpolation": "none", "legend.frameon": False, "legend.fontsize": 9,
        "lines.linewidth": 1.6, "patch.edgecolor": "none", "savefig.facecolor": "none",
        "svg.fonttype": "none", "svg.hashsalt": "seqgc", "text.color": ink,
        "xtick.color": line, "xtick.labelcolor": muted,
        "xtick.labelsize": 9, "ytick.color": line, "ytick.labelcolor": muted, "ytick.labelsize": 9,
    }  # fmt: skip
