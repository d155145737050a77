"""Names beside points, so placed that they can be read.

Each name is tried beside its point, then above and below it, then at the corners, and then all of
that farther away, with a line that leads to the point. It stays where it covers nothing that stands
already, and else where it covers least. Which points come first does matter: those have their names
nearest. How wide a text is, is estimated, since nothing has been drawn yet.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from seqgc.plot._canvas import GREY, labelled
from seqgc.ports import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["name_points"]

_LETTER: Final = 0.62  # of the font's size: the mean width of a letter
_LINE: Final = 1.25  # of the font's size
_DISTANCES: Final = 9.0, 14.0, 22.0, 34.0, 48.0, 64.0, 82.0  # points, from mark to name
_LED_FROM: Final = 13.0  # farther than this, a line leads to the mark
_MARK: Final = 6.5  # half of what a mark takes, points


class _Box(NamedTuple):
    """A rectangle, in points (1/72 inch)."""

    left: float
    low: float
    right: float
    high: float

    def covers(self, other: _Box) -> float:
        """Return the area that both have."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.high, other.high) - max(self.low, other.low)
        return max(0.0, width) * max(0.0, height)

    @property
    def area(self) -> float:
        return (self.right - self.left) * (self.high - self.low)


def name_points(
    ax: Axes, places: FloatArray, names: Sequence[str], *, line: FloatArray, size: float = 8.0
) -> None:
    """Write ``names`` beside points; ``places`` (m, 2) are shares of the axes' width and height.

    So are the corners of a ``line`` (k, 2), whose pieces are level or upright: names avoid it.
    """
    scale = 72 / ax.figure.dpi
    width, height = ax.bbox.width * scale, ax.bbox.height * scale
    ground = _Box(0.0, 0.0, width, height)
    points = [(float(x) * width, float(y) * height) for x, y in places]
    taken = [_Box(x - _MARK, y - _MARK, x + _MARK, y + _MARK) for x, y in points]
    corners = [(float(x) * width, float(y) * height) for x, y in line]
    for (x0, y0), (x1, y1) in pairwise(corners):
        low, high = sorted((y0, y1))
        taken.append(_Box(min(x0, x1) - 1, low - 1, max(x0, x1) + 1, high + 1))
    for (x, y), name in zip(points, map(labelled, names), strict=True):
        extent = _LETTER * size * len(name), _LINE * size
        left, low, far = min(
            _around(x, y, extent), key=partial(_cost, extent=extent, taken=taken, ground=ground)
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
            arrowprops=lead if far > _LED_FROM else None,
        )


def _around(
    x: float, y: float, extent: tuple[float, float]
) -> Iterator[tuple[float, float, float]]:
    """Yield left and lower edges for a text by a point, the nearest first, and how far they are."""
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
    spot: tuple[float, float, float],
    *,
    extent: tuple[float, float],
    taken: Sequence[_Box],
    ground: _Box,
) -> float:
    left, low, far = spot
    box = _Box(left, low, left + extent[0], low + extent[1])
    outside = box.area - box.covers(ground)
    return math.fsum(map(box.covers, taken)) + 2 * outside + 0.2 * far
