"""A picture of the page: what matplotlib has drawn, as a part of the tree that the page is.

matplotlib writes a document of its own. `drawn` takes it apart: text stays text, which can be
searched and read aloud; colours are the page's (`seqgc.report._colours`); identifiers are this
picture's own, as a page has several; and there is no more of a coordinate than can be seen.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree

from seqgc.errors import ParameterError, one_line
from seqgc.plot import COLORS
from seqgc.report._colours import stand_in, with_variables
from seqgc.report._elements import Element, details_table, element, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Picture", "figure"]

_SVG: Final = "{http://www.w3.org/2000/svg}"
_ATTRIBUTES: Final = {"{http://www.w3.org/1999/xlink}href": "href"}
_LONG: Final = re.compile(r"(\d+\.\d{2})\d+")
_REFERENCE: Final = re.compile(r"url\(#([^)]*)\)")
_FONT: Final = re.compile(r"font(-family)?:[^;]*;?")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)px")
_LONGEST_TEXT: Final = 60
_HIGHER: Final = 1.5
_MOST_TICKS: Final = 6  # whose numbers stand beside each other
_WIDE, _HALF = (10.6, 3.8), (5.0, 3.2)  # inches; the page scales them


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One picture: who draws it, what it is called, what it says to who cannot see it, its table.

    ``draw`` is given matplotlib axes, ``table`` holds equally long columns by name. One that is
    ``wide`` takes the page's whole width, one that is ``high`` has many rows.
    """

    title: str
    caption: str
    alt: str
    draw: Callable[[Axes], object]
    table: Mapping[str, Any]
    wide: bool = False
    high: bool = False


def figure(picture: Picture, *, number: int) -> Element:
    """Return a picture with its title, its caption and the table behind it.

    ``number`` is the picture's own on its page.
    """
    name = f"picture-{number}"
    drawing = _drawing(picture, name)
    return element(
        "figure",
        element("h3", picture.title),
        element("div", drawing, class_="drawing"),
        element("figcaption", picture.caption),
        details_table(picture.table),
        class_="wide" if picture.wide else "half",
    )


def _drawing(picture: Picture, name: str) -> Element:
    root = ElementTree.fromstring(plain(_svg(picture)))
    box = root.get("viewBox", "0 0 1 1")
    svg = element("svg", viewBox=box, role="img", aria_labelledby=f"{name}-title {name}-alt")
    svg.append(element("title", picture.title, id=f"{name}-title"))
    svg.append(element("desc", picture.alt, id=f"{name}-alt"))
    for child in root:
        if child.tag != f"{_SVG}metadata":
            _adopt(child, name)
            svg.append(child)
    return svg


def _adopt(tree: Element, name: str) -> None:
    """Make matplotlib's elements the page's own: names, colours, fonts; style sheets go."""
    for parent in list(tree.iter()):
        for child in list(parent):
            if child.tag == f"{_SVG}style":
                parent.remove(child)
    for each in tree.iter():
        each.tag = each.tag.removeprefix(_SVG)
        attributes = {_ATTRIBUTES.get(key, key): value for key, value in each.items()}
        each.attrib.clear()
        each.attrib.update({key: _attribute(key, value, name) for key, value in attributes.items()})


def _attribute(key: str, value: str, name: str) -> str:
    """Return what an attribute is to be in the picture of this name."""
    match key:
        case "id":
            return f"{name}-{value}"
        case "href":
            return f"#{name}-{value[1:]}" if value.startswith("#") else value
        case "clip-path":
            return _REFERENCE.sub(rf"url(#{name}-\1)", value)
        case "style":
            return _style(value, name)
        case "d" | "x" | "y" | "transform" | "points":
            return _LONG.sub(r"\1", value)
    return value


def _style(style: str, name: str) -> str:
    size = _SIZE.search(style) if "font" in style else None
    kept = _FONT.sub("", style).strip() if size else style
    if size:
        kept = f"font-size:{size[1]}px;{kept}"
    return with_variables(_REFERENCE.sub(rf"url(#{name}-\1)", kept))


def _svg(picture: Picture) -> str:
    """Return the document that matplotlib writes; the same for the same picture, always."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        rule = f"needs what is not installed ({error})"
        raise ParameterError("report", rule, "matplotlib", "pip install 'seqgc[plot]'") from None

    with mpl.rc_context(_settings()), warnings.catch_warnings():
        # Fonts are the reader's, names whoever's: which signs matplotlib's own has says nothing.
        warnings.filterwarnings("ignore", message="Glyph|.*constrained_layout not applied")
        drawing = Figure(figsize=_size(picture), layout="constrained")
        axes = drawing.subplots()
        picture.draw(axes)
        _tidy(drawing)
        file = io.StringIO()
        drawing.savefig(file, format="svg", transparent=True, dpi=144, metadata={"Date": None})
    return file.getvalue()


def _size(picture: Picture) -> tuple[float, float]:
    width, height = _WIDE if picture.wide else _HALF
    return width, height * (_HIGHER if picture.high else 1.0)


def _settings() -> Any:  # matplotlib's keys are no plain texts to a type checker
    from cycler import cycler

    ink, muted, line = map(stand_in, ("ink", "muted", "line"))
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


def _tidy(drawing: Figure) -> None:
    """Shorten texts that would leave no room, and write numbers without mathematical markup."""
    from matplotlib.text import Text
    from matplotlib.ticker import AutoLocator, FuncFormatter, LogFormatter

    for axes in drawing.axes:
        axes.set_title("")  # the page has it
        if isinstance(axes.xaxis.get_major_locator(), AutoLocator):
            axes.locator_params(axis="x", nbins=_MOST_TICKS)
        for axis in (axes.xaxis, axes.yaxis):
            if isinstance(axis.get_major_formatter(), LogFormatter):
                axis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:g}"))
    for text in drawing.findobj(Text):
        if isinstance(text, Text):
            lines = plain(text.get_text()).split("\n")
            text.set_text("\n".join(one_line(line, limit=_LONGEST_TEXT) for line in lines[:4]))
