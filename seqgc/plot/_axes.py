"""Helpers for all pictures: colours, axes, labels from untrusted names, and legends.

A picture must be legible on a light and on a dark page. A colour that carries meaning therefore has
a luminance between 0.15 and 0.26. Its contrast is then above 3.4, both on white and on near black;
WCAG 2 (1.4.11) demands at least 3. Everything else has matplotlib's text colour, which the caller
can set.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np

from seqgc.errors import ParameterError, one_line
from seqgc.ports import FloatArray, IntArray

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable

__all__ = [
    "COLORS", "axes_for", "color_bar", "draw_steps", "labelled", "legend_above", "name_points",
    "plain_log", "thinned",
]  # fmt: skip

# Okabe and Ito's colours, darkened where they are too light for white. Grey marks minor things.
COLORS: Final = (
    "#0072B2", "#D55E00", "#009E73", "#B0609A", "#8C7A00", "#3F8FC4", "#C44E52", "#7F7F7F",
)  # fmt: skip
BLUE, VERMILION, GREEN, PURPLE, OLIVE, SKY, RED, GREY = COLORS
STYLES: Final = "-", "--", "-.", ":"  # lines differ in style as well as in colour
_LONGEST_LABEL: Final = 64
_MOST_POINTS: Final = 500  # for one line


def axes_for(ax: Axes | None, *, height: float = 3.2, rows: bool = False) -> Axes:
    """Return the given axes, or if ``ax`` is None, new axes in a figure of ``height`` inches.

    ``rows`` is True for a picture that may need to be high. If the given axes are alone in their
    figure, that figure is then made at least ``height`` inches high.

    Raises
    ------
    ParameterError
        If matplotlib is not installed.
    """
    if ax is not None:
        figure = ax.get_figure(root=True)
        if rows and figure is not None and figure.axes == [ax]:
            figure.set_figheight(max(height, figure.get_figheight()))
        return ax
    try:
        from matplotlib import pyplot as plt
    except ImportError as error:
        rule, remedy = "needs the package matplotlib", "pip install 'seqgc[plot]'"
        raise ParameterError("plot", rule, str(error), remedy) from None
    _, ax = plt.subplots(figsize=(7.2, height), layout="constrained")
    ax.set_prop_cycle(color=COLORS)
    return ax


def labelled(name: str) -> str:
    r"""Return an untrusted name as a label of one line, which is never read as TeX nor hidden.

    matplotlib reads ``$`` as the beginning of a formula and hides labels that begin with ``_``.

    Examples
    --------
    >>> labelled("_a$b$")
    ' _a\\$b\\$'
    """
    text = one_line(name, limit=_LONGEST_LABEL).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def thinned(count: int, *, most: int = _MOST_POINTS) -> IntArray:
    """Return at most ``most`` evenly spaced indices below ``count``, including first and last.

    Examples
    --------
    >>> thinned(5, most=3).tolist()
    [0, 2, 4]
    """
    places: IntArray = np.linspace(0, count - 1, min(count, most)).round().astype(np.intp)
    return places


def draw_steps(ax: Axes, lines: Mapping[str, tuple[FloatArray, FloatArray]]) -> None:
    """Draw a step curve for each (x, y) of ``lines``, and a legend if there are several."""
    for place, (name, (x, y)) in enumerate(lines.items()):
        points = thinned(len(x))
        style = STYLES[place % len(STYLES)]
        ax.step(x[points], y[points], style, where="post", label=labelled(name), linewidth=1.6)
    if len(lines) > 1:
        legend_above(ax, *ax.get_legend_handles_labels())


def plain_log(ax: Axes, which: Literal["x", "y"]) -> None:
    """Make the x or the y axis logarithmic, labelled with plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter

    ax.set(**{f"{which}scale": "log"})
    axis = ax.xaxis if which == "x" else ax.yaxis
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def color_bar(
    ax: Axes,
    image: ScalarMappable,
    *,
    span: tuple[float, float],
    label: str,
    above: bool = False,
) -> None:
    """Add a logarithmic colour bar with plain numbers.

    ``above`` is True if some values exceed the ``span``; they have the colour of its upper end.
    """
    low, high = span
    ticks = [d * 10.0**e for e in range(-9, 13) for d in (1, 2, 5) if low <= d * 10.0**e <= high]
    if len(ticks) < 3:
        ticks = list(np.geomspace(low, high, 4))
    extend = "max" if above else "neither"
    bar = ax.figure.colorbar(image, ax=ax, label=label, pad=0.02, extend=extend)
    bar.ax.yaxis.set_ticks(ticks, [f"{tick:.3g}" for tick in ticks])
    bar.ax.yaxis.set_ticks([], minor=True)


def legend_above(ax: Axes, handles: Sequence[Artist], labels: Sequence[str]) -> None:
    """Add a legend above the axes, outside the data.

    It has as many columns as fit beside each other in the usual width of the axes. A label that is
    too long for a single column is cut. If long tick labels make the axes narrower than usual, the
    legend ends at the right of the axes, otherwise it begins at their left.
    """
    figure = ax.get_figure(root=True)
    assert figure is not None
    beside = max((_width(each.get_text()) for each in ax.get_yticklabels()), default=0.0)
    at_right = beside > _USUAL_BESIDE
    room = 72 * figure.get_figwidth() * ax.get_position().width
    shown = [_cut(label, room - _MARKED) for label in labels]
    fits = (
        columns for columns in range(len(shown), 1, -1) if _legend_width(shown, columns) <= room
    )
    ax.legend(
        handles,
        shown,
        loc="lower right" if at_right else "lower left",
        bbox_to_anchor=(1.0 if at_right else 0.0, 1.0),
        ncols=next(fits, 1),
        frameon=False,
        borderaxespad=0.2,
        columnspacing=1.2,
        handlelength=1.6,
        fontsize=_LEGEND_SIZE,
    )


_LEGEND_SIZE: Final = 9.0  # points
_MARKED: Final = (1.6 + 0.8 + 1.2) * _LEGEND_SIZE  # mark, and the space around it, in points
_USUAL_BESIDE: Final = 40.0  # width of the numbers left of the axes, in points


def _legend_width(labels: Sequence[str], columns: int) -> float:
    """Return the width of a legend, in points. Its columns are filled one after the other."""
    rows = -(-len(labels) // columns)
    parts = (labels[start : start + rows] for start in range(0, len(labels), rows))
    return math.fsum(max(map(_width, part)) + _MARKED for part in parts)


def _width(text: str) -> float:
    """Return the width of the longest line of a text in a legend, in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    font = FontProperties(size=_LEGEND_SIZE)
    lines = text.replace(r"\$", "S").replace("$", "S").split("\n")  # no formulas
    size = TextToPath().get_text_width_height_descent
    return max(float(size(line, font, ismath=False)[0]) for line in lines)


def _cut(text: str, width: float) -> str:
    """Return the text, or its beginning with "…" if it is wider than ``width`` points."""
    if _width(text) <= width:
        return text
    letters = next(n for n in range(len(text) - 1, -1, -1) if _width(f"{text[:n]}…") <= width)
    return f"{text[:letters].rstrip(chr(92))}…"


# ---- names beside points -------------------------------------------------------------------------

_LETTER: Final = 0.62  # mean width of a letter, as a multiple of the font size
_LINE: Final = 1.25  # height of a line, as a multiple of the font size
_DISTANCES: Final = 9.0, 14.0, 22.0, 34.0, 48.0, 64.0, 82.0  # from mark to name, in points
_LED_FROM: Final = 13.0  # from this distance on, a thin line joins name and mark
_MARK: Final = 6.5  # half the width of a mark, in points


class _Box(NamedTuple):
    """A rectangle, in points (1/72 inch)."""

    left: float
    low: float
    right: float
    high: float

    def overlap(self, other: _Box) -> float:
        """Return the area of the intersection of two boxes."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.high, other.high) - max(self.low, other.low)
        return max(0.0, width) * max(0.0, height)

    @property
    def area(self) -> float:
        return (self.right - self.left) * (self.high - self.low)


def name_points(
    ax: Axes, places: FloatArray, names: Sequence[str], *, line: FloatArray, size: float = 8.0
) -> None:
    """Write ``names`` next to points, with little overlap.

    Many positions around each point are tried, first close to the point and then farther away. If a
    name is far from its point, a thin line joins them. Each name is put where it overlaps least
    with the marks, the ``line``, and the previous names. The width of a name is estimated, because
    nothing has been rendered yet.

    ``places`` (m, 2) and the corners of the ``line`` (k, 2), whose pieces are horizontal or
    vertical, are fractions of the width and height of the axes.
    """
    scale = 72 / ax.figure.dpi
    width, height = ax.bbox.width * scale, ax.bbox.height * scale
    frame = _Box(0.0, 0.0, width, height)
    points = [(float(x) * width, float(y) * height) for x, y in places]
    taken = [_Box(x - _MARK, y - _MARK, x + _MARK, y + _MARK) for x, y in points]
    corners = [(float(x) * width, float(y) * height) for x, y in line]
    for (x0, y0), (x1, y1) in pairwise(corners):
        low, high = sorted((y0, y1))
        taken.append(_Box(min(x0, x1) - 1, low - 1, max(x0, x1) + 1, high + 1))
    for (x, y), name in zip(points, map(labelled, names), strict=True):
        extent = _LETTER * size * len(name), _LINE * size
        left, low, distance = min(
            _positions(x, y, extent), key=partial(_cost, extent=extent, taken=taken, frame=frame)
        )
        taken.append(_Box(left, low, left + extent[0], low + extent[1]))
        lead = {"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4}
        ax.annotate(
            name,
            (x / width, y / height),
            (left - x + extent[0] / 2, low - y + extent[1] / 2),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=size,
            arrowprops=lead if distance > _LED_FROM else None,
        )


def _positions(
    x: float, y: float, extent: tuple[float, float]
) -> Iterator[tuple[float, float, float]]:
    """Yield the left edge, lower edge and distance of each possible position of a name."""
    width, height = extent
    for far in _DISTANCES:
        near = 0.7 * far
        yield x + far, y - height / 2, far
        yield x - far - width, y - height / 2, far
        yield x - width / 2, y + far, far
        yield x - width / 2, y - far - height, far
        for below in (-near - height, near):
            yield x + near, y + below, far
            yield x - near - width, y + below, far


def _cost(
    position: tuple[float, float, float],
    *,
    extent: tuple[float, float],
    taken: Sequence[_Box],
    frame: _Box,
) -> float:
    left, low, distance = position
    box = _Box(left, low, left + extent[0], low + extent[1])
    outside = box.area - box.overlap(frame)
    return math.fsum(map(box.overlap, taken)) + 2 * outside + 0.2 * distance
